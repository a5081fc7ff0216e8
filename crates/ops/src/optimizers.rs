//! Fused optimizer steps: one program over all parameters.

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::{Expr, formula, formulas};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_fused_adam", |c| adam(c, false)).float_operands(&[6]),
    OpDef::new("aten::_fused_adam.tensor_lr", |c| adam(c, false)),
    OpDef::new("aten::_fused_adamw", |c| adam(c, true)).float_operands(&[6]),
    OpDef::new("aten::_fused_adamw.tensor_lr", |c| adam(c, true)),
    OpDef::new("aten::_fused_sgd", sgd).float_operands(&[5]),
    OpDef::new("aten::_fused_sgd.tensor_lr", sgd),
    OpDef::new("aten::_fused_adagrad", |c| adagrad(c, true)).float_operands(&[4]),
    OpDef::new("aten::_fused_adagrad.tensor_lr", |c| adagrad(c, false)),
];

/// What gradient scaling does to a step.
struct Scaling {
    grad_scale: Option<Tensor>,
    found_inf: Option<Tensor>,
}

impl Scaling {
    fn gradient(&self, c: &mut Call<'_>, grad: Value, dtype: DType, sizes: &[i64]) -> Result<Value> {
        let Some(scale) = &self.grad_scale else { return Ok(grad) };
        let scale = scalar_everywhere(c, scale, dtype, sizes)?;
        Ok(c.b.divide(grad, scale)?)
    }

    /// The old value where a gradient was not finite.
    fn keep(&self, c: &mut Call<'_>, new: Value, old: Value) -> Result<Value> {
        let Some(found) = &self.found_inf else { return Ok(new) };
        let sizes = c.b.ty(new).dims.clone();
        let found = scalar_everywhere(c, found, DType::Bool, &sizes)?;
        Ok(c.b.select(found, old, new)?)
    }
}

/// A tensor of one element, at every element of `sizes`.
fn scalar_everywhere(c: &mut Call<'_>, tensor: &Tensor, dtype: DType, sizes: &[i64]) -> Result<Value> {
    let value = c.value(tensor, dtype)?;
    let value = c.b.reshape(value, &[])?;
    Ok(c.b.broadcast_scalar(value, sizes)?)
}

/// aten::_fused_adamw(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, lr, beta1, beta2,
/// weight_decay, eps, amsgrad, maximize, grad_scale=None, found_inf=None)
/// -> (self_out, grads_out, exp_avgs_out, exp_avg_sqs_out, max_exp_avg_sqs_out), lists flattened.
fn adam(c: &mut Call<'_>, decoupled: bool) -> Result<Outputs> {
    let (params, grads, averages, squares) = (c.tensors(0)?, c.tensors(1)?, c.tensors(2)?, c.tensors(3)?);
    let (maxima, steps, lr) = (c.tensors(4)?, c.tensors(5)?, c.tensor(6)?);
    let (beta1, beta2, decay, eps) = (c.float(7)?, c.float(8)?, c.float(9)?, c.float(10)?);
    let (amsgrad, maximize) = (c.bool(11)?, c.bool(12)?);
    let scaling = Scaling { grad_scale: c.opt_tensor(13)?, found_inf: c.opt_tensor(14)? };
    let mut corrections = Corrections { steps: &steps, lr: &lr, betas: [beta1, beta2], known: Vec::new() };
    let mut lists: [Vec<Value>; 5] = Default::default();
    for (k, param) in params.iter().enumerate() {
        let (Some(grad), Some(average), Some(square), true) =
            (grads.get(k), averages.get(k), squares.get(k), k < steps.len())
        else {
            return Err(LoweringError::invalid("fused Adam needs lists of equal lengths"));
        };
        let sizes = param.sizes.clone();
        let dtype = param.dtype.opmath();
        let shrink = scalar_everywhere(c, &lr, dtype, &sizes)?;
        let [step_size, root] = corrections.of(c, k, dtype, &sizes)?;
        let (p, g) = (c.value(param, dtype)?, c.value(grad, dtype)?);
        let (m, v) = (c.value(average, dtype)?, c.value(square, dtype)?);
        let largest = if amsgrad { maxima.get(k).cloned() } else { None };
        let old_largest = match &largest {
            Some(tensor) => c.value(tensor, dtype)?,
            None => v,
        };
        let given = g;
        let g = scaling.gradient(c, g, dtype, &sizes)?;
        let scaled = g;
        let [new_p, new_m, new_v, new_largest] =
            formulas(c.b, [p, g, m, v, old_largest, shrink, step_size, root], |values| {
                let [p, g, m, v, old_largest, lr, step_size, root] = values;
                let g = if maximize { -g } else { g };
                let (p, g) = match (decoupled, decay == 0.0) {
                    (_, true) => (p, g),
                    (true, false) => (p - lr * decay * p, g),
                    (false, false) => (p, g + p * decay),
                };
                let new_m = m + (g - m) * (1.0 - beta1);
                let new_v = v * beta2 + g * g * (1.0 - beta2);
                let new_largest = if amsgrad { old_largest.max(new_v) } else { new_v };
                let denominator = new_largest.sqrt() / root + eps;
                [p - step_size * new_m / denominator, new_m, new_v, new_largest]
            })?;
        let mut push = |c: &mut Call<'_>, list: usize, new: Value, old: Value, like: &Tensor| -> Result<()> {
            let value = scaling.keep(c, new, old)?;
            lists[list].push(c.convert(value, like.dtype)?);
            Ok(())
        };
        push(c, 0, new_p, p, param)?;
        push(c, 1, scaled, given, grad)?;
        push(c, 2, new_m, m, average)?;
        push(c, 3, new_v, v, square)?;
        if let Some(largest) = &largest {
            push(c, 4, new_largest, old_largest, largest)?;
        }
    }
    if !amsgrad {
        for largest in &maxima {
            lists[4].push(c.value(largest, largest.dtype)?);
        }
    }
    Ok(lists.concat().into())
}

