//! Elementwise functions of one tensor.

use std::f64::consts::{LN_2, LN_10, PI};

use crate::call::{Call, Outputs};
use crate::complex_functions;
use crate::dtype::{Category, DType};
use crate::elementwise::{pointwise, unary};
use crate::error::LoweringError;
use crate::formula::Expr;
use crate::graph::Number;
use crate::registry::OpDef;
use crate::special;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::abs", abs),
    OpDef::new("aten::acos", |c| unary(c, |x| x.acos())),
    OpDef::new("aten::acosh", |c| unary(c, |x| x.acosh())),
    OpDef::new("aten::angle", angle),
    OpDef::new("aten::asin", |c| unary(c, |x| x.asin())),
    OpDef::new("aten::asinh", |c| unary(c, |x| x.asinh())),
    OpDef::new("aten::atan", |c| unary(c, |x| x.atan())),
    OpDef::new("aten::atanh", |c| unary(c, |x| x.atanh())),
    OpDef::new("aten::bitwise_not", |c| unary(c, |x| !x)),
    OpDef::new("aten::ceil", |c| integral_identity(c, |x| x.ceil())),
    OpDef::new("aten::_conj_physical", conj_physical),
    OpDef::new("aten::conj_physical", conj_physical).composite(),
    // Its functional form decomposes, it does not: PyTorch's kernel looks for one of the device by its name.
    OpDef::new("aten::conj_physical_", conj_physical),
    OpDef::new("aten::cos", |c| unary(c, |x| x.cos())),
    OpDef::new("aten::cosh", |c| unary(c, |x| x.cosh())),
    OpDef::new("aten::deg2rad", |c| unary(c, |x| x * (PI / 180.0))),
    OpDef::new("aten::digamma", |c| unary(c, digamma)),
    OpDef::new("aten::erf", |c| unary(c, |x| x.erf())),
    OpDef::new("aten::erfc", |c| unary(c, |x| x.erfc())),
    OpDef::new("aten::erfinv", |c| unary(c, special::erfinv)),
    OpDef::new("aten::exp", |c| unary(c, |x| x.exp())),
    OpDef::new("aten::exp2", |c| unary(c, exp2)),
    OpDef::new("aten::expm1", |c| unary(c, |x| x.expm1())),
    OpDef::new("aten::floor", |c| integral_identity(c, |x| x.floor())),
    OpDef::new("aten::frac", |c| unary(c, |x| x - trunc(x))),
    OpDef::new("aten::isinf", |c| classify(c, |x| x.is_inf())),
    OpDef::new("aten::isnan", |c| classify(c, |x| x.is_nan())),
    OpDef::new("aten::isneginf", |c| classify(c, |x| x.eq(x.splat(f64::NEG_INFINITY)))),
    OpDef::new("aten::isposinf", |c| classify(c, |x| x.eq(x.splat(f64::INFINITY)))),
    OpDef::new("aten::lgamma", |c| unary(c, |x| x.lgamma())),
    OpDef::new("aten::log", |c| unary(c, |x| x.log())),
    OpDef::new("aten::log10", |c| unary(c, |x| x.log() / LN_10)),
    OpDef::new("aten::log1p", |c| unary(c, |x| x.log1p())),
    OpDef::new("aten::log2", |c| unary(c, |x| x.log() / LN_2)),
    OpDef::new("aten::logical_not", logical_not),
    OpDef::new("aten::logit", logit),
    OpDef::new("aten::nan_to_num", nan_to_num),
    OpDef::new("aten::neg", |c| unary(c, |x| -x)),
    OpDef::new("aten::rad2deg", |c| unary(c, |x| x * (180.0 / PI))),
    OpDef::new("aten::reciprocal", |c| unary(c, reciprocal)),
    OpDef::new("aten::round", |c| integral_identity(c, |x| x.round_even())),
    OpDef::new("aten::round.decimals", round_decimals),
    OpDef::new("aten::rsqrt", |c| unary(c, |x| x.rsqrt())),
    OpDef::new("aten::sgn", sign),
    OpDef::new("aten::sigmoid", |c| unary(c, |x| x.logistic())),
    OpDef::new("aten::sign", sign),
    OpDef::new("aten::signbit", signbit),
    OpDef::new("aten::sin", |c| unary(c, |x| x.sin())),
    OpDef::new("aten::sinc", |c| unary(c, sinc)),
    OpDef::new("aten::sinh", |c| unary(c, |x| x.sinh())),
    OpDef::new("aten::special_entr", |c| unary(c, entr)),
    OpDef::new("aten::sqrt", |c| unary(c, |x| x.sqrt())),
    OpDef::new("aten::tan", |c| unary(c, |x| x.tan())),
    OpDef::new("aten::tanh", |c| unary(c, |x| x.tanh())),
    OpDef::new("aten::trunc", |c| integral_identity(c, trunc)),
];

