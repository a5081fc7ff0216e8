//! Negative log likelihood: the loss is read at each target's class.

use stablehlo::{Direction, Value};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::formula;
use crate::graph::{Dims, Number};
use crate::indices::{any, gather_at, index_dtype, index_vectors, iota, take};
use crate::losses::Reduction;
use crate::normalization::as_output;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::nll_loss_forward", forward),
    OpDef::new("aten::nll_loss2d_forward", forward),
    OpDef::new("aten::nll_loss_backward", backward),
    OpDef::new("aten::nll_loss2d_backward", backward),
];

/// The targets of a call, with a leading batch dimension.
struct Targets {
    /// Class of each target, 0 where it is ignored, in the type of indices.
    class: Value,
    /// False where a target is ignored.
    counted: Value,
    /// The weight of each target in the opmath type, 0 where it is ignored.
    weight: Value,
    /// Batch, then the dimensions of `nll_loss2d`.
    sizes: Dims,
    classes: i64,
}

impl Targets {
    /// Arguments from `first`: input, target, weight, reduction, ignore_index. The input's sizes come with a batch.
    fn parse(c: &mut Call<'_>, first: usize, input: &[i64], dtype: DType) -> Result<Self> {
        let target = c.tensor(first + 1)?;
        if !matches!(target.dtype, DType::Int64 | DType::UInt8) {
            return Err(LoweringError::invalid(format!(
                "expected target dtype to be Long or Byte, but got {}",
                target.dtype
            )));
        }
        let classes = input[1];
        let mut sizes = Dims::from_slice(&input[..1]);
        sizes.extend_from_slice(&input[2..]);
        let ignore = c.int(first + 4)?;
        let value = c.value(&target, DType::Int64)?;
        let value = c.b.reshape(value, &sizes)?;
        let ignore = convert::splat(c.b, value, Number::Int(ignore))?;
        let counted = c.b.compare(value, ignore, Direction::Ne)?;
        let outside = formula(c.b, [value, counted], |[target, counted]| {
            counted & (target.lt(target.splat_int(0)) | target.ge(target.splat_int(classes)))
        })?;
        let outside = any(c.b, outside)?;
        c.check(outside, CheckKind::Index, "Target is out of bounds.");
        let zero = convert::splat(c.b, value, Number::Int(0))?;
        let class = c.b.select(counted, value, zero)?;
        let class = c.convert(class, index_dtype(classes))?;
        let none = c.full(Number::Int(0), dtype, &sizes)?;
        let weight = match c.opt_tensor(first + 2)? {
            Some(weight) if weight.numel() > 0 => {
                let weight = c.value(&weight, dtype)?;
                take(c.b, weight, 0, class)?
            }
            _ => c.full(Number::Int(1), dtype, &sizes)?,
        };
        let weight = c.b.select(counted, weight, none)?;
        Ok(Self { class, counted, weight, sizes, classes })
    }

    fn dims(&self) -> Dims {
        (0..self.sizes.len() as i64).collect()
    }
}

/// Sizes with a batch dimension of 1 if there is none.
fn batched(sizes: &[i64]) -> Dims {
    if sizes.len() == 1 { [1, sizes[0]].into_iter().collect() } else { Dims::from_slice(sizes) }
}

/// Arguments: input, target, weight, reduction, ignore_index. Outputs: the loss, the sum of weights.
fn forward(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dtype = x.dtype.opmath();
    let sizes = batched(&x.sizes);
    let reduction = Reduction::parse(c, 3)?;
    let targets = Targets::parse(c, 0, &sizes, dtype)?;
    let zero = c.full(Number::Int(0), dtype, &[])?;
    let value = c.value(&x, dtype)?;
    let value = c.b.reshape(value, &sizes)?;
    let picked = if x.numel() == 0 {
        c.full(Number::Int(0), dtype, &targets.sizes)?
    } else {
        let mut vectors = Vec::with_capacity(sizes.len());
        for dim in 0..targets.sizes.len() {
            let longest = targets.sizes.iter().copied().max().unwrap_or(0).max(targets.classes);
            vectors.push(iota(c.b, index_dtype(longest), &targets.sizes, dim)?);
        }
        vectors.insert(1, targets.class);
        let vectors = index_vectors(c.b, &vectors, &targets.sizes)?;
        let dims: Vec<usize> = (0..sizes.len()).collect();
        gather_at(c.b, value, &dims, vectors, 0)?
    };
    // The log likelihood of an ignored target does not count even if it is not finite.
    let loss = formula(c.b, [picked, targets.weight, targets.counted], |[x, weight, counted]| {
        counted.select(-(x * weight), x.splat(0.0))
    })?;
    let (loss, total) = match reduction {
        // Without a batch there is one loss, and CPU gives its weight.
        Reduction::None if x.rank() > 1 => (loss, zero),
        _ => {
            let dims = targets.dims();
            let sum = c.b.reduce_add(loss, &dims)?;
            let total = c.b.reduce_add(targets.weight, &dims)?;
            let mean = if reduction == Reduction::Mean { c.b.divide(sum, total)? } else { sum };
            (mean, total)
        }
    };
    Ok([as_output(c, 0, loss)?, as_output(c, 1, total)?].into())
}

/// Arguments: gradient, input, target, weight, reduction, ignore_index, sum of weights.
fn backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = x.dtype.opmath();
    let sizes = batched(&x.sizes);
    let reduction = Reduction::parse(c, 4)?;
    let targets = Targets::parse(c, 1, &sizes, dtype)?;
    let mut scale = if grad.numel() == 1 {
        let grad = c.value(&grad, dtype)?;
        let grad = c.b.reshape(grad, &[])?;
        c.b.broadcast_scalar(grad, &targets.sizes)?
    } else {
        let grad = c.value(&grad, dtype)?;
        c.b.reshape(grad, &targets.sizes)?
    };
    if reduction == Reduction::Mean {
        let total = c.tensor(6)?;
        let total = c.broadcast(&total, dtype, &targets.sizes)?;
        scale = c.b.divide(scale, total)?;
    }
    let per_target = formula(c.b, [scale, targets.weight], |[scale, weight]| -(scale * weight))?;
    let around: Dims = (0..sizes.len() as i64).filter(|&dim| dim != 1).collect();
    let class = c.b.broadcast_in_dim(targets.class, &sizes, &around)?;
    let counted = c.b.broadcast_in_dim(targets.counted, &sizes, &around)?;
    let per_target = c.b.broadcast_in_dim(per_target, &sizes, &around)?;
    let classes = iota(c.b, index_dtype(targets.classes), &sizes, 1)?;
    let input = formula(c.b, [per_target, class, counted, classes], |[grad, class, counted, classes]| {
        (classes.eq(class) & counted).select(grad, grad.splat(0.0))
    })?;
    Ok([as_output(c, 0, input)?].into())
}
