//! Special functions that neither StableHLO nor CHLO has.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::elementwise::{binary_rounded, broadcast, pointwise, unary};
use crate::error::LoweringError;
use crate::formula::{Expr, formula, formulas};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::gcd", gcd),
    OpDef::new("aten::i0", |c| unary(c, |x| i0e(x) * x.abs().exp())),
    OpDef::new("aten::lcm", lcm),
    OpDef::new("aten::polygamma", polygamma),
    OpDef::new("aten::special_erfcx", |c| in_double(c, erfcx)),
    OpDef::new("aten::special_i0e", |c| unary(c, i0e)),
    OpDef::new("aten::special_i1", |c| unary(c, |x| x.apply(Builder::bessel_i1e) * x.abs().exp())),
    OpDef::new("aten::special_i1e", |c| unary(c, |x| x.apply(Builder::bessel_i1e))),
    OpDef::new("aten::special_log_ndtr", |c| in_double(c, log_ndtr)),
    OpDef::new("aten::special_ndtri", |c| unary(c, ndtri)),
    OpDef::new("aten::special_zeta", |c| binary_rounded(c, zeta)),
    OpDef::new("aten::special_zeta.other_scalar", |c| binary_rounded(c, zeta)),
    OpDef::new("aten::special_zeta.self_scalar", |c| binary_rounded(c, zeta)),
    OpDef::new("prims::erfcx", |c| in_double(c, erfcx)).composite(),
];

/// exp(-x) I0(x) on [0, 8], in Chebyshev polynomials of x/2 - 2; from Cephes.
const I0E_SMALL: [f64; 30] = [
    -4.4153416464793395e-18,
    3.3307945188222384e-17,
    -2.431279846547955e-16,
    1.715391285555133e-15,
    -1.1685332877993451e-14,
    7.676185498604936e-14,
    -4.856446783111929e-13,
    2.95505266312964e-12,
    -1.726826291441556e-11,
    9.675809035373237e-11,
    -5.189795601635263e-10,
    2.6598237246823866e-09,
    -1.300025009986248e-08,
    6.046995022541919e-08,
    -2.670793853940612e-07,
    1.1173875391201037e-06,
    -4.4167383584587505e-06,
    1.6448448070728896e-05,
    -5.754195010082104e-05,
    0.00018850288509584165,
    -0.0005763755745385824,
    0.0016394756169413357,
    -0.004324309995050576,
    0.010546460394594998,
    -0.02373741480589947,
    0.04930528423967071,
    -0.09490109704804764,
    0.17162090152220877,
    -0.3046826723431984,
    0.6767952744094761,
];
/// exp(-x) sqrt(x) I0(x) beyond 8, in Chebyshev polynomials of 32/x - 2; from Cephes.
const I0E_LARGE: [f64; 25] = [
    -7.233180487874754e-18,
    -4.830504485944182e-18,
    4.46562142029676e-17,
    3.461222867697461e-17,
    -2.8276239805165836e-16,
    -3.425485619677219e-16,
    1.7725601330565263e-15,
    3.8116806693526224e-15,
    -9.554846698828307e-15,
    -4.150569347287222e-14,
    1.54008621752141e-14,
    3.8527783827421426e-13,
    7.180124451383666e-13,
    -1.7941785315068062e-12,
    -1.3215811840447713e-11,
    -3.1499165279632416e-11,
    1.1889147107846439e-11,
    4.94060238822497e-10,
    3.3962320257083865e-09,
    2.266668990498178e-08,
    2.0489185894690638e-07,
    2.8913705208347567e-06,
    6.889758346916825e-05,
    0.0033691164782556943,
    0.8044904110141088,
];
/// Rational approximations of the normal quantile from Cephes: the middle, exp(-32) < p < exp(-2), and the far tail.
const NDTRI_MIDDLE: (&[f64], &[f64]) = (
    &[-59.96335010141079, 98.00107541859997, -56.67628574690703, 13.931260938727968, -1.2391658386738125],
    &[
        1.0,
        1.9544885833814176,
        4.676279128988815,
        86.36024213908905,
        -225.46268785411937,
        200.26021238006066,
        -82.03722561683334,
        15.90562251262117,
        -1.1833162112133,
    ],
);
const NDTRI_TAIL: (&[f64], &[f64]) = (
    &[
        4.0554489230596245,
        31.525109459989388,
        57.16281922464213,
        44.08050738932008,
        14.684956192885803,
        2.1866330685079025,
        -0.1402560791713545,
        -0.03504246268278482,
        -0.0008574567851546854,
    ],
    &[
        1.0,
        15.779988325646675,
        45.39076351288792,
        41.3172038254672,
        15.04253856929075,
        2.504649462083094,
        -0.14218292285478779,
        -0.03808064076915783,
        -0.0009332594808954574,
    ],
);
const NDTRI_FAR: (&[f64], &[f64]) = (
    &[
        3.2377489177694603,
        6.915228890689842,
        3.9388102529247444,
        1.3330346081580755,
        0.20148538954917908,
        0.012371663481782003,
        0.00030158155350823543,
        2.6580697468673755e-06,
        6.239745391849833e-09,
    ],
    &[
        1.0,
        6.02427039364742,
        3.6798356385616087,
        1.3770209948908132,
        0.21623699359449663,
        0.013420400608854318,
        0.00032801446468212774,
        2.8924786474538068e-06,
        6.790194080099813e-09,
    ],
);

