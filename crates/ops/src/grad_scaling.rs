//! What `torch.amp.GradScaler` asks of a device: gradients unscaled and inspected, and the next scale, with no read by
//! the host.

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::{formula, formulas};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_amp_foreach_non_finite_check_and_unscale", unscale),
    OpDef::new("aten::_amp_update_scale", update_scale),
];

/// The element of a tensor of one, as a 0-d value.
fn single(c: &mut Call<'_>, tensor: &Tensor, dtype: DType, name: &str) -> Result<Value> {
    if tensor.numel() != 1 {
        return Err(LoweringError::invalid(format!("{name} must be a 1-element tensor.")));
    }
    let value = c.value(tensor, dtype)?;
    Ok(c.b.reshape(value, &[])?)
}

/// aten::_amp_foreach_non_finite_check_and_unscale(self, found_inf, inv_scale) -> (self_out, found_inf_out)
///
/// `found_inf` becomes 1 and is never reset: the next call may add the gradients of another device.
fn unscale(c: &mut Call<'_>) -> Result<Outputs> {
    let (grads, found, inverse) = (c.tensors(0)?, c.tensor(1)?, c.tensor(2)?);
    let mut found_inf = single(c, &found, DType::Float32, "found_inf")?;
    let inverse = single(c, &inverse, DType::Float32, "inv_scale")?;
    let mut results = Vec::new();
    for grad in &grads {
        let dtype = grad.dtype.opmath();
        let value = c.value(grad, dtype)?;
        let finite = c.b.is_finite(value)?;
        let bad = c.b.not(finite)?;
        let any = c.any(bad)?;
        found_inf = formula(c.b, [any, found_inf], |[any, found]| any.select(found.splat(1.0), found))?;
        let factor = c.convert(inverse, dtype)?;
        let factor = c.b.broadcast_scalar(factor, &grad.sizes)?;
        let scaled = c.b.multiply(value, factor)?;
        results.push(c.convert(scaled, grad.dtype)?);
    }
    let found_inf = c.b.reshape(found_inf, &found.sizes)?;
    results.push(c.convert(found_inf, found.dtype)?);
    Ok(results.into())
}

/// aten::_amp_update_scale(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor,
/// growth_interval) -> (scale, growth_tracker_out)
fn update_scale(c: &mut Call<'_>) -> Result<Outputs> {
    let (scale, tracker, found) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (growth, backoff, interval) = (c.float(3)?, c.float(4)?, c.int(5)?);
    let old = single(c, &scale, DType::Float32, "current_scale")?;
    let count = single(c, &tracker, DType::Int32, "growth_tracker")?;
    let found = single(c, &found, DType::Bool, "found_inf")?;
    let [new, count] = formulas(c.b, [old, count, found], |[old, count, found]| {
        // The factors are doubles: the product with the scale is rounded once.
        let times = |factor: f64| (old.to(DType::Float64) * factor).to(DType::Float32);
        let next = count + count.splat_int(1);
        let full = next.eq(next.splat_int(interval));
        // The scale does not grow to infinity.
        let grown = times(growth);
        let kept = grown.apply(stablehlo::Builder::is_finite).select(grown, old);
        let zero = next.splat_int(0);
        [found.select(times(backoff), full.select(kept, old)), found.select(zero, full.select(zero, next))]
    })?;
    let mut results = Vec::new();
    for (value, like) in [(new, &scale), (count, &tracker)] {
        let value = c.b.reshape(value, &like.sizes)?;
        results.push(c.convert(value, like.dtype)?);
    }
    Ok(results.into())
}
