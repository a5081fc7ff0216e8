//! View operators as nodes of a graph: they act on logical values, so a view is a new value and strides play no part
//! (except in `as_strided`, see `strided.rs`). Eager views never come here: they are metadata.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs, wrap_dim};
use crate::convert;
use crate::error::{CheckKind, LoweringError};
use crate::graph::Dims;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    // What changes sizes only.
    OpDef::new("aten::view", reshape).composite(),
    OpDef::new("aten::view_copy", reshape).composite(),
    OpDef::new("aten::view_as", reshape).composite(),
    OpDef::new("aten::reshape", reshape).composite(),
    OpDef::new("aten::reshape_as", reshape).composite(),
    OpDef::new("aten::_unsafe_view", reshape).composite(),
    OpDef::new("aten::_reshape_alias", reshape).composite(),
    OpDef::new("aten::_reshape_copy", reshape).composite(),
    OpDef::new("aten::flatten.using_ints", reshape).composite(),
    OpDef::new("aten::unflatten.int", reshape).composite(),
    OpDef::new("aten::unsqueeze", reshape).composite(),
    OpDef::new("aten::unsqueeze_copy", reshape).composite(),
    OpDef::new("aten::squeeze", reshape).composite(),
    OpDef::new("aten::squeeze.dim", reshape).composite(),
    OpDef::new("aten::squeeze.dims", reshape).composite(),
    OpDef::new("aten::squeeze_copy", reshape).composite(),
    OpDef::new("aten::squeeze_copy.dim", reshape).composite(),
    OpDef::new("aten::squeeze_copy.dims", reshape).composite(),
    OpDef::new("prims::reshape", reshape).composite(),
    OpDef::new("prims::squeeze", reshape).composite(),
    OpDef::new("prims::split_dim", reshape).composite(),
    OpDef::new("prims::collapse", reshape).composite(),
    OpDef::new("prims::collapse_view", reshape).composite(),
    // The same values.
    OpDef::new("aten::alias", same).composite(),
    OpDef::new("aten::alias_copy", same).composite(),
    OpDef::new("aten::detach", same).composite(),
    OpDef::new("aten::detach_copy", same).composite(),
    OpDef::new("aten::lift", same).composite(),
    OpDef::new("aten::lift_fresh_copy", same).composite(),
    OpDef::new("aten::contiguous", same).composite(),
    OpDef::new("aten::resolve_conj", same).composite(),
    OpDef::new("aten::resolve_neg", same).composite(),
    OpDef::new("prims::view_of", same).composite(),
    OpDef::new("aten::_neg_view", |c| {
        let value = operand(c)?;
        Ok(c.b.negate(value)?.into())
    })
    .composite(),
    // Repeats.
    OpDef::new("aten::expand", expand).composite(),
    OpDef::new("aten::expand_copy", expand).composite(),
    OpDef::new("aten::expand_as", expand).composite(),
    OpDef::new("aten::broadcast_to", expand).composite(),
    OpDef::new("prims::broadcast_in_dim", broadcast_in_dim).composite(),
    // Other orders of the dimensions.
    OpDef::new("aten::permute", permute).composite(),
    OpDef::new("aten::permute_copy", permute).composite(),
    OpDef::new("prims::transpose", permute).composite(),
    OpDef::new("aten::transpose.int", transpose).composite(),
    OpDef::new("aten::transpose_copy.int", transpose).composite(),
    OpDef::new("aten::swapaxes", transpose).composite(),
    OpDef::new("aten::swapdims", transpose).composite(),
    OpDef::new("aten::t", reverse_dims).composite(),
    OpDef::new("aten::t_copy", reverse_dims).composite(),
    OpDef::new("aten::numpy_T", reverse_dims).composite(),
    OpDef::new("aten::mT", matrix_transpose).composite(),
    OpDef::new("aten::movedim.int", movedim).composite(),
    OpDef::new("aten::movedim.intlist", movedim).composite(),
    // Parts.
    OpDef::new("aten::slice.Tensor", slice).composite(),
    OpDef::new("aten::slice_copy.Tensor", slice).composite(),
    OpDef::new("aten::select.int", select).composite(),
    OpDef::new("aten::select_copy.int", select).composite(),
    OpDef::new("aten::narrow", narrow).composite(),
    OpDef::new("aten::narrow_copy", narrow),
    OpDef::new("aten::split.Tensor", split).composite(),
    OpDef::new("aten::split.sizes", split).composite(),
    OpDef::new("aten::split_copy.Tensor", split).composite(),
    OpDef::new("aten::split_with_sizes", split).composite(),
    OpDef::new("aten::split_with_sizes_copy", split).composite(),
    OpDef::new("aten::unsafe_split.Tensor", split).composite(),
    OpDef::new("aten::unsafe_split_with_sizes", split).composite(),
    OpDef::new("aten::chunk", split).composite(),
    OpDef::new("aten::unsafe_chunk", split).composite(),
    OpDef::new("aten::tensor_split.sections", split).composite(),
    OpDef::new("aten::tensor_split.indices", split).composite(),
    OpDef::new("aten::unbind.int", unbind).composite(),
    OpDef::new("aten::unbind_copy.int", unbind).composite(),
    OpDef::new("aten::diagonal", diagonal).composite(),
    OpDef::new("aten::diagonal_copy", diagonal).composite(),
];