/// Series whose terms cancel or overflow in f32.
fn in_double(c: &mut Call<'_>, build: impl for<'f> FnOnce(Expr<'f>) -> Expr<'f>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    pointwise(c, DType::Float64, [&x], |[x]| build(x))
}

/// Clenshaw's sum of a Chebyshev series, highest order first, halved as Cephes has it.
pub fn chebyshev<'f>(x: Expr<'f>, coefficients: &[f64]) -> Expr<'f> {
    let (mut b0, mut b1, mut b2) = (x.splat(0.0), x.splat(0.0), x.splat(0.0));
    for coefficient in coefficients {
        (b2, b1) = (b1, b0);
        b0 = x * b1 - b2 + *coefficient;
    }
    (b0 - b2) * 0.5
}

pub fn polynomial<'f>(x: Expr<'f>, coefficients: &[f64]) -> Expr<'f> {
    coefficients.iter().fold(x.splat(0.0), |sum, coefficient| sum * x + *coefficient)
}

/// exp(-|x|) I0(x)
pub fn i0e<'f>(x: Expr<'f>) -> Expr<'f> {
    let x = x.abs();
    let small = chebyshev(x * 0.5 - 2.0, &I0E_SMALL);
    let large = chebyshev(32.0 / x - 2.0, &I0E_LARGE) / x.sqrt();
    x.le(x.splat(8.0)).select(small, large)
}

/// exp(x²) erfc(x), in f64: the product below 10, the asymptotic series beyond.
pub fn erfcx<'f>(x: Expr<'f>) -> Expr<'f> {
    let product = (x * x).exp() * x.erfc();
    let step = -0.5 / (x * x);
    let mut term = x.splat(1.0);
    let mut sum = term;
    for k in 1..=10 {
        term = term * step * f64::from(2 * k - 1);
        sum = sum + term;
    }
    let series = sum / (x * PI.sqrt());
    x.gt(x.splat(10.0)).select(series, product)
}

/// log(erfcx(-t)/2) - t² with t = x/sqrt 2 below -1, else log1p(-erfc(t)/2), as ATen has it.
fn log_ndtr<'f>(x: Expr<'f>) -> Expr<'f> {
    let t = x * FRAC_1_SQRT_2;
    let tail = (erfcx(-t) * 0.5).log() - t * t;
    x.lt(x.splat(-1.0)).select(tail, (t.erfc() * -0.5).log1p())
}

/// Newton's steps after an approximation, of whose error the derivative exp(y * y) makes a multiple. Near 1 they are
/// those for erfc(y) = 1 - x, which is not rounded as erf(y) = x is.
pub fn erfinv<'f>(x: Expr<'f>) -> Expr<'f> {
    let (first, size) = (x.erf_inv(), x.abs());
    let near_one = size.gt(x.splat(0.5));
    let step = |y: Expr<'f>| {
        let excess = near_one.select((1.0 - size) - y.erfc(), y.erf() - size);
        y - excess / ((-(y * y)).exp() * FRAC_2_SQRT_PI)
    };
    let y = step(step(first.abs()));
    let y = x.lt(x.splat(0.0)).select(-y, y);
    (size.gt(x.splat(0.0)) & size.lt(x.splat(1.0))).select(y, first)
}

/// Quantile of the normal distribution.
fn ndtri<'f>(p: Expr<'f>) -> Expr<'f> {
    let edge = (-2.0f64).exp();
    let upper = p.gt(p.splat(1.0 - edge));
    let y = upper.select(1.0 - p, p);
    let centred = y - 0.5;
    let squared = centred * centred;
    let ratio = |z: Expr<'f>, (top, bottom): (&[f64], &[f64])| polynomial(z, top) / polynomial(z, bottom);
    let middle = (centred + centred * squared * ratio(squared, NDTRI_MIDDLE)) * (2.0 * PI).sqrt();
    let x = (y.log() * -2.0).sqrt();
    let z = 1.0 / x;
    let correction = z * x.lt(x.splat(8.0)).select(ratio(z, NDTRI_TAIL), ratio(z, NDTRI_FAR));
    let tail = x - x.log() / x - correction;
    let tail = upper.select(tail, -tail);
    let inside = y.gt(y.splat(edge)).select(middle, tail);
    let high = p.eq(p.splat(1.0)).select(p.splat(f64::INFINITY), inside);
    p.eq(p.splat(0.0)).select(p.splat(f64::NEG_INFINITY), high)
}

