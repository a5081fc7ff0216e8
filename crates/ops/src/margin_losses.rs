//! Gradients of the margin losses of classes: each class that comes within the margin of a target pushes both apart.

use stablehlo::{Direction, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::formula;
use crate::graph::Number;
use crate::indices::{any, iota, take};
use crate::losses::Reduction;
use crate::normalization::as_output;
use crate::registry::OpDef;
use crate::statistics::{divide_by_count, spread, spread_sum};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::multi_margin_loss_backward", multi_margin).attributes(&[3]),
    OpDef::new("aten::multilabel_margin_loss_backward", multilabel_margin),
];

/// Samples and classes of an input that may come without a batch.
fn samples(x: &Tensor) -> Result<[i64; 2]> {
    match x.sizes[..] {
        [] => Ok([1, 1]),
        [classes] => Ok([1, classes]),
        [samples, classes] => Ok([samples, classes]),
        _ => {
            Err(LoweringError::invalid("Expected non-empty vector or matrix with optional 0-dim batch size"))
        }
    }
}

/// The gradient of the loss (argument 0) at every sample and class, divided as the reduction divides the loss.
fn scale(c: &mut Call<'_>, sizes: [i64; 2], reduction: Reduction, dtype: DType) -> Result<Value> {
    let grad = c.tensor(0)?;
    let value = c.value(&grad, dtype)?;
    let value = if reduction == Reduction::None && grad.numel() == sizes[0] {
        let value = c.b.reshape(value, &[sizes[0]])?;
        spread(c.b, value, &sizes, &[1])?
    } else {
        let value = c.b.reshape(value, &[])?;
        c.b.broadcast_scalar(value, &sizes)?
    };
    let count = if reduction == Reduction::Mean { sizes[0] * sizes[1] } else { sizes[1] };
    divide_by_count(c.b, value, count)
}

fn matrix(c: &mut Call<'_>, x: &Tensor, sizes: [i64; 2], dtype: DType) -> Result<Value> {
    let value = c.value(x, dtype)?;
    Ok(c.b.reshape(value, &sizes)?)
}

/// Arguments: gradient, self, target, p, margin, weight, reduction.
fn multi_margin(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, target, p) = (c.tensor(1)?, c.tensor(2)?, c.float(3)?);
    let dtype = x.dtype.opmath();
    let sizes = samples(&x)?;
    let reduction = Reduction::parse(c, 6)?;
    let margin = c.scalar(4, dtype)?;
    let margin = c.b.broadcast_scalar(margin, &sizes)?;
    let scale = scale(c, sizes, reduction, dtype)?;
    let value = matrix(c, &x, sizes, dtype)?;
    let target = c.value(&target, DType::Int64)?;
    let target = c.b.reshape(target, &sizes[..1])?;
    let outside = formula(c.b, [target], |[t]| t.lt(t.splat_int(0)) | t.ge(t.splat_int(sizes[1])))?;
    let outside = any(c.b, outside)?;
    c.check(outside, CheckKind::Runtime, "target out of range");
    let weight = match c.opt_tensor(5)? {
        Some(weight) => {
            let weight = c.value(&weight, dtype)?;
            let weight = take(c.b, weight, 0, target)?;
            spread(c.b, weight, &sizes, &[1])?
        }
        None => c.full(Number::Int(1), dtype, &sizes)?,
    };
    let target = spread(c.b, target, &sizes, &[1])?;
    let class = iota(c.b, DType::Int64, &sizes, 1)?;
    let is_target = c.b.compare(class, target, Direction::Eq)?;
    let zero = convert::splat(c.b, value, Number::Int(0))?;
    let own = c.b.select(is_target, value, zero)?;
    let own = spread_sum(c.b, own, &[1])?;
    let pushed = formula(
        c.b,
        [value, own, margin, is_target, scale, weight],
        |[x, own, margin, is_target, scale, weight]| {
            let within = margin - own + x;
            let slope = if p == 1.0 { scale } else { scale * within * 2.0 };
            let zero = x.splat(0.0);
            (within.gt(zero) & !is_target).select(slope * weight, zero)
        },
    )?;
    let total = spread_sum(c.b, pushed, &[1])?;
    let value =
        formula(c.b, [pushed, total, is_target], |[x, total, is_target]| is_target.select(-total, x))?;
    Ok([as_output(c, 0, value)?].into())
}

/// Arguments: gradient, self, target, reduction, is_target. The targets of a sample end at the first -1.
fn multilabel_margin(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, target, is_target) = (c.tensor(1)?, c.tensor(2)?, c.tensor(4)?);
    let dtype = x.dtype.opmath();
    let sizes = samples(&x)?;
    let reduction = Reduction::parse(c, 3)?;
    let scale = scale(c, sizes, reduction, dtype)?;
    let value = matrix(c, &x, sizes, dtype)?;
    let target = matrix(c, &target, sizes, DType::Int64)?;
    let is_target = matrix(c, &is_target, sizes, DType::Bool)?;
    let [samples, classes] = sizes;
    let place = iota(c.b, DType::Int64, &sizes, 1)?;
    let ends = formula(c.b, [target, place], |[target, place]| {
        target.lt(target.splat_int(0)).select(place, place.splat_int(classes))
    })?;
    let end = c.b.reduce_min(ends, &[1])?;
    let end = spread(c.b, end, &sizes, &[1])?;
    let counted = c.b.compare(place, end, Direction::Lt)?;
    // [samples, targets, classes]
    let pairs = [samples, classes, classes];
    let by_target = |c: &mut Call<'_>, x: Value| spread(c.b, x, &pairs, &[2]);
    let by_class = |c: &mut Call<'_>, x: Value| spread(c.b, x, &pairs, &[1]);
    let class = iota(c.b, DType::Int64, &pairs, 2)?;
    let named = by_target(c, target)?;
    let counted = by_target(c, counted)?;
    let others = by_class(c, value)?;
    let chosen = by_class(c, is_target)?;
    let zero = convert::splat(c.b, others, Number::Int(0))?;
    let hit = c.b.compare(class, named, Direction::Eq)?;
    let own = c.b.select(hit, others, zero)?;
    let own = spread_sum(c.b, own, &[2])?;
    let within = formula(c.b, [others, own, counted, chosen], |[x, own, counted, chosen]| {
        let zero = x.splat(0.0);
        ((1.0 - own + x).gt(zero) & counted & !chosen).select(x.splat(1.0), zero)
    })?;
    let per_class = c.b.reduce_add(within, &[1])?;
    let per_target = spread_sum(c.b, within, &[2])?;
    let per_target = c.b.select(hit, per_target, zero)?;
    let per_target = c.b.reduce_add(per_target, &[1])?;
    let value =
        formula(c.b, [per_class, per_target, scale], |[class, target, scale]| (class - target) * scale)?;
    Ok([as_output(c, 0, value)?].into())
}