fn abs(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    if x.dtype.is_unsigned() {
        return Ok(c.value(&x, x.dtype)?.into());
    }
    pointwise(c, x.dtype, [&x], |[x]| x.abs())
}

pub fn trunc<'f>(x: Expr<'f>) -> Expr<'f> {
    x.lt(x.splat(0.0)).select(x.ceil(), x.floor())
}

fn exp2<'f>(x: Expr<'f>) -> Expr<'f> {
    if x.elem().is_complex() { (x * LN_2).exp() } else { x.splat(2.0).pow(x) }
}

fn reciprocal<'f>(x: Expr<'f>) -> Expr<'f> {
    if x.elem().is_complex() { complex_functions::reciprocal(x) } else { 1.0 / x }
}

/// CPU gives -inf at +0 and +inf at -0 (a limit), NaN at negative integers.
pub fn digamma<'f>(x: Expr<'f>) -> Expr<'f> {
    x.eq(x.splat(0.0)).select(-(1.0 / x), x.digamma())
}

fn sinc<'f>(x: Expr<'f>) -> Expr<'f> {
    let scaled = x * PI;
    x.eq(x.splat(0.0)).select(x.splat(1.0), scaled.sin() / scaled)
}

fn entr<'f>(x: Expr<'f>) -> Expr<'f> {
    let zero = x.splat(0.0);
    let inside = x.gt(zero).select(-(x * x.log()), x.eq(zero).select(zero, x.splat(f64::NEG_INFINITY)));
    x.is_nan().select(x, inside)
}

