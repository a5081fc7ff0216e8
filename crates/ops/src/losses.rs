//! Loss functions. Elements and their sum are kept in the opmath type and rounded once.

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::elementwise::broadcast;
use crate::error::{CheckKind, LoweringError};
use crate::formula::{Expr, formula};
use crate::graph::Dims;
use crate::indices::any;
use crate::normalization::as_output;
use crate::registry::OpDef;
use crate::statistics::divide_by_count;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::mse_loss", |c| {
        pairwise(c, 2, |x, t| {
            let d = x - t;
            d * d
        })
    }),
    OpDef::new("aten::mse_loss_backward", |c| pairwise_backward(c, 3, |d, g| 2.0 * d * g)),
    OpDef::new("aten::smooth_l1_loss", smooth_l1_loss),
    OpDef::new("aten::smooth_l1_loss_backward", |c| {
        let beta = c.float(4)?;
        pairwise_backward(c, 3, move |d, g| {
            // The order matters for a beta of 0: there equal elements count as below.
            let above = d.ge(d.splat(beta)).select(g, d * g / beta);
            d.le(d.splat(-beta)).select(-g, above)
        })
    }),
    OpDef::new("aten::huber_loss", |c| {
        let delta = c.float(3)?;
        pairwise(c, 2, move |x, t| {
            let z = (x - t).abs();
            z.le(z.splat(delta)).select(0.5 * z * z, delta * (z - 0.5 * delta))
        })
    }),
    OpDef::new("aten::huber_loss_backward", |c| {
        let delta = c.float(4)?;
        pairwise_backward(c, 3, move |d, g| d.abs().le(d.splat(delta)).select(d * g, d.sign() * g * delta))
    }),
    OpDef::new("aten::soft_margin_loss", |c| pairwise(c, 2, |x, t| (-(t * x)).exp().log1p())),
    OpDef::new("aten::binary_cross_entropy", binary_cross_entropy),
    OpDef::new("aten::binary_cross_entropy_backward", binary_cross_entropy_backward),
    OpDef::new("aten::binary_cross_entropy_with_logits", binary_cross_entropy_with_logits),
];

/// `at::Reduction`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    None,
    Mean,
    Sum,
}

impl Reduction {
    pub fn parse(c: &Call<'_>, index: usize) -> Result<Self> {
        match c.int(index)? {
            0 => Ok(Self::None),
            1 => Ok(Self::Mean),
            2 => Ok(Self::Sum),
            other => Err(LoweringError::invalid(format!("{other} is not a valid value for reduction"))),
        }
    }
}

/// Reduces the elements of a loss to output 0.
fn reduce(c: &mut Call<'_>, loss: Value, reduction: Reduction) -> Result<Outputs> {
    let dims: Dims = (0..c.b.rank(loss) as i64).collect();
    let count = c.b.dims(loss).iter().product();
    let value = match reduction {
        Reduction::None => loss,
        Reduction::Sum => c.b.reduce_add(loss, &dims)?,
        Reduction::Mean => {
            let sum = c.b.reduce_add(loss, &dims)?;
            divide_by_count(c.b, sum, count)?
        }
    };
    Ok([as_output(c, 0, value)?].into())
}

/// The common dimensions of operands.
fn common_sizes(tensors: &[&Tensor]) -> Dims {
    let rank = tensors.iter().map(|tensor| tensor.rank()).max().unwrap_or(0);
    (1..=rank)
        .rev()
        .map(|back| {
            let size = |tensor: &&Tensor| tensor.sizes.len().checked_sub(back).map(|dim| tensor.sizes[dim]);
            tensors.iter().filter_map(size).find(|&size| size != 1).unwrap_or(1)
        })
        .collect()
}

/// A loss of input (argument 0) and target (argument 1).
fn pairwise(
    c: &mut Call<'_>,
    reduction: usize,
    loss: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>,
) -> Result<Outputs> {
    let (x, target) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    let reduction = Reduction::parse(c, reduction)?;
    let sizes = common_sizes(&[&x, &target]);
    let values = broadcast(c, dtype, [&x, &target], &sizes)?;
    let value = formula(c.b, values, |[x, target]| loss(x, target))?;
    reduce(c, value, reduction)
}

