//! Elementary functions of complex numbers as C99 (Annex G) defines them: both sides of branch cuts told by the signs of
//! zeros, infinities that do not become NaN. XLA's own hold where both parts are positive; symmetries do the rest.

use std::f64::consts::{FRAC_PI_2, LN_2};

use stablehlo::Builder;

use crate::binary::signed_bits;
use crate::formula::{Expr, formula};
use crate::hyperbolic::{times_cosh, times_exp, times_sinh};

fn parts<'f>(z: Expr<'f>) -> [Expr<'f>; 2] {
    [z.real(), z.imag()]
}

fn join<'f>(re: Expr<'f>, im: Expr<'f>) -> Expr<'f> {
    re.apply2(im, Builder::complex)
}

/// `x`, negated where `sign` has a sign, that of zero included.
fn flip<'f>(x: Expr<'f>, sign: Expr<'f>) -> Expr<'f> {
    let negative = sign.emit(|b, sign| {
        let bits = signed_bits(b, sign)?;
        formula(b, [bits], |[bits]| bits.lt(bits.splat_int(0)))
    });
    negative.select(-x, x)
}

fn is_zero<'f>(x: Expr<'f>) -> Expr<'f> {
    x.eq(x.splat(0.0))
}

fn is_finite<'f>(x: Expr<'f>) -> Expr<'f> {
    (x * 0.0).eq(x.splat(0.0))
}

/// y + ix. What is true of sine and tangent is true of the hyperbolic functions with the parts exchanged.
fn exchanged<'f>(z: Expr<'f>) -> Expr<'f> {
    join(z.imag(), z.real())
}

/// f(z) from f(x + iy) of magnitudes, for f(-z) = -f(z) and f(conj z) = conj f(z).
fn odd<'f>(z: Expr<'f>, f: impl FnOnce(Expr<'f>, Expr<'f>) -> [Expr<'f>; 2]) -> Expr<'f> {
    let [x, y] = parts(z);
    let [re, im] = f(x.abs(), y.abs());
    join(flip(re, x), flip(im, y))
}

pub fn abs<'f>(z: Expr<'f>) -> Expr<'f> {
    let [x, y] = parts(z);
    let infinity = x.splat(f64::INFINITY);
    (x.is_inf() | y.is_inf()).select(infinity, z.apply(Builder::abs))
}

pub fn exp<'f>(z: Expr<'f>) -> Expr<'f> {
    let [x, y] = parts(z);
    let (zero, infinity) = (x.splat(0.0), x.splat(f64::INFINITY));
    // The angle is not known.
    let vanishes = x.eq(-infinity) & !is_finite(y);
    let grows = x.eq(infinity) & !is_finite(y);
    let re = vanishes.select(zero, grows.select(infinity, times_exp(y.cos(), x)));
    let im = vanishes.select(flip(zero, y), times_exp(y.sin(), x));
    join(re, is_zero(y).select(y, im))
}

/// As PyTorch computes it, overflow included.
pub fn exp_minus_one<'f>(z: Expr<'f>) -> Expr<'f> {
    let [x, y] = parts(z);
    let half = (y * 0.5).sin();
    join(x.expm1() * y.cos() - half * half * 2.0, x.exp() * y.sin())
}

pub fn log<'f>(z: Expr<'f>) -> Expr<'f> {
    let [x, y] = parts(z);
    let [re, im] = parts(z.apply(Builder::log));
    let infinity = x.splat(f64::INFINITY);
    join((x.is_inf() | y.is_inf()).select(infinity, re), im)
}

pub fn log_plus_one<'f>(z: Expr<'f>) -> Expr<'f> {
    let [x, y] = parts(z);
    let [re, im] = parts(z.apply(Builder::log_plus_one));
    // The square of y may vanish.
    let re = x.eq(x.splat(-1.0)).select(y.abs().log(), re);
    join((is_zero(x) & is_zero(y)).select(x, re), im)
}

pub fn sqrt<'f>(z: Expr<'f>) -> Expr<'f> {
    let [x, y] = parts(z);
    let [re, im] = parts(join(x, y.abs()).apply(Builder::sqrt));
    let infinity = x.splat(f64::INFINITY);
    let re = (y.is_inf() | x.eq(infinity)).select(infinity, re);
    let im = (y.is_inf() | x.eq(-infinity)).select(infinity, im.abs());
    join(re, flip(im, y))
}

/// As PyTorch computes it.
pub fn rsqrt<'f>(z: Expr<'f>) -> Expr<'f> {
    reciprocal(z.sqrt())
}

/// As PyTorch computes it.
pub fn logistic<'f>(z: Expr<'f>) -> Expr<'f> {
    reciprocal((-z).exp() + 1.0)
}

pub fn sin<'f>(z: Expr<'f>) -> Expr<'f> {
    odd(z, |x, y| {
        let zero = x.splat(0.0);
        let (re, im) = (times_cosh(x.sin(), y), times_sinh(x.cos(), y));
        let grows = y.is_inf() & !is_finite(x);
        let im = (is_zero(y) & !is_finite(x)).select(zero, grows.select(y, im));
        [is_zero(x).select(zero, re), im]
    })
}

