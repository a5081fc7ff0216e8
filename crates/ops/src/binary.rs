//! Elementwise arithmetic of two tensors.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::elementwise::{binary, binary_rounded, broadcast, pointwise};
use crate::error::LoweringError;
use crate::formula::{Expr, formula};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    // Forward mode makes tensors of zeros without memory. PyTorch's composites of both Scalar overloads know them.
    OpDef::new("aten::add.Scalar", |c| add_scaled(c, 0, 1, |x, y| x + y)).ones(&[2]).composite(),
    OpDef::new("aten::add.Tensor", |c| add_scaled(c, 0, 1, |x, y| x + y)).ones(&[2]),
    OpDef::new("aten::atan2", |c| binary(c, |y, x| y.atan2(x))),
    OpDef::new("aten::bitwise_and.Scalar", |c| binary(c, |x, y| x & y)),
    OpDef::new("aten::bitwise_and.Scalar_Tensor", |c| binary(c, |x, y| x & y)),
    OpDef::new("aten::bitwise_and.Tensor", |c| binary(c, |x, y| x & y)),
    OpDef::new("aten::bitwise_left_shift.Scalar_Tensor", left_shift),
    OpDef::new("aten::bitwise_left_shift.Tensor", left_shift),
    OpDef::new("aten::bitwise_left_shift.Tensor_Scalar", left_shift),
    OpDef::new("aten::bitwise_or.Scalar", |c| binary(c, |x, y| x | y)),
    OpDef::new("aten::bitwise_or.Scalar_Tensor", |c| binary(c, |x, y| x | y)),
    OpDef::new("aten::bitwise_or.Tensor", |c| binary(c, |x, y| x | y)),
    OpDef::new("aten::bitwise_right_shift.Scalar_Tensor", right_shift),
    OpDef::new("aten::bitwise_right_shift.Tensor", right_shift),
    OpDef::new("aten::bitwise_right_shift.Tensor_Scalar", right_shift),
    OpDef::new("aten::bitwise_xor.Scalar", |c| binary(c, |x, y| x ^ y)),
    OpDef::new("aten::bitwise_xor.Scalar_Tensor", |c| binary(c, |x, y| x ^ y)),
    OpDef::new("aten::bitwise_xor.Tensor", |c| binary(c, |x, y| x ^ y)),
    OpDef::new("aten::copysign.Scalar", |c| binary(c, copysign)),
    OpDef::new("aten::copysign.Tensor", |c| binary(c, copysign)),
    OpDef::new("aten::fmax", fmax),
    OpDef::new("aten::fmin", fmin),
    OpDef::new("aten::heaviside", heaviside),
    OpDef::new("aten::hypot", |c| binary(c, hypot)),
    OpDef::new("aten::ldexp.Tensor", ldexp),
    OpDef::new("aten::__lshift__.Scalar", left_shift),
    OpDef::new("aten::__lshift__.Tensor", left_shift),
    OpDef::new("aten::maximum", |c| binary_rounded(c, |x, y| x.max(y))),
    OpDef::new("aten::minimum", |c| binary_rounded(c, |x, y| x.min(y))),
    OpDef::new("aten::mul.Scalar", |c| binary(c, |x, y| x * y)).composite(),
    OpDef::new("aten::mul.Tensor", |c| binary(c, |x, y| x * y)),
    OpDef::new("aten::nextafter", next_after),
    OpDef::new("aten::__rshift__.Scalar", right_shift),
    OpDef::new("aten::__rshift__.Tensor", right_shift),
    OpDef::new("aten::rsub.Scalar", |c| add_scaled(c, 1, 0, |x, y| x - y)).ones(&[2]),
    OpDef::new("aten::rsub.Tensor", |c| add_scaled(c, 1, 0, |x, y| x - y)).ones(&[2]),
    OpDef::new("aten::special_xlog1py", |c| binary_rounded(c, |x, y| x_times(x, y, y.log1p()))),
    OpDef::new("aten::special_xlog1py.other_scalar", |c| binary_rounded(c, |x, y| x_times(x, y, y.log1p()))),
    OpDef::new("aten::special_xlog1py.self_scalar", |c| binary_rounded(c, |x, y| x_times(x, y, y.log1p()))),
    OpDef::new("aten::sub.Scalar", |c| add_scaled(c, 0, 1, |x, y| x - y)).ones(&[2]),
    OpDef::new("aten::sub.Tensor", |c| add_scaled(c, 0, 1, |x, y| x - y)).ones(&[2]),
    OpDef::new("aten::xlogy.Scalar_Other", |c| binary_rounded(c, |x, y| x_times(x, y, y.log()))),
    OpDef::new("aten::xlogy.Scalar_Self", |c| binary_rounded(c, |x, y| x_times(x, y, y.log()))),
    OpDef::new("aten::xlogy.Tensor", |c| binary_rounded(c, |x, y| x_times(x, y, y.log()))),
    OpDef::new("prims::add", |c| binary(c, |x, y| x + y)).composite(),
    OpDef::new("prims::mul", |c| binary(c, |x, y| x * y)).composite(),
    OpDef::new("prims::sub", |c| binary(c, |x, y| x - y)).composite(),
];

