//! Products of matrices of 8-bit elements with scales.

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::Dims;
use crate::matmul::{Contraction, MATRICES, contract};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_scaled_mm", scaled_mm),
    OpDef::new("aten::_scaled_mm_v2", scaled_mm_v2),
    OpDef::new("aten::_weight_int8pack_mm", weight_int8pack_mm),
];

/// `lhs @ rhs` in float32: bfloat16 holds every float8 number.
fn product(c: &mut Call<'_>) -> Result<Value> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    if !(x.dtype.is_float8() && y.dtype.is_float8()) {
        return Err(LoweringError::unsupported(format!("a scaled product of {} and {}", x.dtype, y.dtype)));
    }
    let (lhs, rhs) = (c.value(&x, DType::BFloat16)?, c.value(&y, DType::BFloat16)?);
    contract(c, lhs, rhs, &MATRICES, DType::Float32)
}

/// Scales for the whole matrix, or one per row of the first operand or column of the second (dimension `dim`).
fn scale(c: &mut Call<'_>, value: Value, scale: &Tensor, dim: usize) -> Result<Value> {
    let sizes = Dims::from_slice(c.b.dims(value));
    let mut one_each = Dims::from_slice(&[1, 1]);
    one_each[dim] = sizes[dim];
    let factor = c.value(scale, DType::Float32)?;
    let factor = if scale.numel() == 1 {
        let scalar = c.b.reshape(factor, &[])?;
        c.b.broadcast_scalar(scalar, &sizes)?
    } else if scale.sizes == one_each || scale.sizes[..] == [sizes[dim]] {
        let column = c.b.reshape(factor, &[sizes[dim]])?;
        c.b.broadcast_in_dim(column, &sizes, &[dim as i64])?
    } else {
        return Err(LoweringError::unsupported(format!("scales of sizes {:?} for blocks", scale.sizes)));
    };
    Ok(c.b.multiply(value, factor)?)
}

fn add_bias(c: &mut Call<'_>, value: Value, bias: Option<Tensor>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let mut value = value;
    if let Some(bias) = bias {
        let bias = c.broadcast(&bias, DType::Float32, &out.sizes)?;
        value = c.b.add(value, bias)?;
    }
    Ok(c.convert(value, out.dtype)?.into())
}

/// aten::_scaled_mm(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
fn scaled_mm(c: &mut Call<'_>) -> Result<Outputs> {
    let (rows, columns, bias) = (c.tensor(2)?, c.tensor(3)?, c.opt_tensor(4)?);
    if c.opt_tensor(5)?.is_some() && c.out(0)?.dtype.is_float8() {
        return Err(LoweringError::unsupported("a scale of the result"));
    }
    let value = product(c)?;
    let value = scale(c, value, &rows, 0)?;
    let value = scale(c, value, &columns, 1)?;
    add_bias(c, value, bias)
}

/// aten::_scaled_mm_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, ...)
fn scaled_mm_v2(c: &mut Call<'_>) -> Result<Outputs> {
    let (rows, columns, bias) = (c.tensors(2)?, c.tensors(5)?, c.opt_tensor(8)?);
    let plain =
        [4, 7].into_iter().all(|index| c.ints(index).is_ok_and(|kinds| kinds.iter().all(|&kind| kind == 0)));
    let ([rows], [columns], true) = (rows.as_slice(), columns.as_slice(), plain) else {
        return Err(LoweringError::unsupported("scales in several levels, or swizzled"));
    };
    let value = product(c)?;
    let value = scale(c, value, rows, 0)?;
    let value = scale(c, value, columns, 1)?;
    add_bias(c, value, bias)
}

/// aten::_weight_int8pack_mm(self, mat2, scales): `self @ mat2.T * scales`, `[m, k] x [n, k] -> [m, n]`
fn weight_int8pack_mm(c: &mut Call<'_>) -> Result<Outputs> {
    const ROWS: Contraction = Contraction { batch: &[], lhs: &[1], rhs: &[1] };
    let (x, weight, scales) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (lhs, rhs) = (c.value(&x, x.dtype)?, c.value(&weight, x.dtype)?);
    let value = contract(c, lhs, rhs, &ROWS, DType::Float32)?;
    let value = scale(c, value, &scales, 1)?;
    add_bias(c, value, None)
}