/// What the step counts say, for all parameters at once: a kernel with the transcendentals of each parameter takes the
/// compiler five times as long as one without.
struct Corrections<'a> {
    steps: &'a [Tensor],
    lr: &'a Tensor,
    betas: [f64; 2],
    /// `lr / (1 - beta1^step)` and `sqrt(1 - beta2^step)` by dtype, each of one element per parameter.
    known: Vec<(DType, [Value; 2])>,
}

impl Corrections<'_> {
    /// Those of parameter `k`, at every element of `sizes`.
    fn of(&mut self, c: &mut Call<'_>, k: usize, dtype: DType, sizes: &[i64]) -> Result<[Value; 2]> {
        let all = match self.known.iter().find(|(known, _)| *known == dtype) {
            Some((_, all)) => *all,
            None => {
                let all = self.compute(c, dtype)?;
                self.known.push((dtype, all));
                all
            }
        };
        let at = k as i64;
        let mut own = all;
        for value in &mut own {
            *value = c.b.slice(*value, &[at], &[at + 1], &[1])?;
            *value = c.b.reshape(*value, &[])?;
            *value = c.b.broadcast_scalar(*value, sizes)?;
        }
        Ok(own)
    }

    fn compute(&self, c: &mut Call<'_>, dtype: DType) -> Result<[Value; 2]> {
        let mut steps = Vec::with_capacity(self.steps.len());
        for step in self.steps {
            let step = c.value(step, dtype)?;
            steps.push(c.b.reshape(step, &[1])?);
        }
        let steps = c.b.concatenate(&steps, 0)?;
        let lr = scalar_everywhere(c, self.lr, dtype, &[self.steps.len() as i64])?;
        let [beta1, beta2] = self.betas;
        formulas(c.b, [steps, lr], |[step, lr]| {
            [lr / bias_correction(step, beta1), bias_correction(step, beta2).sqrt()]
        })
    }
}

/// 1 - beta^step. Through expm1: in f32 the plain form loses the digits that beta near 1 leaves.
fn bias_correction<'f>(step: Expr<'f>, beta: f64) -> Expr<'f> {
    -(step * beta.ln()).expm1()
}