/// The power of two may lie outside the range of floats although the result does not: it is applied in four parts, each
/// exact. The CPU multiplies integers by the power as it is.
fn ldexp(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, exponent) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let dtype = out.dtype.opmath();
    if !exponent.dtype.is_integral(true) || !x.dtype.is_float() {
        return binary(c, |x, y| x * x.splat(2.0).pow(y));
    }
    let (limit, bias, mantissa, bits) = match dtype {
        DType::Float64 => (2200, 1023, 1 << 52, DType::Int64),
        _ => (400, 127, 1 << 23, DType::Int32),
    };
    let x = c.broadcast(&x, dtype, &out.sizes)?;
    let exponent = c.broadcast(&exponent, DType::Int64, &out.sizes)?;
    let value = formula(c.b, [x, exponent], |[x, e]| {
        let e = e.max(e.splat_int(-limit)).min(e.splat_int(limit)).to(bits);
        let part = e / e.splat_int(4);
        let rest = e - part * part.splat_int(3);
        let [part, rest] = [part, rest].map(|n| {
            let biased = (n + n.splat_int(bias)) * n.splat_int(mantissa);
            biased.emit(|b, bits| Ok(b.bitcast_convert(bits, dtype.element_type())?))
        });
        x * part * part * part * rest
    })?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// base ± alpha * scaled, with alpha at position 2.
fn add_scaled(
    c: &mut Call<'_>,
    base: usize,
    scaled: usize,
    build: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>,
) -> Result<Outputs> {
    let (x, y) = (c.tensor(base)?, c.tensor(scaled)?);
    let dtype = c.out(0)?.dtype.opmath();
    if c.is_one(2) {
        return pointwise(c, dtype, [&x, &y], |[x, y]| build(x, y));
    }
    let alpha = c.tensor(2)?;
    pointwise(c, dtype, [&x, &y, &alpha], |[x, y, alpha]| build(x, y * alpha))
}

/// Shift amounts that are negative or reach the width give 0, as XLA has it for amounts read as unsigned.
fn left_shift(c: &mut Call<'_>) -> Result<Outputs> {
    binary(c, |x, y| x.apply2(y, Builder::shift_left))
}

fn right_shift(c: &mut Call<'_>) -> Result<Outputs> {
    if c.out(0)?.dtype.is_unsigned() {
        return binary(c, |x, y| x.apply2(y, Builder::shift_right_logical));
    }
    binary(c, |x, y| x.apply2(y, Builder::shift_right_arithmetic))
}

/// |x| with the sign bit of y, that of -0 and NaN included.
fn copysign<'f>(x: Expr<'f>, y: Expr<'f>) -> Expr<'f> {
    let negative = y.emit(|b, y| {
        let bits = signed_bits(b, y)?;
        formula(b, [bits], |[bits]| bits.lt(bits.splat_int(0)))
    });
    negative.select(-x.abs(), x.abs())
}

