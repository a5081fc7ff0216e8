//! Activation functions and their gradients.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::elementwise::{pointwise, unary};
use crate::error::LoweringError;
use crate::formula::{Expr, formula, formulas};
use crate::registry::OpDef;
use crate::ternary::{bound_type, saturate};
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::elu", elu),
    OpDef::new("aten::elu_backward", elu_backward),
    OpDef::new("aten::gelu", gelu),
    OpDef::new("aten::gelu_backward", gelu_backward),
    OpDef::new("aten::glu", glu),
    OpDef::new("aten::glu_backward", glu_backward),
    OpDef::new("aten::glu_backward_jvp", glu_backward_jvp),
    OpDef::new("aten::glu_jvp", glu_jvp),
    OpDef::new("aten::hardshrink", hardshrink),
    OpDef::new("aten::hardshrink_backward", shrink_backward),
    OpDef::new("aten::hardsigmoid", |c| unary(c, |x| six_clamp(x) / 6.0)),
    OpDef::new("aten::hardsigmoid_backward", hardsigmoid_backward),
    OpDef::new("aten::hardswish", |c| unary(c, |x| x * six_clamp(x) / 6.0)),
    OpDef::new("aten::hardswish_backward", hardswish_backward),
    OpDef::new("aten::hardtanh", hardtanh),
    OpDef::new("aten::hardtanh_backward", hardtanh_backward),
    OpDef::new("aten::leaky_relu", leaky_relu),
    OpDef::new("aten::leaky_relu_backward", leaky_relu_backward),
    OpDef::new("aten::log_sigmoid_backward", log_sigmoid_backward),
    OpDef::new("aten::log_sigmoid_forward", log_sigmoid_forward),
    OpDef::new("aten::logit_backward", logit_backward),
    OpDef::new("aten::mish", |c| unary(c, |x| x * softplus_one(x).tanh())),
    OpDef::new("aten::mish_backward", |c| with_grad(c, mish_gradient)),
    OpDef::new("aten::_prelu_kernel", prelu),
    OpDef::new("aten::_prelu_kernel_backward", prelu_backward),
    OpDef::new("aten::relu", |c| unary(c, |x| x.max(x.splat(0.0)))),
    OpDef::new("aten::relu6", |c| unary(c, |x| x.max(x.splat(0.0)).min(x.splat(6.0)))).composite(),
    OpDef::new("aten::sigmoid_backward", sigmoid_backward),
    OpDef::new("aten::silu", |c| unary(c, |x| x * x.logistic())),
    OpDef::new("aten::silu_backward", |c| with_grad(c, silu_gradient)),
    OpDef::new("aten::softplus", softplus),
    OpDef::new("aten::softplus_backward", softplus_backward),
    OpDef::new("aten::softshrink", softshrink),
    OpDef::new("aten::softshrink_backward", shrink_backward),
    OpDef::new("aten::tanh_backward", tanh_backward),
    OpDef::new("aten::threshold", threshold),
    OpDef::new("aten::threshold_backward", threshold_backward),
];

/// (grad, x, ...): a formula over the first two arguments in opmath.
fn with_grad(
    c: &mut Call<'_>,
    build: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>,
) -> Result<Outputs> {
    let (grad, x) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&grad, &x], |[grad, x]| build(grad, x))
}

fn six_clamp<'f>(x: Expr<'f>) -> Expr<'f> {
    (x + 3.0).max(x.splat(0.0)).min(x.splat(6.0))
}

fn is_tanh(c: &Call<'_>, index: usize) -> Result<bool> {
    match c.str(index)? {
        "none" => Ok(false),
        "tanh" => Ok(true),
        _ => Err(LoweringError::invalid("approximate argument must be either none or tanh.")),
    }
}

/// Coefficients of the tanh approximation of GELU.
const GELU_BETA: f64 = SQRT_2 * FRAC_2_SQRT_PI * 0.5;
const GELU_KAPPA: f64 = 0.044715;

fn gelu(c: &mut Call<'_>) -> Result<Outputs> {
    if is_tanh(c, 1)? {
        return unary(c, |x| {
            let inner = (x + x * x * x * GELU_KAPPA) * GELU_BETA;
            x * 0.5 * (1.0 + inner.tanh())
        });
    }
    unary(c, |x| x * 0.5 * (1.0 + (x * FRAC_1_SQRT_2).erf()))
}