/// Functions that leave integers alone.
fn integral_identity(c: &mut Call<'_>, build: impl for<'f> FnOnce(Expr<'f>) -> Expr<'f>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    if x.dtype.is_integral(true) {
        return Ok(c.value(&x, x.dtype)?.into());
    }
    unary(c, build)
}

/// Predicates that no integer fulfils; a complex number does if a part does.
fn classify(c: &mut Call<'_>, build: impl for<'f> Fn(Expr<'f>) -> Expr<'f>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    match x.dtype.category() {
        Category::Bool | Category::Int => Ok(c.full(Number::Bool(false), DType::Bool, &x.sizes)?.into()),
        Category::Float => pointwise(c, x.dtype, [&x], |[x]| build(x)),
        Category::Complex => pointwise(c, x.dtype, [&x], |[x]| build(x.real()) | build(x.imag())),
    }
}

fn logical_not(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    pointwise(c, DType::Bool, [&x], |[x]| !x)
}

pub fn conj_physical(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let value = c.value(&x, x.dtype)?;
    if !x.dtype.is_complex() {
        return Ok(value.into());
    }
    let (real, imag) = (c.b.real(value)?, c.b.imag(value)?);
    let imag = c.b.negate(imag)?;
    Ok(c.b.complex(real, imag)?.into())
}

/// NaN has sign 0 on CPU.
fn sign(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dtype = x.dtype;
    match dtype.category() {
        Category::Bool => Ok(c.value(&x, dtype)?.into()),
        Category::Int if dtype.is_unsigned() => {
            pointwise(c, dtype, [&x], |[x]| x.ne(x.splat_int(0)).to(dtype))
        }
        Category::Float => {
            unary(c, |x| x.gt(x.splat(0.0)).to(dtype.opmath()) - x.lt(x.splat(0.0)).to(dtype.opmath()))
        }
        _ => unary(c, |x| x.sign()),
    }
}

fn signbit(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let value = c.value(&x, x.dtype)?;
    if x.dtype.is_unsigned() {
        return Ok(c.full(Number::Bool(false), DType::Bool, &x.sizes)?.into());
    }
    let bits = match (x.dtype.is_float(), x.dtype.size()) {
        (false, _) => value,
        (true, 1) => c.b.bitcast_convert(value, DType::Int8.element_type())?,
        (true, 2) => c.b.bitcast_convert(value, DType::Int16.element_type())?,
        (true, 4) => c.b.bitcast_convert(value, DType::Int32.element_type())?,
        (true, _) => c.b.bitcast_convert(value, DType::Int64.element_type())?,
    };
    let negative = crate::formula::formula(c.b, [bits], |[x]| x.lt(x.splat_int(0)))?;
    Ok(negative.into())
}

/// The angle of a real number is 0 or pi; NaN stays.
fn angle(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    if x.dtype.is_complex() {
        return pointwise(c, x.dtype, [&x], |[x]| x.imag().atan2(x.real()));
    }
    unary(c, |x| {
        let real = x.lt(x.splat(0.0)).select(x.splat(PI), x.splat(0.0));
        x.is_nan().select(x, real)
    })
}

/// aten::logit(self, eps=None)
fn logit(c: &mut Call<'_>) -> Result<Outputs> {
    let eps = c.opt_float(1)?;
    unary(c, |x| {
        let x = match eps {
            None => x,
            Some(eps) => {
                let (low, high) = (x.splat(eps), x.splat(1.0) - x.splat(eps));
                x.lt(low).select(low, x.gt(high).select(high, x))
            }
        };
        (x / (1.0 - x)).log()
    })
}

/// aten::nan_to_num(self, nan=None, posinf=None, neginf=None)
fn nan_to_num(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dtype = x.dtype;
    let (nan, posinf, neginf) = (c.opt_float(1)?, c.opt_float(2)?, c.opt_float(3)?);
    match dtype.category() {
        Category::Bool | Category::Int => Ok(c.value(&x, dtype)?.into()),
        Category::Float => pointwise(c, dtype, [&x], |[x]| replace_special(x, nan, posinf, neginf)),
        Category::Complex => pointwise(c, dtype, [&x], |[x]| {
            let real = replace_special(x.real(), nan, posinf, neginf);
            real.apply2(replace_special(x.imag(), nan, posinf, neginf), stablehlo::Builder::complex)
        }),
    }
}

fn replace_special<'f>(x: Expr<'f>, nan: Option<f64>, posinf: Option<f64>, neginf: Option<f64>) -> Expr<'f> {
    let bound = |given: Option<f64>, max: bool| given.map_or_else(|| finite_bound(x, max), |v| x.splat(v));
    let x_low = x.eq(x.splat(f64::NEG_INFINITY)).select(bound(neginf, false), x);
    let x_high = x.eq(x.splat(f64::INFINITY)).select(bound(posinf, true), x_low);
    x.is_nan().select(x.splat(nan.unwrap_or(0.0)), x_high)
}

/// The largest or least finite value of a float's own type.
fn finite_bound<'f>(x: Expr<'f>, max: bool) -> Expr<'f> {
    x.emit(|b, v| {
        let largest = match crate::convert::dtype_of(b, v)? {
            DType::Float16 => 65504.0,
            DType::BFloat16 => 3.3895313892515355e38,
            DType::Float32 => f64::from(f32::MAX),
            DType::Float64 => f64::MAX,
            other => return Err(LoweringError::unsupported(format!("finite bounds of {other}"))),
        };
        crate::convert::splat(b, v, Number::Float(if max { largest } else { -largest }))
    })
}

/// aten::round.decimals(self, *, decimals)
fn round_decimals(c: &mut Call<'_>) -> Result<Outputs> {
    let decimals = c.int(1)?;
    integral_identity(c, |x| {
        let power = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
        match decimals {
            0 => x.round_even(),
            d if d > 0 => (x * power).round_even() / power,
            _ => (x / power).round_even() * power,
        }
    })
}