/// aten::_fused_sgd(self, grads, momentum_buffer_list, *, weight_decay, momentum, lr, dampening, nesterov, maximize,
/// is_first_step, grad_scale=None, found_inf=None) -> (self_out, grads_out, momentum_buffer_list_out)
fn sgd(c: &mut Call<'_>) -> Result<Outputs> {
    let (params, grads, buffers) = (c.tensors(0)?, c.tensors(1)?, c.tensors(2)?);
    let (decay, momentum, lr, dampening) = (c.float(3)?, c.float(4)?, c.tensor(5)?, c.float(6)?);
    let (nesterov, maximize, first) = (c.bool(7)?, c.bool(8)?, c.bool(9)?);
    let scaling = Scaling { grad_scale: c.opt_tensor(10)?, found_inf: c.opt_tensor(11)? };
    let mut lists: [Vec<Value>; 3] = Default::default();
    for (k, param) in params.iter().enumerate() {
        let Some(grad) = grads.get(k) else {
            return Err(LoweringError::invalid("fused SGD needs lists of equal lengths"));
        };
        let sizes = param.sizes.clone();
        let dtype = param.dtype.opmath();
        let lr = scalar_everywhere(c, &lr, dtype, &sizes)?;
        let (p, g) = (c.value(param, dtype)?, c.value(grad, dtype)?);
        let given = g;
        let g = scaling.gradient(c, g, dtype, &sizes)?;
        let direction = formula(c.b, [p, g], |[p, g]| {
            let g = if maximize { -g } else { g };
            if decay == 0.0 { g } else { g + p * decay }
        })?;
        let mut update = direction;
        if momentum != 0.0 {
            let Some(buffer) = buffers.get(k) else {
                return Err(LoweringError::invalid("fused SGD needs lists of equal lengths"));
            };
            let old = c.value(buffer, dtype)?;
            let new = formula(c.b, [direction, old], |[g, buffer]| match first {
                true => g,
                false => buffer * momentum + g * (1.0 - dampening),
            })?;
            update = match nesterov {
                true => formula(c.b, [direction, new], |[g, buffer]| g + buffer * momentum)?,
                false => new,
            };
            let kept = scaling.keep(c, new, old)?;
            lists[2].push(c.convert(kept, buffer.dtype)?);
        }
        let new = formula(c.b, [p, lr, update], |[p, lr, update]| p - lr * update)?;
        let kept = scaling.keep(c, new, p)?;
        lists[0].push(c.convert(kept, param.dtype)?);
        let kept = scaling.keep(c, g, given)?;
        lists[1].push(c.convert(kept, grad.dtype)?);
    }
    if momentum == 0.0 {
        for buffer in &buffers {
            lists[2].push(c.value(buffer, buffer.dtype)?);
        }
    }
    Ok(lists.concat().into())
}

/// aten::_fused_adagrad(self, grads, state_sums, state_steps, *, lr, lr_decay, weight_decay, eps, maximize,
/// grad_scale=None, found_inf=None) -> (self_out, grads_out, state_sums_out), and state_steps_out where the schema
/// says that it is written.
fn adagrad(c: &mut Call<'_>, returns_steps: bool) -> Result<Outputs> {
    let (params, grads, sums, steps) = (c.tensors(0)?, c.tensors(1)?, c.tensors(2)?, c.tensors(3)?);
    let (lr, lr_decay, decay, eps) = (c.tensor(4)?, c.float(5)?, c.float(6)?, c.float(7)?);
    let maximize = c.bool(8)?;
    let scaling = Scaling { grad_scale: c.opt_tensor(9)?, found_inf: c.opt_tensor(10)? };
    let mut lists: [Vec<Value>; 4] = Default::default();
    for (k, param) in params.iter().enumerate() {
        let (Some(grad), Some(sum), Some(step)) = (grads.get(k), sums.get(k), steps.get(k)) else {
            return Err(LoweringError::invalid("fused Adagrad needs lists of equal lengths"));
        };
        let sizes = param.sizes.clone();
        let dtype = param.dtype.opmath();
        let lr = scalar_everywhere(c, &lr, dtype, &sizes)?;
        let count = scalar_everywhere(c, step, dtype, &sizes)?;
        let (p, given, old_sum) = (c.value(param, dtype)?, c.value(grad, dtype)?, c.value(sum, dtype)?);
        let scaled = scaling.gradient(c, given, dtype, &sizes)?;
        let [new_p, new_sum] =
            formulas(c.b, [p, scaled, old_sum, lr, count], |[p, g, old_sum, lr, count]| {
                let g = if maximize { -g } else { g };
                let g = if decay == 0.0 { g } else { g + p * decay };
                let new_sum = old_sum + g * g;
                let rate = lr / ((count - 1.0) * lr_decay + 1.0);
                [p - rate * g / (new_sum.sqrt() + eps), new_sum]
            })?;
        let results = [(new_p, p, param), (scaled, given, grad), (new_sum, old_sum, sum)];
        for (list, (new, old, like)) in lists.iter_mut().zip(results) {
            let kept = scaling.keep(c, new, old)?;
            list.push(c.convert(kept, like.dtype)?);
        }
        if returns_steps {
            lists[3].push(c.value(step, step.dtype)?);
        }
    }
    Ok(lists.concat().into())
}