pub fn cos<'f>(z: Expr<'f>) -> Expr<'f> {
    let [x, y] = parts(z);
    let (re, im) = (times_cosh(x.cos(), y.abs()), times_sinh(x.abs().sin(), y.abs()));
    let grows = y.is_inf() & !is_finite(x);
    let im = (is_zero(x) | (is_zero(y) & !is_finite(x))).select(x.splat(0.0), im);
    join(grows.select(y.abs(), re), flip(flip(-im, x), y))
}

pub fn sinh<'f>(z: Expr<'f>) -> Expr<'f> {
    exchanged(sin(exchanged(z)))
}

pub fn cosh<'f>(z: Expr<'f>) -> Expr<'f> {
    let [re, im] = parts(cos(exchanged(z)));
    join(re, -im)
}

pub fn tanh<'f>(z: Expr<'f>) -> Expr<'f> {
    odd(z, |x, y| {
        let zero = x.splat(0.0);
        let [re, im] = parts(join(x, y).apply(Builder::tanh));
        [is_zero(x).select(zero, re), is_zero(y).select(zero, im)]
    })
}

pub fn tan<'f>(z: Expr<'f>) -> Expr<'f> {
    exchanged(tanh(exchanged(z)))
}

/// The imaginary part of an arcsine or arccosine is known beside NaN only where it is infinite.
fn known_or_nan<'f>(im: Expr<'f>, x: Expr<'f>, y: Expr<'f>) -> Expr<'f> {
    (y.is_nan() & !x.is_inf()).select(y, im.abs())
}

pub fn asin<'f>(z: Expr<'f>) -> Expr<'f> {
    odd(z, |x, y| {
        let [re, im] = parts(join(x, y).apply(Builder::asin));
        [is_zero(x).select(x.splat(0.0), re.abs()), known_or_nan(im, x, y)]
    })
}

pub fn asinh<'f>(z: Expr<'f>) -> Expr<'f> {
    exchanged(asin(exchanged(z)))
}

pub fn acos<'f>(z: Expr<'f>) -> Expr<'f> {
    let [x, y] = parts(z);
    let [re, im] = parts(join(x, y.abs()).apply(Builder::acos));
    let re = (is_zero(x) & y.is_nan()).select(x.splat(FRAC_PI_2), re);
    join(re, flip(-known_or_nan(im, x, y), y))
}

pub fn acosh<'f>(z: Expr<'f>) -> Expr<'f> {
    let [re, im] = parts(acos(z));
    join(im.abs(), flip(re, z.imag()))
}

pub fn atanh<'f>(z: Expr<'f>) -> Expr<'f> {
    odd(z, |x, y| {
        let (zero, nan) = (x.splat(0.0), x.splat(f64::NAN));
        let [re, im] = parts(join(x, y).apply(Builder::atanh));
        // The square of y may vanish beside the pole at 1.
        let near = x.eq(x.splat(1.0)) & y.lt(y.splat(1e-9));
        let re = near.select((LN_2 - y.log()) * 0.5, re.abs());
        // Far away and on the imaginary axis one part does not depend on the other.
        let far = x.is_nan() & y.is_inf();
        let vanishes = far | (y.is_nan() & (is_zero(x) | x.is_inf()));
        let unknown = x.is_nan() | y.is_nan();
        [
            vanishes.select(zero, unknown.select(nan, re)),
            far.select(x.splat(FRAC_PI_2), unknown.select(nan, im.abs())),
        ]
    })
}

pub fn atan<'f>(z: Expr<'f>) -> Expr<'f> {
    exchanged(atanh(exchanged(z)))
}

/// Smith's algorithm, as PyTorch and numpy have it; a divisor of 0 gives infinities and NaN.
pub fn divide<'f>(z: Expr<'f>, divisor: Expr<'f>) -> Expr<'f> {
    let [a, b] = parts(z);
    let [c, d] = parts(divisor);
    let by_real = c.abs().ge(d.abs());
    let (large, small) = (by_real.select(c, d), by_real.select(d, c));
    let ratio = small / large;
    // Not the product with its inverse, which may be too small a number.
    let scale = large + small * ratio;
    let re = by_real.select(a + b * ratio, a * ratio + b) / scale;
    let im = by_real.select(b - a * ratio, b * ratio - a) / scale;
    let by_zero = is_zero(c) & is_zero(d);
    let zero = c.splat(0.0);
    join(by_zero.select(a / zero, re), by_zero.select(b / zero, im))
}

/// [`divide`] of 1. XLA takes `ratio + 0` for `ratio`, which loses the sign that the sum of zeros has.
pub fn reciprocal<'f>(z: Expr<'f>) -> Expr<'f> {
    let [c, d] = parts(z);
    let [re, im] = parts(divide(z.splat(1.0), z));
    let turned = c.abs().lt(d.abs()) & is_zero(c / d);
    join(turned.select(flip(c.splat(0.0), d), re), im)
}

/// As C has it.
pub fn power<'f>(z: Expr<'f>, exponent: Expr<'f>) -> Expr<'f> {
    (exponent * z.log()).exp()
}
