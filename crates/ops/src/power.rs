//! Powers. Integer powers wrap as CPU's do; XLA's own integer `power` looks at the exponent's low bits only.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::{Category, DType};
use crate::elementwise::{binary_rounded, broadcast, pointwise};
use crate::error::LoweringError;
use crate::formula::{Expr, formula, formulas};
use crate::graph::Number;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::pow.Scalar", power),
    OpDef::new("aten::pow.Tensor_Scalar", tensor_scalar).attributes(&[1]),
    OpDef::new("aten::pow.Tensor_Tensor", power),
    OpDef::new("prims::pow", power).composite(),
];

fn power(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    if !out.dtype.is_integral(true) {
        return binary_rounded(c, |x, y| x.pow(y));
    }
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    // A power of bools is x or not y.
    if out.dtype.is_bool() {
        return pointwise(c, DType::Bool, [&x, &y], |[x, y]| x | !y);
    }
    let [x, y] = broadcast(c, out.dtype, [&x, &y], &out.sizes)?;
    Ok(integer_power(c, x, y)?.into())
}

/// Squares and multiplies while any exponent has bits left.
fn integer_power(c: &mut Call<'_>, x: Value, exponent: Value) -> Result<Value> {
    let unsigned = c.b.elem(x).is_unsigned_int();
    let one = convert::splat(c.b, x, Number::Int(1))?;
    // Negative exponents have their answer at once; they leave the loop alone.
    let count = match unsigned {
        true => exponent,
        false => formula(c.b, [exponent], |[n]| n.max(n.splat_int(0)))?,
    };
    let results = c.b.while_loop(
        &[one, x, count],
        |b, state| {
            let busy = formula(b, [state[2]], |[n]| n.ne(n.splat_int(0))).map_err(stablehlo::Error::body)?;
            let dims: Vec<i64> = (0..b.rank(busy) as i64).collect();
            b.reduce_or(busy, &dims)
        },
        |b, state| {
            let next = formulas(b, [state[0], state[1], state[2]], |[result, base, n]| {
                let one = n.splat_int(1);
                let odd = (n & one).eq(one);
                let half = n.apply2(one, Builder::shift_right_logical);
                [odd.select(result * base, result), base * base, half]
            })
            .map_err(stablehlo::Error::body)?;
            Ok(next.to_vec())
        },
    )?;
    if unsigned {
        return Ok(results[0]);
    }
    // 1 / x^n truncates to 0, except for the units.
    formula(c.b, [results[0], x, exponent], |[positive, x, n]| {
        let (zero, one) = (x.splat_int(0), x.splat_int(1));
        let parity = (n & one).eq(zero).select(one, -one);
        let unit = x.eq(one).select(one, x.eq(-one).select(parity, zero));
        n.lt(zero).select(unit, positive)
    })
}

fn by_squaring<'f>(x: Expr<'f>, mut exponent: u64) -> Expr<'f> {
    let (mut result, mut base) = (None, x);
    loop {
        if exponent & 1 == 1 {
            result = Some(result.map_or(base, |result: Expr<'f>| result * base));
        }
        exponent >>= 1;
        if exponent == 0 {
            return result.unwrap_or_else(|| x.splat_int(1));
        }
        base = base * base;
    }
}

/// aten::pow.Tensor_Scalar: the exponents that CPU computes without `pow`.
fn tensor_scalar(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, exponent) = (c.tensor(0)?, c.number(1)?);
    let out = c.out(0)?.clone();
    let dtype = out.dtype.opmath();
    let real = match exponent {
        Number::Bool(v) => f64::from(u8::from(v)),
        Number::Int(v) => v as f64,
        Number::Float(v) => v,
        Number::Complex(re, 0.0) => re,
        Number::Complex(..) => f64::NAN,
    };
    if real == 0.0 {
        return Ok(c.full(Number::Int(1), out.dtype, &out.sizes)?.into());
    }
    if real == 1.0 {
        return Ok(c.value(&x, out.dtype)?.into());
    }
    match (out.dtype.category(), real) {
        (Category::Int | Category::Bool, _) if real > 0.0 => match exponent {
            Number::Int(n) => pointwise(c, dtype, [&x], |[x]| by_squaring(x, n.unsigned_abs())),
            _ => Err(LoweringError::unsupported("a float power of integers with an integer result")),
        },
        (_, 2.0) => pointwise(c, dtype, [&x], |[x]| x * x),
        (_, 3.0) => pointwise(c, dtype, [&x], |[x]| x * x * x),
        (Category::Float, 0.5) => pointwise(c, dtype, [&x], |[x]| x.sqrt()),
        (Category::Float, -0.5) => pointwise(c, dtype, [&x], |[x]| x.rsqrt()),
        (Category::Float, -1.0) => pointwise(c, dtype, [&x], |[x]| 1.0 / x),
        (Category::Float, -2.0) => pointwise(c, dtype, [&x], |[x]| 1.0 / (x * x)),
        (Category::Float | Category::Complex, _) => general(c, &x, exponent, dtype, out.dtype),
        _ => Err(LoweringError::invalid("Integers to negative integer powers are not allowed.")),
    }
}

fn general(c: &mut Call<'_>, x: &Tensor, exponent: Number, dtype: DType, out: DType) -> Result<Outputs> {
    let exponent = c.full(exponent, dtype, &x.sizes)?;
    let x = c.value(x, dtype)?;
    let value = formula(c.b, [x, exponent], |[x, exponent]| x.pow(exponent))?;
    Ok(c.convert(value, out)?.into())
}