/// Argument 0 in its own dtype.
pub fn operand(c: &mut Call<'_>) -> Result<Value> {
    let x = c.tensor(0)?;
    c.value(&x, x.dtype)
}

fn same(c: &mut Call<'_>) -> Result<Outputs> {
    Ok(operand(c)?.into())
}

fn reshape(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let sizes = c.out(0)?.sizes.clone();
    Ok(c.b.reshape(value, &sizes)?.into())
}

fn expand(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let sizes = c.out(0)?.sizes.clone();
    Ok(convert::broadcast_to(c.b, value, &sizes)?.into())
}

fn broadcast_in_dim(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let sizes = c.out(0)?.sizes.clone();
    let map = c.ints(2)?;
    Ok(c.b.broadcast_in_dim(value, &sizes, &map)?.into())
}

fn permute(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let order = wrap_dims(&c.ints(1)?, c.b.rank(value))?;
    Ok(c.b.transpose(value, &order)?.into())
}

fn transpose(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let rank = c.b.rank(value);
    let (first, second) = (wrap_dim(c.int(1)?, rank)?, wrap_dim(c.int(2)?, rank)?);
    let mut order = identity(rank);
    if rank > 0 {
        order.swap(first, second);
    }
    Ok(c.b.transpose(value, &order)?.into())
}

fn reverse_dims(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let order: Dims = identity(c.b.rank(value)).into_iter().rev().collect();
    Ok(c.b.transpose(value, &order)?.into())
}

fn matrix_transpose(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let mut order = identity(c.b.rank(value));
    if let [.., rows, columns] = order.as_mut_slice() {
        std::mem::swap(rows, columns);
    }
    Ok(c.b.transpose(value, &order)?.into())
}

fn movedim(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let rank = c.b.rank(value);
    let from = wrap_dims(&c.ints(1)?, rank)?;
    let to = wrap_dims(&c.ints(2)?, rank)?;
    let mut rest = (0..rank as i64).filter(|dim| !from.contains(dim));
    let mut order = Dims::new();
    for position in 0..rank as i64 {
        let moved = to.iter().position(|&dim| dim == position).map(|i| from[i]);
        order.extend(moved.or_else(|| rest.next()));
    }
    Ok(c.b.transpose(value, &order)?.into())
}

/// Start and end of a Python slice inside a dimension of `size`, as `at::slice` clamps them.
pub fn slice_bounds(start: Option<i64>, end: Option<i64>, size: i64) -> (i64, i64) {
    let wrap = |at: i64| if at < 0 { at.saturating_add(size) } else { at }.clamp(0, size);
    let start = wrap(start.unwrap_or(0));
    (start, wrap(end.unwrap_or(i64::MAX)).max(start))
}

fn slice(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let dim = sized_dim(c.opt_int(1)?.unwrap_or(0), c.b.rank(value))?;
    let (start, end) = slice_bounds(c.opt_int(2)?, c.opt_int(3)?, c.b.dims(value)[dim]);
    let step = c.opt_int(4)?.unwrap_or(1);
    Ok(slice_dim(c.b, value, dim, start, end, step)?.into())
}

/// An index counted from 0, as `select` accepts it.
pub fn wrap_index(index: i64, dim: usize, sizes: &[i64]) -> Result<i64> {
    let size = sizes[dim];
    if index < -size || index >= size {
        return Err(LoweringError::InvalidArgument {
            kind: CheckKind::Index,
            message: format!(
                "select(): index {index} out of range for tensor of size {sizes:?} at dimension {dim}"
            ),
        });
    }
    Ok(if index < 0 { index + size } else { index })
}

fn select(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let dim = sized_dim(c.int(1)?, c.b.rank(value))?;
    let index = wrap_index(c.int(2)?, dim, c.b.dims(value))?;
    Ok(take_one(c.b, value, dim, index)?.into())
}

fn narrow(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let dim = sized_dim(c.int(1)?, c.b.rank(value))?;
    let start = c.int(2)?;
    let start = if start < 0 { start + c.b.dims(value)[dim] } else { start };
    let length = c.out(0)?.sizes[dim];
    Ok(slice_dim(c.b, value, dim, start, start + length, 1)?.into())
}

