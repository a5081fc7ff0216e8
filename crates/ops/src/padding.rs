//! Reflection and replication padding, forward and backward, one dimension at a time without gathers.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::error::LoweringError;
use crate::graph::Dims;
use crate::movement::pad_amounts;
use crate::registry::OpDef;
use crate::views::{operand, slice_dim};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::reflection_pad1d", |c| pad(c, Edge::Reflect)),
    OpDef::new("aten::reflection_pad2d", |c| pad(c, Edge::Reflect)),
    OpDef::new("aten::reflection_pad3d", |c| pad(c, Edge::Reflect)),
    OpDef::new("aten::replication_pad1d", |c| pad(c, Edge::Replicate)),
    OpDef::new("aten::replication_pad2d", |c| pad(c, Edge::Replicate)),
    OpDef::new("aten::replication_pad3d", |c| pad(c, Edge::Replicate)),
    OpDef::new("aten::reflection_pad1d_backward", |c| backward(c, Edge::Reflect)),
    OpDef::new("aten::reflection_pad2d_backward", |c| backward(c, Edge::Reflect)),
    OpDef::new("aten::reflection_pad3d_backward", |c| backward(c, Edge::Reflect)),
    OpDef::new("aten::replication_pad1d_backward", |c| backward(c, Edge::Replicate)),
    OpDef::new("aten::replication_pad2d_backward", |c| backward(c, Edge::Replicate)),
    OpDef::new("aten::replication_pad3d_backward", |c| backward(c, Edge::Replicate)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// The border is mirrored without the edge element.
    Reflect,
    /// The edge element is repeated.
    Replicate,
}

fn pad(c: &mut Call<'_>, edge: Edge) -> Result<Outputs> {
    let mut value = operand(c)?;
    let (low, high) = pad_amounts(&c.ints(1)?, c.b.rank(value))?;
    for dim in 0..low.len() {
        if low[dim] != 0 || high[dim] != 0 {
            value = pad_dim(c.b, value, dim, low[dim], high[dim], edge)?;
        }
    }
    Ok(value.into())
}

/// Negative amounts crop.
fn pad_dim(b: &mut Builder, x: Value, dim: usize, low: i64, high: i64, edge: Edge) -> Result<Value> {
    let n = b.dims(x)[dim];
    let mut parts = Vec::with_capacity(3);
    if low > 0 {
        parts.push(border(b, x, dim, low, 0, 1, edge)?);
    }
    parts.push(slice_dim(b, x, dim, (-low).max(0), n - (-high).max(0), 1)?);
    if high > 0 {
        parts.push(border(b, x, dim, high, n - 1, n - 1 - high, edge)?);
    }
    Ok(b.concatenate(&parts, dim as i64)?)
}

/// `count` elements: those from `mirror` on reversed, or the one at `at` repeated.
fn border(
    b: &mut Builder,
    x: Value,
    dim: usize,
    count: i64,
    at: i64,
    mirror: i64,
    edge: Edge,
) -> Result<Value> {
    if edge == Edge::Reflect {
        let part = slice_dim(b, x, dim, mirror, mirror + count, 1)?;
        return Ok(b.reverse(part, &[dim as i64])?);
    }
    let part = slice_dim(b, x, dim, at, at + 1, 1)?;
    let mut dims = Dims::from_slice(b.dims(part));
    dims[dim] = count;
    let map: Dims = (0..dims.len() as i64).collect();
    Ok(b.broadcast_in_dim(part, &dims, &map)?)
}

fn backward(c: &mut Call<'_>, edge: Edge) -> Result<Outputs> {
    let grad = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let mut value = c.value(&grad, out.dtype.opmath())?;
    let (low, high) = pad_amounts(&c.ints(2)?, out.sizes.len())?;
    for dim in 0..low.len() {
        if low[dim] != 0 || high[dim] != 0 {
            value = backward_dim(c.b, value, dim, out.sizes[dim], low[dim], high[dim], edge)?;
        }
    }
    Ok(c.convert(value, out.dtype)?.into())
}

/// The gradient of the middle, plus that of each border where its elements came from.
fn backward_dim(
    b: &mut Builder,
    grad: Value,
    dim: usize,
    n: i64,
    low: i64,
    high: i64,
    edge: Edge,
) -> Result<Value> {
    let padded = b.dims(grad)[dim];
    let middle = slice_dim(b, grad, dim, low.max(0), padded - high.max(0), 1)?;
    let mut sum = place(b, middle, dim, (-low).max(0), n)?;
    for (count, start, at, mirror) in [(low, 0, 0, 1), (high, padded - high, n - 1, n - 1 - high)] {
        if count <= 0 {
            continue;
        }
        let part = slice_dim(b, grad, dim, start, start + count, 1)?;
        let part = if edge == Edge::Reflect {
            let part = b.reverse(part, &[dim as i64])?;
            place(b, part, dim, mirror, n)?
        } else {
            let mut dims = Dims::from_slice(b.dims(part));
            dims[dim] = 1;
            let total = b.reduce_add(part, &[dim as i64])?;
            let total = b.reshape(total, &dims)?;
            place(b, total, dim, at, n)?
        };
        sum = b.add(sum, part)?;
    }
    Ok(sum)
}

/// Zeros of size `n` in one dimension but for `x` at `start`.
fn place(b: &mut Builder, x: Value, dim: usize, start: i64, n: i64) -> Result<Value> {
    let rank = b.rank(x);
    let zero = b.zero(b.elem(x))?;
    let (mut low, mut high) = (Dims::from_elem(0, rank), Dims::from_elem(0, rank));
    low[dim] = start;
    high[dim] = n - start - b.dims(x)[dim];
    Ok(b.pad(x, zero, &low, &high, &Dims::from_elem(0, rank))?)
}