/// The gradient of a loss of the difference `d` of input (argument 1) and target (argument 2), from the gradient
/// (argument 0) of the result, which for a mean is shared by all elements.
fn pairwise_backward(
    c: &mut Call<'_>,
    reduction: usize,
    gradient: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>,
) -> Result<Outputs> {
    let (grad, x, target) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype.opmath();
    let reduction = Reduction::parse(c, reduction)?;
    let sizes = common_sizes(&[&grad, &x, &target]);
    let values = broadcast(c, dtype, [&grad, &x, &target], &sizes)?;
    let mut value = formula(c.b, values, |[grad, x, target]| gradient(x - target, grad))?;
    if reduction == Reduction::Mean {
        value = divide_by_count(c.b, value, x.numel())?;
    }
    Ok([as_output(c, 0, value)?].into())
}

fn smooth_l1_loss(c: &mut Call<'_>) -> Result<Outputs> {
    let beta = c.float(3)?;
    pairwise(c, 2, move |x, t| {
        let z = (x - t).abs();
        z.lt(z.splat(beta)).select(0.5 * z * z / beta, z - 0.5 * beta)
    })
}

/// Multiplies a loss by the optional weight in argument `index`.
fn weighted(c: &mut Call<'_>, loss: Value, index: usize, dtype: DType) -> Result<Value> {
    let Some(weight) = c.opt_tensor(index)? else { return Ok(loss) };
    let sizes = Dims::from_slice(c.b.dims(loss));
    let weight = c.broadcast(&weight, dtype, &sizes)?;
    Ok(c.b.multiply(loss, weight)?)
}

fn binary_cross_entropy(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, target) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    let reduction = Reduction::parse(c, 3)?;
    let values = broadcast(c, dtype, [&x, &target], &x.sizes)?;
    // Written so that NaN fails too.
    let outside = formula(c.b, [values[0]], |[x]| !(x.ge(x.splat(0.0)) & x.le(x.splat(1.0))))?;
    let outside = any(c.b, outside)?;
    c.check(outside, CheckKind::Runtime, "all elements of input should be between 0 and 1");
    let loss = formula(c.b, values, |[x, t]| {
        // Logarithms are limited to -100, so that a sure and wrong prediction has a finite loss.
        let yes = x.log().max(x.splat(-100.0));
        let no = (-x).log1p().max(x.splat(-100.0));
        (t - 1.0) * no - t * yes
    })?;
    let loss = weighted(c, loss, 2, dtype)?;
    reduce(c, loss, reduction)
}

/// Arguments: gradient, input, target, weight, reduction.
fn binary_cross_entropy_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, target) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = c.out(0)?.dtype.opmath();
    let reduction = Reduction::parse(c, 4)?;
    let values = broadcast(c, dtype, [&grad, &x, &target], &x.sizes)?;
    let value = formula(c.b, values, |[g, x, t]| {
        let variance = (1.0 - x) * x;
        g * (x - t) / variance.max(x.splat(1e-12))
    })?;
    let mut value = weighted(c, value, 3, dtype)?;
    if reduction == Reduction::Mean {
        value = divide_by_count(c.b, value, x.numel())?;
    }
    Ok([as_output(c, 0, value)?].into())
}

/// Arguments: input, target, weight, pos_weight, reduction.
fn binary_cross_entropy_with_logits(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, target) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    let reduction = Reduction::parse(c, 4)?;
    let [x, target] = broadcast(c, dtype, [&x, &target], &x.sizes)?;
    let sizes = Dims::from_slice(c.b.dims(x));
    let positive = c.opt_tensor(3)?;
    let softplus = formula(c.b, [x], |[x]| (-x.abs()).exp().log1p() + (-x).max(x.splat(0.0)))?;
    let loss = match positive {
        Some(positive) => {
            let positive = c.broadcast(&positive, dtype, &sizes)?;
            formula(c.b, [x, target, positive, softplus], |[x, t, positive, softplus]| {
                (1.0 - t) * x + ((positive - 1.0) * t + 1.0) * softplus
            })?
        }
        None => formula(c.b, [x, target, softplus], |[x, t, softplus]| (1.0 - t) * x + softplus)?,
    };
    let loss = weighted(c, loss, 2, dtype)?;
    reduce(c, loss, reduction)
}
