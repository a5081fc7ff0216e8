//! Batch normalisation: per channel (dimension 1) over all other dimensions.

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::formula;
use crate::graph::{Dims, Number};
use crate::normalization::{as_output, masked};
use crate::registry::OpDef;
use crate::statistics::{divide_by_count, inverse_deviation, mean, moments, spread};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::native_batch_norm", native_batch_norm).writes(&[3, 4]),
    OpDef::new("aten::_native_batch_norm_legit_functional", |c| {
        let training = c.bool(5)?;
        batch_norm(c, Form { running: true, training, momentum: 6, eps: 7, updates: Some(3), reserve: false })
    }),
    OpDef::new("aten::_native_batch_norm_legit.no_stats", |c| {
        batch_norm(
            c,
            Form { running: false, training: true, momentum: 4, eps: 5, updates: None, reserve: false },
        )
    }),
    OpDef::new("aten::_native_batch_norm_legit_no_training", |c| {
        batch_norm(
            c,
            Form { running: true, training: false, momentum: 5, eps: 6, updates: None, reserve: false },
        )
    }),
    OpDef::new("aten::_batch_norm_with_update_functional", |c| {
        batch_norm(
            c,
            Form { running: true, training: true, momentum: 5, eps: 6, updates: Some(4), reserve: true },
        )
    }),
    OpDef::new("aten::_batch_norm_no_update", |c| {
        batch_norm(
            c,
            Form { running: true, training: false, momentum: 5, eps: 6, updates: None, reserve: true },
        )
    }),
    OpDef::new("aten::native_batch_norm_backward", |c| {
        let training = c.bool(7)?;
        batch_norm_backward(c, training)
    }),
    OpDef::new("aten::batch_norm_backward", |c| {
        let training = c.bool(7)?;
        batch_norm_backward(c, training)
    }),
];

/// Where an overload of the family has its arguments and outputs.
struct Form {
    /// Arguments 3 and 4 are the running statistics.
    running: bool,
    /// Normalise by the statistics of the batch.
    training: bool,
    momentum: usize,
    eps: usize,
    /// First of the two outputs that are the new running statistics.
    updates: Option<usize>,
    /// Output 3 is cuDNN's reserve space, which is empty here.
    reserve: bool,
}

/// In training this operator writes to its running statistics although its schema does not say so. Graphs know nothing
/// of that.
fn native_batch_norm(c: &mut Call<'_>) -> Result<Outputs> {
    let training = c.bool(5)?;
    let running = !c.is_none(3) || !c.is_none(4);
    if training && running && (c.is_none(3) || c.is_none(4)) {
        return Err(LoweringError::InvalidArgument {
            kind: CheckKind::Value,
            message: "running_mean and running_var must either both be None or neither be None".to_owned(),
        });
    }
    let updates = Some(3).filter(|&first| c.outputs() > first);
    if training && running && updates.is_none() {
        return Err(LoweringError::unsupported("an update of the running statistics in place"));
    }
    batch_norm(c, Form { running, training, momentum: 6, eps: 7, updates, reserve: false })
}

fn others(rank: usize) -> Dims {
    (0..rank as i64).filter(|&dim| dim != 1).collect()
}

/// A per-channel tensor at every element of `sizes`.
fn channels(c: &mut Call<'_>, x: &Tensor, dtype: DType, sizes: &[i64]) -> Result<Value> {
    let x = c.value(x, dtype)?;
    spread(c.b, x, sizes, &others(sizes.len()))
}