/// Consecutive parts along the last argument; the sizes of the parts are those of the outputs.
fn split(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let dim = sized_dim(c.opt_int(2)?.unwrap_or(0), c.b.rank(value))?;
    let mut parts = Vec::with_capacity(c.outputs());
    let mut start = 0;
    for k in 0..c.outputs() {
        let end = start + c.out(k)?.sizes[dim];
        parts.push(slice_dim(c.b, value, dim, start, end, 1)?);
        start = end;
    }
    Ok(parts.into())
}

fn unbind(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let dim = sized_dim(c.opt_int(1)?.unwrap_or(0), c.b.rank(value))?;
    let parts: Result<Vec<Value>> =
        (0..c.b.dims(value)[dim]).map(|index| take_one(c.b, value, dim, index)).collect();
    Ok(parts?.into())
}

fn diagonal(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let rank = c.b.rank(value);
    let offset = c.opt_int(1)?.unwrap_or(0);
    let first = wrap_dim(c.opt_int(2)?.unwrap_or(0), rank)?;
    let second = wrap_dim(c.opt_int(3)?.unwrap_or(1), rank)?;
    Ok(take_diagonal(c.b, value, offset, first, second)?.into())
}

/// The diagonal of two dimensions as the new last one.
///
/// With both at the end, `[.., r, n]`, element (i, i) of a square cut is at i * (n + 1) of the flattened matrix: one
/// column of rows of n + 1. So no gather.
pub fn take_diagonal(b: &mut Builder, x: Value, offset: i64, first: usize, second: usize) -> Result<Value> {
    let rank = b.rank(x);
    let mut order: Dims = (0..rank as i64).filter(|&d| d != first as i64 && d != second as i64).collect();
    order.extend([first as i64, second as i64]);
    let moved = b.transpose(x, &order)?;
    let (rows, columns) = (b.dims(moved)[rank - 2], b.dims(moved)[rank - 1]);
    let (top, left) = (offset.saturating_neg().clamp(0, rows), offset.clamp(0, columns));
    let n = (rows - top).min(columns - left);
    let cut = slice_dim(b, moved, rank - 2, top, top + n, 1)?;
    let square = slice_dim(b, cut, rank - 1, left, left + n, 1)?;
    let mut dims = Dims::from_slice(&b.dims(square)[..rank - 2]);
    if n <= 1 {
        dims.push(n);
        return Ok(b.reshape(square, &dims)?);
    }
    // Without its last element the flattened matrix is n - 1 rows of n + 1.
    dims.push(n * n);
    let flat = b.reshape(square, &dims)?;
    let head = slice_dim(b, flat, rank - 2, 0, n * n - 1, 1)?;
    dims.pop();
    dims.extend([n - 1, n + 1]);
    let rows = b.reshape(head, &dims)?;
    let column = take_one(b, rows, rank - 1, 0)?;
    let last = slice_dim(b, flat, rank - 2, n * n - 1, n * n, 1)?;
    Ok(b.concatenate(&[column, last], rank as i64 - 2)?)
}

/// A dimension counted from 0, which must exist.
pub fn sized_dim(dim: i64, rank: usize) -> Result<usize> {
    if rank == 0 {
        return Err(LoweringError::invalid("this operator cannot be applied to a 0-dim tensor"));
    }
    wrap_dim(dim, rank)
}

pub fn identity(rank: usize) -> Dims {
    (0..rank as i64).collect()
}

pub fn wrap_dims(dims: &[i64], rank: usize) -> Result<Dims> {
    dims.iter().map(|&dim| wrap_dim(dim, rank).map(|dim| dim as i64)).collect()
}

/// Elements `start, start + step, ...` below `end` of one dimension. A 0-d value stays as it is.
pub fn slice_dim(b: &mut Builder, x: Value, dim: usize, start: i64, end: i64, step: i64) -> Result<Value> {
    let mut limits = Dims::from_slice(b.dims(x));
    let mut starts = Dims::from_elem(0, limits.len());
    let mut steps = Dims::from_elem(1, limits.len());
    if let Some(limit) = limits.get_mut(dim) {
        (starts[dim], *limit, steps[dim]) = (start, end, step);
    }
    Ok(b.slice(x, &starts, &limits, &steps)?)
}

/// The slice at `index` of one dimension, without that dimension.
pub fn take_one(b: &mut Builder, x: Value, dim: usize, index: i64) -> Result<Value> {
    let part = slice_dim(b, x, dim, index, index + 1, 1)?;
    let mut dims = Dims::from_slice(b.dims(part));
    dims.remove(dim);
    Ok(b.reshape(part, &dims)?)
}

/// Dimension `from` moved to position `to`, the others in order.
pub fn move_dim(b: &mut Builder, x: Value, from: usize, to: usize) -> Result<Value> {
    let mut order = identity(b.rank(x));
    let dim = order.remove(from);
    order.insert(to, dim);
    Ok(b.transpose(x, &order)?)
}
