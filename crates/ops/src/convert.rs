//! Casts, constants and broadcasting with PyTorch's rules.

use stablehlo::{Builder, Direction, Literal, Value};

use crate::dtype::{Category, DType};
use crate::error::LoweringError;
use crate::graph::Number;

type Result<T> = std::result::Result<T, LoweringError>;

/// The dtype that PyTorch gives a number: int64, float64, bool, complex128.
pub fn number_dtype(number: Number) -> DType {
    match number {
        Number::Bool(_) => DType::Bool,
        Number::Int(_) => DType::Int64,
        Number::Float(_) => DType::Float64,
        Number::Complex(..) => DType::Complex128,
    }
}

pub fn dtype_of(b: &Builder, value: Value) -> Result<DType> {
    let elem = b.elem(value);
    DType::from_element_type(elem)
        .ok_or_else(|| LoweringError::unsupported(format!("PyTorch has no dtype for {elem}")))
}

/// PyTorch's cast of every element.
///
/// Floats that an integer type cannot hold are undefined in C++; here int32 and int64 saturate and NaN gives 0 (XLA's
/// rule), narrower integers wrap as they do on x86.
pub fn convert(b: &mut Builder, value: Value, to: DType) -> Result<Value> {
    let from = dtype_of(b, value)?;
    if from == to {
        return Ok(value);
    }
    match (from.category(), to.category()) {
        (_, Category::Bool) => {
            let zero = splat(b, value, Number::Int(0))?;
            Ok(b.compare(value, zero, Direction::Ne)?)
        }
        (Category::Complex, Category::Complex) => Ok(b.convert(value, to.element_type())?),
        (Category::Complex, _) => {
            let real = b.real(value)?;
            convert(b, real, to)
        }
        (_, Category::Complex) => {
            let real = convert(b, value, to.real())?;
            let imag = splat(b, real, Number::Int(0))?;
            Ok(b.complex(real, imag)?)
        }
        (Category::Bool, Category::Float) => {
            // XLA makes a selection of the product of a number and a converted truth value, which takes 0 for
            // 0 * NaN, 0 * inf and 0 / 0.
            let dims = b.ty(value).dims.clone();
            let (one, zero) = (constant(b, Number::Int(1), to)?, constant(b, Number::Int(0), to)?);
            let (one, zero) = (b.broadcast_scalar(one, &dims)?, b.broadcast_scalar(zero, &dims)?);
            Ok(b.select(value, one, zero)?)
        }
        (Category::Float, Category::Int) => {
            let wide = match to {
                DType::Int8 | DType::Int16 | DType::UInt16 => Some(DType::Int32),
                DType::UInt8 | DType::UInt32 => Some(DType::Int64),
                _ => None,
            };
            let value = match wide {
                Some(wide) => b.convert(value, wide.element_type())?,
                None => value,
            };
            Ok(b.convert(value, to.element_type())?)
        }
        (_, Category::Float) if to.is_float8() => to_float8(b, value, to),
        _ => Ok(b.convert(value, to.element_type())?),
    }
}

/// As CPU kernels do, through float32. What float8_e4m3fn cannot hold becomes its largest number, infinities too.
fn to_float8(b: &mut Builder, value: Value, to: DType) -> Result<Value> {
    const LARGEST_E4M3FN: i64 = 448;
    let mut value = b.convert(value, DType::Float32.element_type())?;
    if to == DType::Float8E4M3FN {
        let low = constant(b, Number::Int(-LARGEST_E4M3FN), DType::Float32)?;
        let high = constant(b, Number::Int(LARGEST_E4M3FN), DType::Float32)?;
        value = b.clamp(low, value, high)?;
    }
    let value = round_to_float8(b, value, to)?;
    Ok(b.convert(value, to.element_type())?)
}

/// Rounds f32 values to what `to` can hold: XLA's CPU compiler rounds to float16 on the way, and so twice.
fn round_to_float8(b: &mut Builder, value: Value, to: DType) -> Result<Value> {
    let (mantissa_bits, least_exponent) = match to {
        DType::Float8E4M3FN => (3, -6),
        DType::Float8E4M3FNUZ => (3, -7),
        DType::Float8E5M2 => (2, -14),
        _ => (2, -15),
    };
    let normal = b.reduce_precision(value, 8, mantissa_bits)?;
    let rounded = with_subnormal(b, value, normal, least_exponent, mantissa_bits)?;
    if !matches!(to, DType::Float8E4M3FNUZ | DType::Float8E5M2FNUZ) {
        return Ok(rounded);
    }
    // Where they have zeros of one sign only, the bits of the other are NaN.
    let zero = splat(b, value, Number::Float(0.0))?;
    let is_zero = b.compare(rounded, zero, Direction::Eq)?;
    Ok(b.select(is_zero, zero, rounded)?)
}