/// Hurwitz zeta function. CHLO's holds for q >= 1; terms below that are added one by one. Poles and undefined
/// arguments answer as Cephes does.
fn zeta<'f>(x: Expr<'f>, q: Expr<'f>) -> Expr<'f> {
    let one = q.splat(1.0);
    let integer = q.eq(q.floor());
    // Integers up to 0 are poles: nothing to add there. (Beyond 2^24 all f32 are integers, so the loop ends.)
    let start = (integer & q.le(q.splat(0.0))).select(one, q);
    let terms = start.emit(|b, start| {
        let zero = convert::splat(b, start, crate::graph::Number::Int(0))?;
        let results = b.while_loop(
            &[start, zero],
            |b, state| {
                let below =
                    formula(b, [state[0]], |[a]| a.lt(a.splat(1.0))).map_err(stablehlo::Error::body)?;
                let dims: Vec<i64> = (0..b.rank(below) as i64).collect();
                b.reduce_or(below, &dims)
            },
            |b, state| {
                let [a, sum] = formulas(b, [state[0], state[1], x.value], |[a, sum, x]| {
                    let below = a.lt(a.splat(1.0));
                    let zero = a.splat(0.0);
                    [a + below.select(a.splat(1.0), zero), sum + below.select(a.pow(-x), zero)]
                })
                .map_err(stablehlo::Error::body)?;
                Ok(vec![a, sum])
            },
        )?;
        let rest = b.zeta(x.value, results[0])?;
        Ok(b.add(results[1], rest)?)
    });
    let nan = q.splat(f64::NAN);
    let pole = q.splat(f64::INFINITY);
    let undefined = x.ne(x.floor());
    let below = integer.select(pole, undefined.select(nan, terms));
    let value = q.le(q.splat(0.0)).select(below, terms);
    let value = x.eq(pole).select(q.pow(-x), value);
    let value = x.lt(one).select(nan, value);
    x.eq(one).select(pole, value)
}

/// Second derivative of log gamma: reflection below 1/2, recurrence up to 6, asymptotic series.
fn trigamma<'f>(x: Expr<'f>) -> Expr<'f> {
    let reflect = x.lt(x.splat(0.5));
    let sine = (x * PI).sin();
    let start = reflect.select(-(x.splat(PI * PI) / (sine * sine)), x.splat(0.0));
    let mut y = reflect.select(1.0 - x, x);
    let mut sum = start;
    for _ in 0..6 {
        sum = sum + 1.0 / (y * y);
        y = y + 1.0;
    }
    let square = 1.0 / (y * y);
    let series = square * (1.0 / 6.0 - square * (1.0 / 30.0 - square * (1.0 / 42.0)));
    let sum = sum + (1.0 + 0.5 / y + series) / y;
    reflect.select(-sum, sum)
}

/// aten::polygamma(n, self)
fn polygamma(c: &mut Call<'_>) -> Result<Outputs> {
    let (n, x) = (c.int(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    match n {
        ..0 => Err(LoweringError::invalid("polygamma(n, x) does not support negative n.")),
        0 => pointwise(c, dtype, [&x], |[x]| crate::unary::digamma(x)),
        1 => pointwise(c, dtype, [&x], |[x]| trigamma(x)),
        _ => {
            let factorial: f64 = (1..=n.min(1000)).map(|k| k as f64).product();
            let factor = if n % 2 == 0 { -factorial } else { factorial };
            pointwise(c, dtype, [&x], |[x]| zeta(x.splat((n + 1) as f64), x) * factor)
        }
    }
}

/// Euclid's algorithm on magnitudes, until no element changes.
fn greatest_divisor(c: &mut Call<'_>, x: Value, y: Value) -> Result<Value> {
    let [x, y] = formulas(c.b, [x, y], |[x, y]| [x.abs(), y.abs()])?;
    let results = c.b.while_loop(
        &[x, y],
        |b, state| {
            let busy = formula(b, [state[0]], |[a]| a.ne(a.splat_int(0))).map_err(stablehlo::Error::body)?;
            let dims: Vec<i64> = (0..b.rank(busy) as i64).collect();
            b.reduce_or(busy, &dims)
        },
        |b, state| {
            let next = formulas(b, [state[0], state[1]], |[a, b]| {
                let busy = a.ne(a.splat_int(0));
                let divisor = busy.select(a, a.splat_int(1));
                [busy.select(b % divisor, a), busy.select(a, b)]
            })
            .map_err(stablehlo::Error::body)?;
            Ok(next.to_vec())
        },
    )?;
    Ok(results[1])
}

fn gcd(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let [x, y] = broadcast(c, out.dtype, [&x, &y], &out.sizes)?;
    Ok(greatest_divisor(c, x, y)?.into())
}

/// C computes products of narrow integers in 32 bits.
fn lcm(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let [x, y] = broadcast(c, out.dtype, [&x, &y], &out.sizes)?;
    let divisor = greatest_divisor(c, x, y)?;
    let dtype = if out.dtype.size() < 4 { DType::Int32 } else { out.dtype };
    let value = formula(c.b, [x, y, divisor], |[x, y, divisor]| {
        let zero = divisor.eq(divisor.splat_int(0));
        let safe = zero.select(divisor.splat_int(1), divisor);
        let multiple = ((x / safe).to(dtype) * y.to(dtype)).abs().to(out.dtype);
        zero.select(divisor, multiple)
    })?;
    Ok(value.into())
}