fn gelu_backward(c: &mut Call<'_>) -> Result<Outputs> {
    if is_tanh(c, 2)? {
        return with_grad(c, |grad, x| {
            let squared = x * x;
            let tanh = ((x + x * squared * GELU_KAPPA) * GELU_BETA).tanh();
            let left = x * 0.5;
            let slope = (1.0 - tanh * tanh) * (1.0 + squared * (3.0 * GELU_KAPPA)) * GELU_BETA;
            grad * ((1.0 + tanh) * 0.5 + left * slope)
        });
    }
    with_grad(c, |grad, x| {
        let cdf = (1.0 + (x * FRAC_1_SQRT_2).erf()) * 0.5;
        let pdf = (x * x * -0.5).exp() * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.5);
        grad * (cdf + x * pdf)
    })
}

/// aten::elu(self, alpha, scale, input_scale)
fn elu(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, alpha, scale, input) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?, c.tensor(3)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&x, &alpha, &scale, &input], |[x, alpha, scale, input]| {
        let negative = (x * input).expm1() * (alpha * scale);
        x.lt(x.splat(0.0)).select(negative, x * scale)
    })
}

/// aten::elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result)
fn elu_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, alpha, scale, input) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?, c.tensor(3)?);
    let (is_result, x) = (c.bool(4)?, c.tensor(5)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&grad, &alpha, &scale, &input, &x], |[grad, alpha, scale, input, x]| {
        let coefficient = alpha * scale;
        let slope = match is_result {
            true => input * (x + coefficient),
            false => input * coefficient * (x * input).exp(),
        };
        grad * x.gt(x.splat(0.0)).select(scale, slope)
    })
}

/// A tensor's halves along a dimension.
fn halves(c: &mut Call<'_>, x: &Tensor, dim: usize, dtype: DType) -> Result<[Value; 2]> {
    let (value, half) = (c.value(x, dtype)?, x.sizes.get(dim).map_or(0, |size| size / 2));
    let first = slice_dim(c.b, value, dim, 0, half, 1)?;
    Ok([first, slice_dim(c.b, value, dim, half, 2 * half, 1)?])
}

/// aten::glu(self, dim): first half times the logistic of the second.
fn glu(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let (dim, dtype) = (c.dim(1, x.rank())?, c.out(0)?.dtype);
    let halves = halves(c, &x, dim, dtype.opmath())?;
    let value = formula(c.b, halves, |[a, b]| a * b.logistic())?;
    Ok(c.convert(value, dtype)?.into())
}

/// aten::glu_backward(grad_output, self, dim)
fn glu_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x) = (c.tensor(0)?, c.tensor(1)?);
    let (dim, dtype) = (c.dim(2, x.rank())?, c.out(0)?.dtype);
    let grad = c.value(&grad, dtype.opmath())?;
    let [a, b] = halves(c, &x, dim, dtype.opmath())?;
    let gradients = formulas(c.b, [grad, a, b], |[grad, a, b]| {
        let gate = b.logistic();
        [grad * gate, grad * gate * a * (gate.splat(1.0) - gate)]
    })?;
    let value = c.b.concatenate(&gradients, dim as i64)?;
    Ok(c.convert(value, dtype)?.into())
}

/// aten::glu_jvp(glu, x, dx, dim)
fn glu_jvp(c: &mut Call<'_>) -> Result<Outputs> {
    let (glu, x, dx) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (dim, dtype) = (c.dim(3, x.rank())?, c.out(0)?.dtype);
    let glu = c.value(&glu, dtype.opmath())?;
    let [_, b] = halves(c, &x, dim, dtype.opmath())?;
    let [da, db] = halves(c, &dx, dim, dtype.opmath())?;
    let value = formula(c.b, [glu, b, da, db], |[glu, b, da, db]| {
        let gate = b.logistic();
        da * gate + glu * (db - gate * db)
    })?;
    Ok(c.convert(value, dtype)?.into())
}

