//! Softmax and its relatives, computed in the opmath type and rounded once.

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::Dims;
use crate::registry::OpDef;
use crate::statistics::{spread, spread_max, spread_sum};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_softmax", |c| forward(c, softmax)),
    OpDef::new("aten::_log_softmax", |c| forward(c, log_softmax)),
    OpDef::new("aten::_safe_softmax", safe_softmax),
    OpDef::new("aten::_softmax_backward_data", softmax_backward),
    OpDef::new("aten::_log_softmax_backward_data", log_softmax_backward),
];

/// The argument in `dtype` with at least one dimension, and the dimension of argument `dim`.
fn operand(c: &mut Call<'_>, x: &Tensor, dim: usize, dtype: DType) -> Result<(Value, i64)> {
    let dim = c.dim(dim, x.rank())? as i64;
    let value = c.value(x, dtype)?;
    Ok((if x.rank() == 0 { c.b.reshape(value, &[1])? } else { value }, dim))
}

/// Rounds to output 0 and restores its dimensions.
fn finish(c: &mut Call<'_>, value: Value) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let value = c.convert(value, out.dtype)?;
    Ok(c.b.reshape(value, &out.sizes)?.into())
}

/// `half_to_float` needs no mention: it is the output's dtype.
fn forward(c: &mut Call<'_>, function: fn(&mut Call<'_>, Value, i64) -> Result<Value>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let (x, dim) = operand(c, &x, 1, c.out(0)?.dtype.opmath())?;
    let value = function(c, x, dim)?;
    finish(c, value)
}

pub fn softmax(c: &mut Call<'_>, x: Value, dim: i64) -> Result<Value> {
    let max = spread_max(c.b, x, &[dim])?;
    let exp = formula(c.b, [x, max], |[x, max]| (x - max).exp())?;
    let sum = spread_sum(c.b, exp, &[dim])?;
    Ok(c.b.divide(exp, sum)?)
}

fn log_softmax(c: &mut Call<'_>, x: Value, dim: i64) -> Result<Value> {
    let max = spread_max(c.b, x, &[dim])?;
    let shifted = c.b.subtract(x, max)?;
    let exp = c.b.exponential(shifted)?;
    let sizes = Dims::from_slice(c.b.dims(x));
    let sum = c.b.reduce_add(exp, &[dim])?;
    let log = c.b.log(sum)?;
    let log = spread(c.b, log, &sizes, &[dim])?;
    Ok(c.b.subtract(shifted, log)?)
}

/// Softmax that gives zeros where every element is -inf (a row that is masked out).
fn safe_softmax(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let (x, dim) = operand(c, &x, 1, c.out(0)?.dtype.opmath())?;
    let value = safe(c, x, dim)?;
    finish(c, value)
}

pub fn safe(c: &mut Call<'_>, x: Value, dim: i64) -> Result<Value> {
    let probabilities = softmax(c, x, dim)?;
    // The maximum is -inf exactly where all elements are; NaN is not.
    let max = spread_max(c.b, x, &[dim])?;
    formula(c.b, [max, probabilities], |[max, p]| {
        max.eq(max.splat(f64::NEG_INFINITY)).select(p.splat(0.0), p)
    })
}

/// Arguments are the gradient, the forward result, the dimension and the input's dtype.
fn backward_operands(c: &mut Call<'_>) -> Result<(Value, Value, i64)> {
    let (grad, y) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = y.dtype.opmath();
    let (y, dim) = operand(c, &y, 2, dtype)?;
    let (grad, _) = operand(c, &grad, 2, dtype)?;
    Ok((grad, y, dim))
}

fn softmax_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, y, dim) = backward_operands(c)?;
    let weighted = c.b.multiply(grad, y)?;
    let sum = spread_sum(c.b, weighted, &[dim])?;
    let value = formula(c.b, [grad, y, sum], |[grad, y, sum]| (grad - sum) * y)?;
    finish(c, value)
}

fn log_softmax_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, y, dim) = backward_operands(c)?;
    let sum = spread_sum(c.b, grad, &[dim])?;
    let value = formula(c.b, [grad, y, sum], |[grad, y, sum]| grad - y.exp() * sum)?;
    finish(c, value)
}
