//! Complex numbers as pairs of reals, and values seen as another dtype.

use stablehlo::{Builder, Direction, Value};

use crate::arguments::{Arguments, require};
use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::{Dims, Number};
use crate::registry::OpDef;
use crate::unary::conj_physical;
use crate::views::{operand, take_one};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::complex", complex).refuses(refuse_mixture),
    OpDef::new("aten::polar", polar).refuses(refuse_mixture),
    OpDef::new("aten::real", real).composite(),
    OpDef::new("aten::imag", imag).composite(),
    OpDef::new("prims::real", real).composite(),
    OpDef::new("prims::imag", imag).composite(),
    OpDef::new("aten::conj", conj_physical).composite(),
    OpDef::new("aten::_conj", conj_physical).composite(),
    OpDef::new("prims::conj", conj_physical).composite(),
    OpDef::new("prims::conj_physical", conj_physical).composite(),
    OpDef::new("aten::view_as_real", view_as_real).composite(),
    OpDef::new("aten::view_as_real_copy", view_as_real).composite(),
    OpDef::new("aten::view_as_complex", view_as_complex).composite(),
    OpDef::new("aten::view_as_complex_copy", view_as_complex).composite(),
    OpDef::new("aten::view.dtype", view_dtype).composite(),
    OpDef::new("aten::view_copy.dtype", view_dtype).composite(),
    OpDef::new("prims::view_of_dtype", view_dtype).composite(),
];

fn refuse_mixture(arguments: &Arguments<'_>) -> Result<()> {
    let (re, im) = (arguments.tensor(0)?.dtype, arguments.tensor(1)?.dtype);
    require(re == im || !(re.is_float() && im.is_float()), || {
        format!(
            "Expected object of scalar type {} but got scalar type {} for second argument",
            re.name_in_cpp(),
            im.name_in_cpp()
        )
    })?;
    let Some(out) = arguments.out.first() else { return Ok(()) };
    let expected = if re == DType::Float64 { DType::Complex128 } else { DType::Complex64 };
    let is_known = matches!(re, DType::Float32 | DType::Float64) && re == im;
    require(!is_known || out.dtype == expected, || {
        format!(
            "Expected object of scalar type {} but got scalar type {} for argument 'out'",
            expected.name_in_cpp(),
            out.dtype.name_in_cpp()
        )
    })
}

fn complex(c: &mut Call<'_>) -> Result<Outputs> {
    let (re, im) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let re = c.broadcast(&re, out.dtype.real(), &out.sizes)?;
    let im = c.broadcast(&im, out.dtype.real(), &out.sizes)?;
    Ok(c.b.complex(re, im)?.into())
}

fn polar(c: &mut Call<'_>) -> Result<Outputs> {
    let (abs, angle) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let abs = c.broadcast(&abs, out.dtype.real(), &out.sizes)?;
    let angle = c.broadcast(&angle, out.dtype.real(), &out.sizes)?;
    let re = formula(c.b, [abs, angle], |[abs, angle]| abs * angle.cos())?;
    let im = formula(c.b, [abs, angle], |[abs, angle]| abs * angle.sin())?;
    Ok(c.b.complex(re, im)?.into())
}

fn real(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    Ok(if c.tensor(0)?.dtype.is_complex() { c.b.real(value)? } else { value }.into())
}

fn imag(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    Ok(c.b.imag(value)?.into())
}

fn view_as_real(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    Ok(to_pairs(c.b, value)?.into())
}

fn view_as_complex(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    Ok(from_pairs(c.b, value)?.into())
}

/// A complex value with (real, imaginary) as a new last dimension.
fn to_pairs(b: &mut Builder, x: Value) -> Result<Value> {
    let rank = b.rank(x);
    let mut dims = Dims::from_slice(b.dims(x));
    dims.push(1);
    let (re, im) = (b.real(x)?, b.imag(x)?);
    let (re, im) = (b.reshape(re, &dims)?, b.reshape(im, &dims)?);
    Ok(b.concatenate(&[re, im], rank as i64)?)
}

pub fn from_pairs(b: &mut Builder, x: Value) -> Result<Value> {
    let Some(last) = b.rank(x).checked_sub(1) else {
        return Err(LoweringError::invalid("Input tensor must have one or more dimensions"));
    };
    let (re, im) = (take_one(b, x, last, 0)?, take_one(b, x, last, 1)?);
    Ok(b.complex(re, im)?)
}

/// The same bits as another dtype; the last dimension shrinks or grows with the element size.
fn view_dtype(c: &mut Call<'_>) -> Result<Outputs> {
    let mut value = operand(c)?;
    let out = c.out(0)?.clone();
    let from = c.tensor(0)?.dtype;
    if from == out.dtype {
        return Ok(value.into());
    }
    if from.is_complex() {
        value = to_pairs(c.b, value)?;
        value = merge_last(c.b, value)?;
    }
    if from.is_bool() {
        value = c.convert(value, DType::UInt8)?;
    }
    let target = if out.dtype.is_bool() { DType::UInt8 } else { out.dtype.real() };
    let from = convert::dtype_of(c.b, value)?;
    if from.size() > target.size() {
        value = c.b.bitcast_convert(value, target.element_type())?;
        value = merge_last(c.b, value)?;
    } else {
        if from.size() < target.size() {
            value = split_last(c.b, value, (target.size() / from.size()) as i64)?;
        }
        value = c.b.bitcast_convert(value, target.element_type())?;
    }
    if out.dtype.is_complex() {
        value = split_last(c.b, value, 2)?;
        value = from_pairs(c.b, value)?;
    }
    if out.dtype.is_bool() {
        let zero = convert::splat(c.b, value, Number::Int(0))?;
        value = c.b.compare(value, zero, Direction::Ne)?;
    }
    Ok(value.into())
}

fn merge_last(b: &mut Builder, x: Value) -> Result<Value> {
    let mut dims = Dims::from_slice(b.dims(x));
    let pieces = dims.pop().unwrap_or(1);
    match dims.last_mut() {
        Some(last) => *last *= pieces,
        None => dims.push(pieces),
    }
    Ok(b.reshape(x, &dims)?)
}

fn split_last(b: &mut Builder, x: Value, pieces: i64) -> Result<Value> {
    let mut dims = Dims::from_slice(b.dims(x));
    match dims.last_mut() {
        Some(last) if *last % pieces == 0 => *last /= pieces,
        _ => {
            return Err(LoweringError::invalid(format!(
                "self.size(-1) must be divisible by {pieces} to view as a wider dtype"
            )));
        }
    }
    dims.push(pieces);
    Ok(b.reshape(x, &dims)?)
}