/// aten::glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim)
fn glu_backward_jvp(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad_glu, x, dgrad_glu, dx) = (c.tensor(1)?, c.tensor(2)?, c.tensor(3)?, c.tensor(4)?);
    let (dim, dtype) = (c.dim(5, x.rank())?, c.out(0)?.dtype);
    let (grad, dgrad) = (c.value(&grad_glu, dtype.opmath())?, c.value(&dgrad_glu, dtype.opmath())?);
    let [a, b] = halves(c, &x, dim, dtype.opmath())?;
    let [da, db] = halves(c, &dx, dim, dtype.opmath())?;
    let tangents = formulas(c.b, [grad, dgrad, a, b, da, db], |[grad, dgrad, a, b, da, db]| {
        let gate = b.logistic();
        let rest = gate.splat(1.0) - gate;
        // Of the gradients grad * gate and grad * gate * a * rest.
        let first = dgrad * gate + grad * gate * rest * db;
        [first, first * a * rest + grad * gate * (da * rest - a * gate * rest * db)]
    })?;
    let value = c.b.concatenate(&tangents, dim as i64)?;
    Ok(c.convert(value, dtype)?.into())
}

/// aten::hardshrink(self, lambd)
fn hardshrink(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, lambda) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype;
    pointwise(c, dtype, [&x, &lambda], |[x, lambda]| (x.ge(-lambda) & x.le(lambda)).select(x.splat(0.0), x))
}

/// aten::softshrink(self, lambd)
fn softshrink(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, lambda) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&x, &lambda], |[x, lambda]| {
        // NaN stays NaN: the middle branch is x * 0.
        let low = x.lt(-lambda).select(x + lambda, x * 0.0);
        x.gt(lambda).select(x - lambda, low)
    })
}

/// Gradient of both shrinks: (grad, self, lambd)
fn shrink_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, lambda) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype;
    pointwise(c, dtype, [&grad, &x, &lambda], |[grad, x, lambda]| {
        // NaN lets the gradient through.
        (x.ge(-lambda) & x.le(lambda)).select(x.splat(0.0), grad)
    })
}

fn hardsigmoid_backward(c: &mut Call<'_>) -> Result<Outputs> {
    with_grad(c, |grad, x| {
        let inside = x.gt(x.splat(-3.0)) & x.lt(x.splat(3.0));
        inside.select(grad * (1.0 / 6.0), x.splat(0.0))
    })
}

fn hardswish_backward(c: &mut Call<'_>) -> Result<Outputs> {
    with_grad(c, |grad, x| {
        let middle = grad * (x / 3.0 + 0.5);
        let high = x.ge(x.splat(3.0)).select(grad, middle);
        x.le(x.splat(-3.0)).select(x.splat(0.0), high)
    })
}

/// aten::hardtanh(self, min_val, max_val)
fn hardtanh(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, low, high) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let out = c.out(0)?.dtype;
    pointwise(c, bound_type(out), [&x, &low, &high], |[x, low, high]| saturate(x.max(low).min(high), out))
}

/// aten::hardtanh_backward(grad_output, self, min_val, max_val)
fn hardtanh_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, low, high) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?, c.tensor(3)?);
    let dtype = c.out(0)?.dtype;
    pointwise(c, dtype.opmath(), [&grad, &x, &low, &high], |[grad, x, low, high]| {
        (x.gt(low) & x.lt(high)).select(grad, x.splat(0.0))
    })
}

/// aten::leaky_relu(self, negative_slope)
fn leaky_relu(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, slope) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&x, &slope], |[x, slope]| x.gt(x.splat(0.0)).select(x, x * slope))
}

/// aten::leaky_relu_backward(grad_output, self, negative_slope, self_is_result)
fn leaky_relu_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, slope) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&grad, &x, &slope], |[grad, x, slope]| x.gt(x.splat(0.0)).select(grad, grad * slope))
}

/// (output, buffer); the buffer exp(-|x|) has no elements where PyTorch's metadata says so.
fn log_sigmoid_forward(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let (out, buffer) = (c.out(0)?.clone(), c.out(1)?.clone());
    let value = c.value(&x, out.dtype.opmath())?;
    let [value, exp] = formulas(c.b, [value], |[x]| {
        let exp = (-x.abs()).exp();
        [x.min(x.splat(0.0)) - exp.log1p(), exp]
    })?;
    let exp = match buffer.sizes == out.sizes {
        true => c.convert(exp, buffer.dtype)?,
        false => c.full(crate::graph::Number::Int(0), buffer.dtype, &buffer.sizes)?,
    };
    Ok([c.convert(value, out.dtype)?, exp].into())
}

