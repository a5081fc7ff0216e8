//! Elementwise functions of three tensors, and selections.

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::elementwise::pointwise;
use crate::error::LoweringError;
use crate::formula::{Expr, formula};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::addcdiv", |c| add_scaled(c, |x, y, z| x + y / z)).ones(&[3]),
    OpDef::new("aten::addcmul", |c| add_scaled(c, |x, y, z| x + y * z)).ones(&[3]),
    OpDef::new("aten::clamp", clamp),
    OpDef::new("aten::clamp.Tensor", clamp),
    OpDef::new("aten::clamp_max", |c| bound(c, |x, y| x.min(y))),
    OpDef::new("aten::clamp_max.Tensor", |c| bound(c, |x, y| x.min(y))),
    OpDef::new("aten::clamp_min", |c| bound(c, |x, y| x.max(y))),
    OpDef::new("aten::clamp_min.Tensor", |c| bound(c, |x, y| x.max(y))),
    OpDef::new("aten::lerp.Scalar", lerp),
    OpDef::new("aten::lerp.Tensor", lerp),
    OpDef::new("aten::masked_fill.Scalar", masked_fill),
    OpDef::new("aten::masked_fill.Tensor", masked_fill),
    OpDef::new("aten::where.self", select),
    OpDef::new("prims::where", select).composite(),
];

/// base + value * (a ∘ b), with value at position 3; CPU multiplies it into a.
fn add_scaled(
    c: &mut Call<'_>,
    build: impl for<'f> FnOnce(Expr<'f>, Expr<'f>, Expr<'f>) -> Expr<'f>,
) -> Result<Outputs> {
    let (x, y, z) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype.opmath();
    if c.is_one(3) {
        return pointwise(c, dtype, [&x, &y, &z], |[x, y, z]| build(x, y, z));
    }
    let value = c.tensor(3)?;
    pointwise(c, dtype, [&x, &y, &z, &value], |[x, y, z, value]| build(x, value * y, z))
}

/// min(max(x, low), high): high wins over low, and NaN in any operand over both.
fn clamp(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.dtype;
    let dtype = bound_type(out);
    match (c.opt_tensor(1)?, c.opt_tensor(2)?) {
        (Some(low), Some(high)) => {
            pointwise(c, dtype, [&x, &low, &high], |[x, low, high]| saturate(x.max(low).min(high), out))
        }
        (Some(low), None) => pointwise(c, dtype, [&x, &low], |[x, low]| saturate(x.max(low), out)),
        (None, Some(high)) => pointwise(c, dtype, [&x, &high], |[x, high]| saturate(x.min(high), out)),
        (None, None) => {
            Err(LoweringError::invalid("torch.clamp: At least one of 'min' or 'max' must not be None"))
        }
    }
}

fn bound(c: &mut Call<'_>, build: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.dtype;
    pointwise(c, bound_type(out), [&x, &y], |[x, y]| saturate(build(x, y), out))
}

/// Bounds may lie outside a narrow integer type: a clamp of uint8 at -1 does nothing.
pub fn bound_type(dtype: DType) -> DType {
    match dtype {
        DType::UInt8 | DType::Int8 | DType::Int16 | DType::Int32 | DType::UInt16 | DType::UInt32 => {
            DType::Int64
        }
        dtype => dtype,
    }
}

/// The nearest values of a narrow integer type. (CPU refuses bounds that no value of the type satisfies.)
pub fn saturate<'f>(x: Expr<'f>, dtype: DType) -> Expr<'f> {
    let (low, high) = match dtype {
        DType::UInt8 => (0, u8::MAX.into()),
        DType::UInt16 => (0, u16::MAX.into()),
        DType::UInt32 => (0, u32::MAX.into()),
        DType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DType::Int32 => (i32::MIN.into(), i32::MAX.into()),
        _ => return x,
    };
    x.max(x.splat_int(low)).min(x.splat_int(high))
}

/// Exact at both ends: from the end when the weight is at least a half.
pub fn lerp_formula<'f>(start: Expr<'f>, end: Expr<'f>, weight: Expr<'f>) -> Expr<'f> {
    let magnitude = weight.abs();
    let difference = end - start;
    let near = magnitude.lt(magnitude.splat(0.5));
    near.select(start + weight * difference, end - difference * (1.0 - weight))
}

fn lerp(c: &mut Call<'_>) -> Result<Outputs> {
    let (start, end, weight) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&start, &end, &weight], |[start, end, weight]| lerp_formula(start, end, weight))
}

/// aten::masked_fill(self, mask, value)
fn masked_fill(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, mask, value) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let out = c.out(0)?.clone();
    let mask = c.broadcast(&mask, DType::Bool, &out.sizes)?;
    let x = c.broadcast(&x, out.dtype, &out.sizes)?;
    let value = c.broadcast(&value, out.dtype, &out.sizes)?;
    Ok(formula(c.b, [mask, value, x], |[mask, value, x]| mask.select(value, x))?.into())
}

/// aten::where(condition, self, other)
fn select(c: &mut Call<'_>) -> Result<Outputs> {
    let (condition, x, y) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let out = c.out(0)?.clone();
    let condition = c.broadcast(&condition, DType::Bool, &out.sizes)?;
    let x = c.broadcast(&x, out.dtype, &out.sizes)?;
    let y = c.broadcast(&y, out.dtype, &out.sizes)?;
    Ok(formula(c.b, [condition, x, y], |[condition, x, y]| condition.select(x, y))?.into())
}
