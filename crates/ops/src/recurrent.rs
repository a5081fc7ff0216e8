//! Cells of recurrent layers after their matrix products: gates, and their gradients.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::{formula, formulas};
use crate::graph::{Dims, Number};
use crate::normalization::as_output;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_thnn_fused_lstm_cell", lstm_cell),
    OpDef::new("aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward),
    OpDef::new("aten::_thnn_fused_gru_cell", gru_cell),
    OpDef::new("aten::_thnn_fused_gru_cell_backward", gru_cell_backward),
];

/// `N` equal parts of `[batch, N * hidden]`.
fn parts<const N: usize>(b: &mut Builder, x: Value) -> Result<[Value; N]> {
    let &[batch, width] = b.dims(x) else {
        return Err(LoweringError::invalid("gates must be a matrix"));
    };
    let hidden = width / N as i64;
    let mut parts = Vec::with_capacity(N);
    for i in 0..N as i64 {
        parts.push(b.slice(x, &[0, i * hidden], &[batch, (i + 1) * hidden], &[1, 1])?);
    }
    parts.try_into().map_err(|_| LoweringError::unsupported("gate count"))
}

/// Gates with an optional bias per column.
fn biased(c: &mut Call<'_>, gates: &Tensor, bias: Option<&Tensor>, dtype: DType) -> Result<Value> {
    let value = c.value(gates, dtype)?;
    let Some(bias) = bias else { return Ok(value) };
    let bias = c.broadcast(bias, dtype, &gates.sizes)?;
    Ok(c.b.add(value, bias)?)
}

/// Arguments: input gates, hidden gates, cell, input bias, hidden bias. Outputs: hidden, cell, the activated gates
/// (input, forget, cell, output) for the gradient.
fn lstm_cell(c: &mut Call<'_>) -> Result<Outputs> {
    let (input, hidden, cell) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (input_bias, hidden_bias) = (c.opt_tensor(3)?, c.opt_tensor(4)?);
    let dtype = cell.dtype.opmath();
    let input = biased(c, &input, input_bias.as_ref(), dtype)?;
    let hidden = biased(c, &hidden, hidden_bias.as_ref(), dtype)?;
    let gates = c.b.add(input, hidden)?;
    let [i, f, g, o] = parts(c.b, gates)?;
    let cell = c.value(&cell, dtype)?;
    let [i, f, g, o] =
        formulas(c.b, [i, f, g, o], |[i, f, g, o]| [i.logistic(), f.logistic(), g.tanh(), o.logistic()])?;
    let [hidden, cell] = formulas(c.b, [i, f, g, o, cell], |[i, f, g, o, cell]| {
        let cell = f * cell + i * g;
        [o * cell.tanh(), cell]
    })?;
    let workspace = c.b.concatenate(&[i, f, g, o], 1)?;
    Ok([as_output(c, 0, hidden)?, as_output(c, 1, cell)?, as_output(c, 2, workspace)?].into())
}

/// A gradient that may be undefined, which counts as zero.
fn gradient(c: &mut Call<'_>, index: usize, dtype: DType, sizes: &[i64]) -> Result<Value> {
    match c.opt_tensor(index)? {
        Some(grad) => c.value(&grad, dtype),
        None => c.full(Number::Int(0), dtype, sizes),
    }
}