fn log_sigmoid_backward(c: &mut Call<'_>) -> Result<Outputs> {
    with_grad(c, |grad, x| {
        let exp = (-x.abs()).exp();
        let share = exp / (1.0 + exp);
        grad * x.lt(x.splat(0.0)).select(1.0 - share, share)
    })
}

/// aten::logit_backward(grad_output, self, eps=None)
fn logit_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let eps = c.opt_float(2)?;
    with_grad(c, |grad, x| {
        let (low, outside) = match eps {
            None => (x.splat(0.0), x.splat(f64::NAN)),
            Some(eps) => (x.splat(eps), x.splat(0.0)),
        };
        let inside = x.ge(low) & x.le(1.0 - low);
        inside.select(grad / (x * (1.0 - x)), outside)
    })
}

/// log(1 + exp(x)) without overflow.
fn softplus_one<'f>(x: Expr<'f>) -> Expr<'f> {
    x.max(x.splat(0.0)) + (-x.abs()).exp().log1p()
}

fn mish_gradient<'f>(grad: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let tanh = softplus_one(x).tanh();
    grad * (tanh + x * x.logistic() * (1.0 - tanh * tanh))
}

/// aten::_prelu_kernel(self, weight)
fn prelu(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, weight) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&x, &weight], |[x, weight]| x.gt(x.splat(0.0)).select(x, weight * x))
}

/// aten::_prelu_kernel_backward(grad_output, self, weight) -> (grad_input, grad_weight), both of full size
fn prelu_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, weight) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let out = c.out(0)?.clone();
    let values = crate::elementwise::broadcast(c, out.dtype.opmath(), [&grad, &x, &weight], &out.sizes)?;
    let [grad_x, grad_weight] = formulas(c.b, values, |[grad, x, weight]| {
        let zero = x.splat(0.0);
        let positive = x.gt(zero);
        [positive.select(grad, weight * grad), positive.select(zero, x * grad)]
    })?;
    Ok([c.convert(grad_x, out.dtype)?, c.convert(grad_weight, out.dtype)?].into())
}

fn sigmoid_backward(c: &mut Call<'_>) -> Result<Outputs> {
    if c.out(0)?.dtype.is_complex() {
        return with_grad(c, |grad, y| grad * ((1.0 - y) * y).apply(stablehlo::Builder::conj));
    }
    with_grad(c, |grad, y| grad * (1.0 - y) * y)
}

fn tanh_backward(c: &mut Call<'_>) -> Result<Outputs> {
    if c.out(0)?.dtype.is_complex() {
        return with_grad(c, |grad, y| grad * (1.0 - y * y).apply(stablehlo::Builder::conj));
    }
    with_grad(c, |grad, y| grad * (1.0 - y * y))
}

fn silu_gradient<'f>(grad: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let logistic = x.logistic();
    grad * logistic * (1.0 + x * (1.0 - logistic))
}

/// aten::softplus(self, beta, threshold)
fn softplus(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, beta, threshold) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&x, &beta, &threshold], |[x, beta, threshold]| {
        let scaled = x * beta;
        scaled.gt(threshold).select(x, scaled.exp().log1p() / beta)
    })
}

/// aten::softplus_backward(grad_output, self, beta, threshold)
fn softplus_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, beta, threshold) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?, c.tensor(3)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&grad, &x, &beta, &threshold], |[grad, x, beta, threshold]| {
        let exp = (x * beta).exp();
        (x * beta).gt(threshold).select(grad, grad * exp / (exp + 1.0))
    })
}

/// aten::threshold(self, threshold, value)
fn threshold(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, threshold, value) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype;
    pointwise(c, dtype, [&x, &threshold, &value], |[x, threshold, value]| x.le(threshold).select(value, x))
}

/// aten::threshold_backward(grad_output, self, threshold)
fn threshold_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, threshold) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype;
    pointwise(c, dtype, [&grad, &x, &threshold], |[grad, x, threshold]| {
        x.le(threshold).select(x.splat(0.0), grad)
    })
}