fn batch_norm(c: &mut Call<'_>, form: Form) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let (weight, bias) = (c.opt_tensor(1)?, c.opt_tensor(2)?);
    let dtype = x.dtype.opmath();
    let others = others(x.rank());
    let running = match form.running {
        true => [c.opt_tensor(3)?, c.opt_tensor(4)?],
        false => [None, None],
    };
    let eps = c.scalar(form.eps, dtype)?;
    let value = c.value(&x, dtype)?;
    let (centred, rstd, batch);
    if form.training {
        let moments = moments(c.b, value, &others)?;
        let variance = divide_by_count(c.b, moments.squares, moments.count)?;
        rstd = inverse_deviation(c.b, variance, eps)?;
        centred = moments.centred;
        batch = Some(moments);
    } else {
        let [Some(mean), Some(variance)] = &running else {
            return Err(LoweringError::invalid(
                "Expected running_mean and running_var to be defined when training=False",
            ));
        };
        let mean = channels(c, mean, dtype, &x.sizes)?;
        let variance = c.value(variance, dtype)?;
        rstd = inverse_deviation(c.b, variance, eps)?;
        centred = c.b.subtract(value, mean)?;
        batch = None;
    }
    let scale = spread(c.b, rstd, &x.sizes, &others)?;
    let mut y = c.b.multiply(centred, scale)?;
    if let Some(weight) = weight {
        let weight = channels(c, &weight, dtype, &x.sizes)?;
        y = c.b.multiply(y, weight)?;
    }
    if let Some(bias) = bias {
        let bias = channels(c, &bias, dtype, &x.sizes)?;
        y = c.b.add(y, bias)?;
    }
    let mut outputs = vec![as_output(c, 0, y)?];
    for (k, saved) in [(1, batch.as_ref().map(|batch| batch.mean)), (2, batch.as_ref().map(|_| rstd))] {
        outputs.push(match saved {
            Some(saved) => as_output(c, k, saved)?,
            None => empty(c, k)?,
        });
    }
    if form.reserve {
        outputs.push(empty(c, 3)?);
    }
    if let Some(first) = form.updates {
        let [Some(mean), Some(variance)] = &running else {
            return Err(LoweringError::unsupported("running statistics that are not defined"));
        };
        match batch {
            None => {
                for (k, old) in [mean, variance].into_iter().enumerate() {
                    let old = c.value(old, old.dtype)?;
                    outputs.push(as_output(c, first + k, old)?);
                }
            }
            Some(batch) => {
                // Zero elements less one is no count: CPU gives NaN for one element per channel, as 0 / 0 does.
                let unbiased = divide_by_count(c.b, batch.squares, batch.count - 1)?;
                for (k, (old, new)) in [(mean, batch.mean), (variance, unbiased)].into_iter().enumerate() {
                    let new = update(c, old, new, form.momentum, dtype)?;
                    outputs.push(as_output(c, first + k, new)?);
                }
            }
        }
    }
    Ok(outputs.into())
}

fn update(c: &mut Call<'_>, old: &Tensor, new: Value, momentum: usize, dtype: DType) -> Result<Value> {
    let old = c.value(old, dtype)?;
    let dims = Dims::from_slice(c.b.dims(new));
    let momentum = c.scalar(momentum, dtype)?;
    let momentum = c.b.broadcast_scalar(momentum, &dims)?;
    formula(c.b, [old, new, momentum], |[old, new, m]| m * new + (1.0 - m) * old)
}

/// What CPU kernels return without statistics of the batch.
fn empty(c: &mut Call<'_>, k: usize) -> Result<Option<Value>> {
    let Ok(out) = c.out(k).cloned() else { return Ok(None) };
    c.full(Number::Int(0), out.dtype, &out.sizes).map(Some)
}

/// Arguments: gradient, input, weight, running mean and variance, saved mean and inverse deviation, training, eps.
fn batch_norm_backward(c: &mut Call<'_>, training: bool) -> Result<Outputs> {
    let (grad, x) = (c.tensor(0)?, c.tensor(1)?);
    let weight = c.opt_tensor(2)?;
    let dtype = x.dtype.opmath();
    let others = others(x.rank());
    let statistics = if training { [c.tensor(5)?, c.tensor(6)?] } else { [c.tensor(3)?, c.tensor(4)?] };
    let centre = channels(c, &statistics[0], dtype, &x.sizes)?;
    let mut rstd = c.value(&statistics[1], dtype)?;
    if !training {
        let eps = c.scalar(8, dtype)?;
        rstd = inverse_deviation(c.b, rstd, eps)?;
    }
    let rstd = spread(c.b, rstd, &x.sizes, &others)?;
    let grad = c.value(&grad, dtype)?;
    let value = c.value(&x, dtype)?;
    let xhat = formula(c.b, [value, centre, rstd], |[x, mean, rstd]| (x - mean) * rstd)?;
    let projection = c.b.multiply(grad, xhat)?;
    let mut input = grad;
    if training {
        let mut means = Vec::with_capacity(2);
        for term in [grad, projection] {
            let mean = mean(c.b, term, &others)?;
            means.push(spread(c.b, mean, &x.sizes, &others)?);
        }
        input =
            formula(c.b, [grad, means[0], xhat, means[1]], |[g, mean, xhat, along]| g - mean - xhat * along)?;
    }
    input = c.b.multiply(input, rstd)?;
    if let Some(weight) = weight {
        let weight = channels(c, &weight, dtype, &x.sizes)?;
        input = c.b.multiply(input, weight)?;
    }
    let weight = c.b.reduce_add(projection, &others)?;
    let bias = c.b.reduce_add(grad, &others)?;
    masked(c, [input, weight, bias])
}
