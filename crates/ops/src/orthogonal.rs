//! Orthogonal polynomials p_n(x), n given per element: three-term recurrences, and closed forms where ATen has them.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::elementwise::broadcast;
use crate::error::LoweringError;
use crate::formula::{Expr, formula, formulas};
use crate::graph::Number;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

macro_rules! with_scalar_overloads {
    ($($name:literal $lower:expr;)+) => {
        &[$(
            OpDef::new(concat!("aten::special_", $name), $lower),
            OpDef::new(concat!("aten::special_", $name, ".n_scalar"), $lower),
            OpDef::new(concat!("aten::special_", $name, ".x_scalar"), $lower),
        )+]
    };
}

pub const OPS: &[OpDef] = with_scalar_overloads! {
    "chebyshev_polynomial_t" |c| chebyshev(c, Kind::T, None);
    "chebyshev_polynomial_u" |c| chebyshev(c, Kind::U, None);
    "chebyshev_polynomial_v" |c| chebyshev(c, Kind::V, None);
    "chebyshev_polynomial_w" |c| chebyshev(c, Kind::W, None);
    "hermite_polynomial_h" |c| hermite(c, 2.0);
    "hermite_polynomial_he" |c| hermite(c, 1.0);
    "laguerre_polynomial_l" laguerre;
    "legendre_polynomial_p" legendre;
    "shifted_chebyshev_polynomial_t" |c| chebyshev(c, Kind::T, Some(6.0));
    "shifted_chebyshev_polynomial_u" |c| chebyshev(c, Kind::U, Some(6.0));
    "shifted_chebyshev_polynomial_v" |c| chebyshev(c, Kind::V, Some(6.0));
    "shifted_chebyshev_polynomial_w" |c| chebyshev(c, Kind::W, Some(4.0));
};

/// Step j of a recurrence: p_(j+1) from x, j, p_(j-1) and p_j.
type Step = for<'f> fn(Expr<'f>, Expr<'f>, Expr<'f>, Expr<'f>) -> Expr<'f>;

struct Operands {
    x: Value,
    /// Degree, an integer in the type of x.
    n: Value,
    out: DType,
}

fn operands(c: &mut Call<'_>) -> Result<Operands> {
    let (x, n) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let dtype = out.dtype.opmath();
    let [x, n] = broadcast(c, dtype, [&x, &n], &out.sizes)?;
    let n = formula(c.b, [n], |[n]| crate::unary::trunc(n))?;
    Ok(Operands { x, n, out: out.dtype })
}

/// p_n(x) where `wanted` holds, with p_0 = 1 and p_1 = `first`; other elements get anything.
fn recurrence(b: &mut Builder, x: Value, n: Value, wanted: Value, first: Value, step: Step) -> Result<Value> {
    let one = convert::splat(b, x, Number::Int(1))?;
    let start = b.constant(DType::Int64.element_type(), 1i64)?;
    let results = b.while_loop(
        &[start, one, first],
        |b, state| {
            let active = active(b, state, n, wanted).map_err(stablehlo::Error::body)?;
            let dims: Vec<i64> = (0..b.rank(active) as i64).collect();
            b.reduce_or(active, &dims)
        },
        |b, state| {
            let active = active(b, state, n, wanted).map_err(stablehlo::Error::body)?;
            let j = step_number(b, state[0], x).map_err(stablehlo::Error::body)?;
            let [p, q] = formulas(b, [x, j, state[1], state[2], active], |[x, j, p, q, active]| {
                [active.select(q, p), active.select(step(x, j, p, q), q)]
            })
            .map_err(stablehlo::Error::body)?;
            let one = b.constant(DType::Int64.element_type(), 1i64)?;
            Ok(vec![b.add(state[0], one)?, p, q])
        },
    )?;
    formula(b, [n, results[2]], |[n, q]| n.lt(n.splat(0.5)).select(q.splat(1.0), q))
}

/// Step number `j` as a value of the type and dimensions of `like`.
fn step_number(b: &mut Builder, j: Value, like: Value) -> Result<Value> {
    let dtype = convert::dtype_of(b, like)?;
    let j = convert::convert(b, j, dtype)?;
    let dims = b.dims(like).to_vec();
    Ok(b.broadcast_scalar(j, &dims)?)
}

/// Elements that need another step; NaN stays NaN and needs none.
fn active(b: &mut Builder, state: &[Value], n: Value, wanted: Value) -> Result<Value> {
    let j = step_number(b, state[0], n)?;
    formula(b, [j, n, state[2], wanted], |[j, n, q, wanted]| j.lt(n) & q.eq(q) & wanted)
}

fn even<'f>(n: Expr<'f>) -> Expr<'f> {
    let half = n * 0.5;
    half.eq(half.floor())
}

/// `value` where n is even, else its opposite.
fn alternate<'f>(n: Expr<'f>, value: Expr<'f>) -> Expr<'f> {
    even(n).select(value, -value)
}

fn finish(c: &mut Call<'_>, value: Value, n: Value, out: DType) -> Result<Outputs> {
    let value = formula(c.b, [value, n], |[value, n]| n.lt(n.splat(0.0)).select(n.splat(0.0), value))?;
    Ok(c.convert(value, out)?.into())
}