/// `normal`, which is `value` rounded to a format's normal numbers; below the least of those, 2^least_exponent, the
/// numbers of the format lie equally far apart.
fn with_subnormal(
    b: &mut Builder,
    value: Value,
    normal: Value,
    least_exponent: i32,
    mantissa_bits: i32,
) -> Result<Value> {
    let spacing = 2f64.powi(least_exponent - mantissa_bits);
    let [up, down] =
        [splat(b, value, Number::Float(1.0 / spacing))?, splat(b, value, Number::Float(spacing))?];
    let steps = b.multiply(value, up)?;
    let steps = b.round_nearest_even(steps)?;
    let small = b.multiply(steps, down)?;
    let magnitude = b.abs(value)?;
    let least = splat(b, value, Number::Float(2f64.powi(least_exponent)))?;
    let is_small = b.compare(magnitude, least, Direction::Lt)?;
    Ok(b.select(is_small, small, normal)?)
}

/// Rounds f32 or f64 values to the precision and range of a narrower float type.
pub fn round_to(b: &mut Builder, value: Value, to: DType) -> Result<Value> {
    let (exponent_bits, mantissa_bits) = match to {
        DType::BFloat16 => (8, 7),
        DType::Float16 => (5, 10),
        DType::Float32 => (8, 23),
        _ if to.is_float8() => {
            // Formats without infinities are none that a number of bits describes.
            let wide = dtype_of(b, value)?;
            let narrow = convert(b, value, to)?;
            return convert(b, narrow, wide);
        }
        _ => return Ok(value),
    };
    if dtype_of(b, value)? == to {
        return Ok(value);
    }
    let rounded = b.reduce_precision(value, exponent_bits, mantissa_bits)?;
    // XLA rounds to zero what is subnormal in the narrow type. In half precision that is no small part of its range.
    match to {
        DType::Float16 => with_subnormal(b, value, rounded, -14, mantissa_bits),
        _ => Ok(rounded),
    }
}

/// A 0-d constant: the number cast to `dtype` as C++ casts it.
pub fn constant(b: &mut Builder, number: Number, dtype: DType) -> Result<Value> {
    Ok(b.constant(dtype.element_type(), literal(number, dtype))?)
}

/// A constant of the type and dimensions of `like`.
pub fn splat(b: &mut Builder, like: Value, number: Number) -> Result<Value> {
    let dtype = dtype_of(b, like)?;
    let scalar = constant(b, number, dtype)?;
    let dims = b.ty(like).dims.clone();
    Ok(b.broadcast_scalar(scalar, &dims)?)
}

/// Whether the number is zero once cast to `dtype`.
pub fn is_zero(number: Number, dtype: DType) -> bool {
    match literal(number, dtype) {
        Literal::Bool(value) => !value,
        Literal::I64(value) => value == 0,
        Literal::U64(value) => value == 0,
        Literal::F64(value) => value == 0.0,
        Literal::Complex(re, im) => re == 0.0 && im == 0.0,
    }
}

fn literal(number: Number, dtype: DType) -> Literal {
    let (re, im) = match number {
        Number::Bool(v) => (f64::from(u8::from(v)), 0.0),
        Number::Int(v) => (v as f64, 0.0),
        Number::Float(v) => (v, 0.0),
        Number::Complex(re, im) => (re, im),
    };
    match dtype.category() {
        Category::Bool => Literal::Bool(re != 0.0 || im != 0.0),
        Category::Int => {
            let wide = if let Number::Int(v) = number { v } else { re as i64 };
            match dtype {
                DType::Int8 => Literal::I64(wide as i8 as i64),
                DType::Int16 => Literal::I64(wide as i16 as i64),
                DType::Int32 => Literal::I64(wide as i32 as i64),
                DType::UInt8 => Literal::I64(wide as u8 as i64),
                DType::UInt16 => Literal::I64(wide as u16 as i64),
                DType::UInt32 => Literal::I64(wide as u32 as i64),
                DType::UInt64 => Literal::U64(wide as u64),
                _ => Literal::I64(wide),
            }
        }
        Category::Float => match number {
            Number::Int(v) => Literal::I64(v),
            _ => Literal::F64(re),
        },
        Category::Complex => Literal::Complex(re, im),
    }
}

/// Expands to `dims` by PyTorch's rule: dimensions are aligned at the right, those of size 1 are repeated.
pub fn broadcast_to(b: &mut Builder, value: Value, dims: &[i64]) -> Result<Value> {
    let from = b.ty(value).dims.clone();
    if from[..] == *dims {
        return Ok(value);
    }
    if from.is_empty() {
        return Ok(b.broadcast_scalar(value, dims)?);
    }
    let Some(offset) = dims.len().checked_sub(from.len()) else {
        return Err(LoweringError::unsupported(format!("expanding sizes {from:?} to {dims:?}")));
    };
    let mapping: Vec<i64> = (offset..dims.len()).map(|dim| dim as i64).collect();
    Ok(b.broadcast_in_dim(value, dims, &mapping)?)
}
