//! Hyperbolic sine and cosine of real numbers. CHLO's add log(1/2) to the exponent, which costs digits where it is large.

use stablehlo::ElementType;

use crate::formula::Expr;

/// From here on exp(-2x) does not count, in any precision.
const LARGE: f64 = 20.0;

/// `factor * e^x`, also where the exponential alone overflows.
pub fn times_exp<'f>(factor: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let limit: f64 = if x.elem() == ElementType::F64 { 709.0 } else { 88.0 };
    let is_large = x.gt(x.splat(limit));
    let product = factor * is_large.select(x - limit, x).exp();
    is_large.select(product * limit.exp(), product)
}

/// `factor * sinh x` for x >= 0.
pub fn times_sinh<'f>(factor: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let exp = x.min(x.splat(LARGE)).expm1();
    let small = factor * ((exp + exp / (exp + 1.0)) * 0.5);
    x.gt(x.splat(LARGE)).select(times_exp(factor * 0.5, x), small)
}

/// `factor * cosh x` for x >= 0.
pub fn times_cosh<'f>(factor: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let exp = x.min(x.splat(LARGE)).exp();
    let small = factor * ((exp + 1.0 / exp) * 0.5);
    x.gt(x.splat(LARGE)).select(times_exp(factor * 0.5, x), small)
}

pub fn sinh<'f>(x: Expr<'f>) -> Expr<'f> {
    let magnitude = times_sinh(x.splat(1.0), x.abs());
    x.eq(x.splat(0.0)).select(x, x.lt(x.splat(0.0)).select(-magnitude, magnitude))
}

pub fn cosh<'f>(x: Expr<'f>) -> Expr<'f> {
    times_cosh(x.splat(1.0), x.abs())
}