#[derive(Clone, Copy)]
enum Kind {
    T,
    U,
    V,
    W,
}

impl Kind {
    fn first<'f>(self, x: Expr<'f>) -> Expr<'f> {
        match self {
            Kind::T => x,
            Kind::U => x + x,
            Kind::V => x + x - 1.0,
            Kind::W => x + x + 1.0,
        }
    }

    /// The value at 1 and at -1.
    fn ends<'f>(self, x: Expr<'f>, n: Expr<'f>) -> Expr<'f> {
        let right = x.gt(x.splat(0.0));
        let (one, odd) = (n.splat(1.0), n + n + 1.0);
        match self {
            Kind::T => right.select(one, alternate(n, one)),
            Kind::U => right.select(n + 1.0, alternate(n, n + 1.0)),
            Kind::V => right.select(one, alternate(n, odd)),
            Kind::W => right.select(odd, alternate(n, one)),
        }
    }

    /// Between -1 and 1, by the angle whose cosine is x. At a zero of the divisor the value of the end.
    fn closed<'f>(self, x: Expr<'f>, n: Expr<'f>) -> Expr<'f> {
        let angle = x.acos();
        let ratio = |top: Expr<'f>, bottom: Expr<'f>| {
            bottom.eq(bottom.splat(0.0)).select(self.ends(x, n), top / bottom)
        };
        match self {
            Kind::T => (n * angle).cos(),
            Kind::U => ratio(((n + 1.0) * angle).sin(), angle.sin()),
            Kind::V => ratio(((n + 0.5) * angle).cos(), (angle * 0.5).cos()),
            Kind::W => ratio(((n + 0.5) * angle).sin(), (angle * 0.5).sin()),
        }
    }
}

/// Chebyshev polynomials of the four kinds; `shifted` ones take 2x - 1. Beyond a degree the closed form is used.
fn chebyshev(c: &mut Call<'_>, kind: Kind, shifted: Option<f64>) -> Result<Outputs> {
    let Operands { x, n, out } = operands(c)?;
    let degree = shifted.unwrap_or(if matches!(kind, Kind::T) { 6.0 } else { 8.0 });
    let x = match shifted {
        Some(_) => formula(c.b, [x], |[x]| x + x - 1.0)?,
        None => x,
    };
    let [closed, first] =
        formulas(c.b, [x, n], |[x, n]| [n.gt(n.splat(degree)) & x.abs().lt(x.splat(1.0)), kind.first(x)])?;
    let wanted = formula(c.b, [closed, x], |[closed, x]| !closed & x.abs().ne(x.splat(1.0)))?;
    let steps = recurrence(c.b, x, n, wanted, first, |x, _, p, q| (x + x) * q - p)?;
    let value = formula(c.b, [x, n, closed, steps], |[x, n, closed, steps]| {
        let value = closed.select(kind.closed(x, n), steps);
        x.abs().eq(x.splat(1.0)).select(kind.ends(x, n), value)
    })?;
    finish(c, value, n, out)
}

/// Physicists' (scale 2) and probabilists' (scale 1) Hermite polynomials.
fn hermite(c: &mut Call<'_>, scale: f64) -> Result<Outputs> {
    let Operands { x, n, out } = operands(c)?;
    // Degrees beyond these overflow; ATen gives NaN.
    let limit = if out == DType::Float64 { 512.0 } else { 128.0 };
    let [wanted, first] = formulas(c.b, [x, n], |[x, n]| [n.le(n.splat(limit)), x * scale])?;
    let step: Step = match scale == 1.0 {
        true => |x, j, p, q| x * q - j * p,
        false => |x, j, p, q| (x + x) * q - (j + j) * p,
    };
    let steps = recurrence(c.b, x, n, wanted, first, step)?;
    let value = formula(c.b, [wanted, steps], |[wanted, steps]| wanted.select(steps, steps.splat(f64::NAN)))?;
    finish(c, value, n, out)
}

fn laguerre(c: &mut Call<'_>) -> Result<Outputs> {
    let Operands { x, n, out } = operands(c)?;
    let [wanted, first] = formulas(c.b, [x], |[x]| [x.ne(x.splat(0.0)), 1.0 - x])?;
    let step: Step = |x, j, p, q| ((j + j + 1.0 - x) * q - j * p) / (j + 1.0);
    let steps = recurrence(c.b, x, n, wanted, first, step)?;
    let value = formula(c.b, [wanted, steps], |[wanted, steps]| wanted.select(steps, steps.splat(1.0)))?;
    finish(c, value, n, out)
}

fn legendre(c: &mut Call<'_>) -> Result<Outputs> {
    let Operands { x, n, out } = operands(c)?;
    let wanted = formula(c.b, [x], |[x]| x.abs().ne(x.splat(1.0)))?;
    let step: Step = |x, j, p, q| ((j + j + 1.0) * x * q - j * p) / (j + 1.0);
    let steps = recurrence(c.b, x, n, wanted, x, step)?;
    let value = formula(c.b, [x, n, steps], |[x, n, steps]| {
        x.abs().eq(x.splat(1.0)).select(Kind::T.ends(x, n), steps)
    })?;
    finish(c, value, n, out)
}
