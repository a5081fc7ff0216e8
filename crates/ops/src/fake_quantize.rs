//! Floats rounded to what an integer with a scale and a zero point can hold, for quantization-aware training.

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formulas;
use crate::graph::Number;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::fake_quantize_per_tensor_affine_cachemask", per_tensor).float_operands(&[1]),
    OpDef::new("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", per_tensor_of_tensors),
    OpDef::new("aten::fake_quantize_per_channel_affine_cachemask", per_channel),
];

/// The rounded elements, and where they were in range. `scale` and `zero_point` have the sizes of `x`; `range` is where
/// the arguments quant_min and quant_max stand.
fn quantize(c: &mut Call<'_>, x: Value, scale: Value, zero_point: Value, range: usize) -> Result<[Value; 2]> {
    let (low, high) = (c.int(range)? as f64, c.int(range + 1)? as f64);
    formulas(c.b, [x, scale, zero_point], |[x, scale, zero_point]| {
        // CPU kernels multiply by the inverse.
        let (low, high) = (x.splat(low), x.splat(high));
        let level = (x * (1.0 / scale)).round_even() + zero_point;
        let mask = level.ge(low) & level.le(high);
        [(level.max(low).min(high) - zero_point) * scale, mask]
    })
}

fn filled(c: &mut Call<'_>, argument: usize, sizes: &[i64]) -> Result<Value> {
    let scalar = c.scalar(argument, DType::Float32)?;
    let scalar = c.b.reshape(scalar, &[])?;
    Ok(c.b.broadcast_scalar(scalar, sizes)?)
}

fn input(c: &mut Call<'_>) -> Result<(Tensor, Value)> {
    let x = c.tensor(0)?;
    let value = c.value(&x, DType::Float32)?;
    Ok((x, value))
}

fn outputs(c: &mut Call<'_>, [rounded, mask]: [Value; 2]) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    Ok([c.convert(rounded, dtype)?, mask].into())
}

/// Arguments: self, scale, zero_point, quant_min, quant_max.
fn per_tensor(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, value) = input(c)?;
    let scale = filled(c, 1, &x.sizes)?;
    let zero_point = c.full(Number::Int(c.int(2)?), DType::Float32, &x.sizes)?;
    let results = quantize(c, value, scale, zero_point, 3)?;
    outputs(c, results)
}

/// Arguments: self, scale, zero_point, fake_quant_enabled, quant_min, quant_max.
fn per_tensor_of_tensors(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, value) = input(c)?;
    let (scale, zero_point) = (filled(c, 1, &x.sizes)?, filled(c, 2, &x.sizes)?);
    let enabled = c.scalar(3, DType::Bool)?;
    let enabled = c.b.reshape(enabled, &[])?;
    let enabled = c.b.broadcast_scalar(enabled, &x.sizes)?;
    let [rounded, mask] = quantize(c, value, scale, zero_point, 4)?;
    let all = c.full(Number::Bool(true), DType::Bool, &x.sizes)?;
    let results = [c.b.select(enabled, rounded, value)?, c.b.select(enabled, mask, all)?];
    outputs(c, results)
}

/// Arguments: self, scale, zero_point, axis, quant_min, quant_max.
fn per_channel(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, value) = input(c)?;
    let axis = c.dim(3, x.rank())?;
    let mut along = |argument| {
        let tensor = c.tensor(argument)?;
        if tensor.sizes[..] != [x.sizes[axis]] {
            return Err(LoweringError::invalid(
                "dimensions of scale and zero-point are not consistent with input tensor",
            ));
        }
        let row = c.value(&tensor, DType::Float32)?;
        Ok(c.b.broadcast_in_dim(row, &x.sizes, &[axis as i64])?)
    };
    let (scale, zero_point) = (along(1)?, along(2)?);
    let results = quantize(c, value, scale, zero_point, 4)?;
    outputs(c, results)
}