/// Arguments: gradients of hidden and cell, the old cell, the new cell, the activated gates, has_bias. Outputs:
/// gradients of the gates, of the old cell, of the biases.
fn lstm_cell_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (old, new, workspace) = (c.tensor(2)?, c.tensor(3)?, c.tensor(4)?);
    let dtype = old.dtype.opmath();
    let sizes: Dims = old.sizes.clone();
    let grad_hidden = gradient(c, 0, dtype, &sizes)?;
    let grad_cell = gradient(c, 1, dtype, &sizes)?;
    let old = c.value(&old, dtype)?;
    let new = c.value(&new, dtype)?;
    let workspace = c.value(&workspace, dtype)?;
    let [i, f, g, o] = parts(c.b, workspace)?;
    let grad_cell = formula(c.b, [grad_hidden, grad_cell, o, new], |[gh, gc, o, new]| {
        let t = new.tanh();
        gh * o * (1.0 - t * t) + gc
    })?;
    let grads = formulas(c.b, [grad_cell, i, f, g, old], |[gc, i, f, g, old]| {
        [gc * g * (1.0 - i) * i, gc * old * (1.0 - f) * f, gc * i * (1.0 - g * g), gc * f]
    })?;
    let grad_o = formula(c.b, [grad_hidden, o, new], |[gh, o, new]| gh * new.tanh() * (1.0 - o) * o)?;
    let gates = c.b.concatenate(&[grads[0], grads[1], grads[2], grad_o], 1)?;
    let bias = match c.bool(5)? {
        true => {
            let sum = c.b.reduce_add(gates, &[0])?;
            as_output(c, 2, sum)?
        }
        false => None,
    };
    Ok([as_output(c, 0, gates)?, as_output(c, 1, grads[3])?, bias].into())
}

/// Arguments: input gates, hidden gates, hidden, input bias, hidden bias. Outputs: hidden, and (reset, update, new,
/// old hidden, hidden part of new) for the gradient.
fn gru_cell(c: &mut Call<'_>) -> Result<Outputs> {
    let (input, hidden, old) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (input_bias, hidden_bias) = (c.opt_tensor(3)?, c.opt_tensor(4)?);
    let dtype = old.dtype.opmath();
    let input = biased(c, &input, input_bias.as_ref(), dtype)?;
    let hidden = biased(c, &hidden, hidden_bias.as_ref(), dtype)?;
    let [ir, iz, ig] = parts(c.b, input)?;
    let [hr, hz, hn] = parts(c.b, hidden)?;
    let old = c.value(&old, dtype)?;
    let [r, z] =
        formulas(c.b, [ir, hr, iz, hz], |[ir, hr, iz, hz]| [(ir + hr).logistic(), (iz + hz).logistic()])?;
    let n = formula(c.b, [ig, r, hn], |[ig, r, hn]| (ig + r * hn).tanh())?;
    let new = formula(c.b, [n, z, old], |[n, z, old]| n + z * (old - n))?;
    let workspace = c.b.concatenate(&[r, z, n, old, hn], 1)?;
    Ok([as_output(c, 0, new)?, as_output(c, 1, workspace)?].into())
}

/// Arguments: gradient of hidden, the forward operator's workspace, has_bias. Outputs: gradients of input gates,
/// hidden gates, old hidden, input bias, hidden bias.
fn gru_cell_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, workspace) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = grad.dtype.opmath();
    let grad = c.value(&grad, dtype)?;
    let workspace = c.value(&workspace, dtype)?;
    let [r, z, n, old, hn] = parts(c.b, workspace)?;
    let [gz, gn, old_grad] = formulas(c.b, [grad, z, n, old], |[g, z, n, old]| {
        [g * (old - n) * (1.0 - z) * z, g * (1.0 - z) * (1.0 - n * n), g * z]
    })?;
    let [gr, gh] = formulas(c.b, [gn, r, hn], |[gn, r, hn]| [gn * hn * (1.0 - r) * r, gn * r])?;
    let input = c.b.concatenate(&[gr, gz, gn], 1)?;
    let hidden = c.b.concatenate(&[gr, gz, gh], 1)?;
    let mut outputs = vec![as_output(c, 0, input)?, as_output(c, 1, hidden)?, as_output(c, 2, old_grad)?];
    let has_bias = c.bool(2)?;
    for (k, gates) in [(3, input), (4, hidden)] {
        outputs.push(match has_bias {
            true => {
                let sum = c.b.reduce_add(gates, &[0])?;
                as_output(c, k, sum)?
            }
            false => None,
        });
    }
    Ok(outputs.into())
}