/// The bit patterns of floats as signed integers of their width.
pub fn signed_bits(b: &mut Builder, x: Value) -> Result<Value> {
    let integer = match b.elem(x).size_bits() {
        8 => DType::Int8,
        16 => DType::Int16,
        32 => DType::Int32,
        _ => DType::Int64,
    };
    Ok(b.bitcast_convert(x, integer.element_type())?)
}

fn fmax(c: &mut Call<'_>) -> Result<Outputs> {
    if !c.out(0)?.dtype.is_float() {
        return binary_rounded(c, |x, y| x.max(y));
    }
    binary_rounded(c, |x, y| x.is_nan().select(y, y.is_nan().select(x, x.max(y))))
}

fn fmin(c: &mut Call<'_>) -> Result<Outputs> {
    if !c.out(0)?.dtype.is_float() {
        return binary_rounded(c, |x, y| x.min(y));
    }
    binary_rounded(c, |x, y| x.is_nan().select(y, y.is_nan().select(x, x.min(y))))
}

fn heaviside(c: &mut Call<'_>) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    binary(c, |x, y| {
        let zero = x.splat_int(0);
        x.eq(zero).select(y, x.gt(zero).to(dtype.opmath()))
    })
}

/// Infinity wins over NaN.
fn hypot<'f>(x: Expr<'f>, y: Expr<'f>) -> Expr<'f> {
    let (x, y) = (x.abs(), y.abs());
    let (large, small) = (x.max(y), x.min(y));
    let ratio = small / large;
    let root = large * (1.0 + ratio * ratio).sqrt();
    let finite = large.eq(x.splat(0.0)).select(large, root);
    (x.is_inf() | y.is_inf()).select(x.splat(f64::INFINITY), finite)
}

/// x * f(y), 0 where x is 0, NaN where y is NaN.
fn x_times<'f>(x: Expr<'f>, y: Expr<'f>, of_y: Expr<'f>) -> Expr<'f> {
    let product = x.eq(x.splat(0.0)).select(x.splat(0.0), x * of_y);
    y.is_nan().select(y, product)
}

/// Where a bit pattern stands among the numbers in their order, 0 for both zeros. Its own inverse, but for the sign
/// of zero.
fn place<'f>(bits: Expr<'f>, sign_bit: i64) -> Expr<'f> {
    bits.lt(bits.splat_int(0)).select(bits.splat_int(sign_bit) - bits, bits)
}

/// Steps through the bit patterns, so that every float type works. It compares them, too: a processor that takes
/// subnormal numbers for zeros would otherwise stop at them.
fn next_after(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let [x, y] = broadcast(c, out.dtype, [&x, &y], &out.sizes)?;
    let (x_bits, y_bits) = (signed_bits(c.b, x)?, signed_bits(c.b, y)?);
    let sign_bit = match crate::convert::dtype_of(c.b, x_bits)? {
        DType::Int16 => i64::from(i16::MIN),
        DType::Int32 => i64::from(i32::MIN),
        _ => i64::MIN,
    };
    let value = formula(c.b, [x, y, x_bits, y_bits], |[x, y, x_bits, y_bits]| {
        let (from, to) = (place(x_bits, sign_bit), place(y_bits, sign_bit));
        let next = from + from.lt(to).select(from.splat_int(1), from.splat_int(-1));
        let zero = from.splat_int(0);
        let negative = x_bits.lt(zero).select(zero.splat_int(sign_bit), zero);
        let next = next.eq(zero).select(negative, place(next, sign_bit));
        let next = next.emit(|b, v| Ok(b.bitcast_convert(v, out.dtype.element_type())?));
        let moved = from.eq(to).select(y, next);
        x.is_nan().select(x, y.is_nan().select(y, moved))
    })?;
    Ok(value.into())
}
