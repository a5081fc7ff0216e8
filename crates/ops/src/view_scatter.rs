//! Writes to a view of a value: `slice_scatter` and its kin, the gradients of views, windows of a dimension.

use stablehlo::{Builder, Direction, TensorType, Value};

use crate::call::{Call, Outputs, wrap_dim};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::indices::{Combine, index_dtype, iota, put, take};
use crate::registry::OpDef;
use crate::views::{move_dim, operand, sized_dim, slice_bounds, slice_dim, wrap_index};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::slice_scatter", slice_scatter),
    OpDef::new("aten::select_scatter", select_scatter),
    OpDef::new("aten::diagonal_scatter", diagonal_scatter),
    OpDef::new("aten::slice_backward", slice_backward),
    OpDef::new("aten::select_backward", select_backward),
    OpDef::new("aten::diagonal_backward", diagonal_backward),
    OpDef::new("aten::unfold", unfold).composite(),
    OpDef::new("aten::unfold_copy", unfold).composite(),
    OpDef::new("aten::unfold_backward", unfold_backward),
];

fn slice_scatter(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, source) = (operand(c)?, c.tensor(1)?);
    let dim = sized_dim(c.opt_int(2)?.unwrap_or(0), c.b.rank(x))?;
    let size = c.b.dims(x)[dim];
    let (start, end) = slice_bounds(c.opt_int(3)?, c.opt_int(4)?, size);
    let step = c.opt_int(5)?.unwrap_or(1).max(1);
    let mut sizes = Dims::from_slice(c.b.dims(x));
    sizes[dim] = (end - start + step - 1) / step;
    let source = c.broadcast(&source, c.tensor(0)?.dtype, &sizes)?;
    Ok(write_slice(c.b, x, source, dim, start, step)?.into())
}

/// `x` with `source` at `start, start + step, ...` of one dimension.
fn write_slice(b: &mut Builder, x: Value, source: Value, dim: usize, start: i64, step: i64) -> Result<Value> {
    let size = b.dims(x)[dim];
    if b.dims(source)[dim] == 0 {
        return Ok(x);
    }
    if step == 1 {
        let elem = index_dtype(size).element_type();
        let mut starts = vec![b.zero(elem)?; b.rank(x)];
        starts[dim] = b.constant(elem, start)?;
        return Ok(b.dynamic_update_slice(x, source, &starts)?);
    }
    let spread = spread_slice(b, source, dim, start, step, size)?;
    let ones = b.dims(source).to_vec();
    let written = b.splat(DType::Bool.element_type(), &ones, true)?;
    let written = spread_slice(b, written, dim, start, step, size)?;
    Ok(b.select(written, spread, x)?)
}

/// Zeros of `size` in one dimension but for `source` at `start, start + step, ...`.
fn spread_slice(
    b: &mut Builder,
    source: Value,
    dim: usize,
    start: i64,
    step: i64,
    size: i64,
) -> Result<Value> {
    let rank = b.rank(source);
    let count = b.dims(source)[dim];
    let zero = b.zero(b.elem(source))?;
    let (mut low, mut high, mut interior) =
        (Dims::from_elem(0, rank), Dims::from_elem(0, rank), Dims::from_elem(0, rank));
    if count == 0 {
        high[dim] = size;
    } else {
        low[dim] = start;
        interior[dim] = step - 1;
        high[dim] = size - start - ((count - 1) * step + 1);
    }
    Ok(b.pad(source, zero, &low, &high, &interior)?)
}

fn select_scatter(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, source) = (operand(c)?, c.tensor(1)?);
    let dim = sized_dim(c.int(2)?, c.b.rank(x))?;
    let index = wrap_index(c.int(3)?, dim, c.b.dims(x))?;
    let source = c.value(&source, c.tensor(0)?.dtype)?;
    let source = unsqueeze(c.b, source, dim)?;
    Ok(write_slice(c.b, x, source, dim, index, 1)?.into())
}

fn unsqueeze(b: &mut Builder, x: Value, dim: usize) -> Result<Value> {
    let mut dims = Dims::from_slice(b.dims(x));
    dims.insert(dim, 1);
    Ok(b.reshape(x, &dims)?)
}

fn diagonal_scatter(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, source) = (operand(c)?, c.tensor(1)?);
    let source = c.value(&source, c.tensor(0)?.dtype)?;
    let offset = c.opt_int(2)?.unwrap_or(0);
    let dims = (c.opt_int(3)?.unwrap_or(0), c.opt_int(4)?.unwrap_or(1));
    Ok(write_diagonal(c.b, x, source, offset, dims)?.into())
}

/// `x` with `source` on the diagonal of two dimensions; its last dimension runs along it.
fn write_diagonal(
    b: &mut Builder,
    x: Value,
    source: Value,
    offset: i64,
    (first, second): (i64, i64),
) -> Result<Value> {
    let rank = b.rank(x);
    let (first, second) = (wrap_dim(first, rank)?, wrap_dim(second, rank)?);
    if first == second {
        return Err(LoweringError::invalid(format!(
            "diagonal dimensions cannot be identical {first}, {second}"
        )));
    }
    let sizes = Dims::from_slice(b.dims(x));
    // Along the first dimension the diagonal starts at `top`: repeat the source over the second and select.
    let top = offset.saturating_neg().clamp(0, sizes[first]);
    let last = b.rank(source) - 1;
    let source = spread_slice(b, source, last, top, 1, sizes[first])?;
    let mut map: Dims = (0..rank as i64).filter(|&d| d != first as i64 && d != second as i64).collect();
    map.push(first as i64);
    let spread = b.broadcast_in_dim(source, &sizes, &map)?;
    let (rows, columns) = (iota(b, DType::Int64, &sizes, first)?, iota(b, DType::Int64, &sizes, second)?);
    let distance = b.subtract(columns, rows)?;
    let wanted = convert::splat(b, distance, Number::Int(offset))?;
    let on = b.compare(distance, wanted, Direction::Eq)?;
    Ok(b.select(on, spread, x)?)
}

fn slice_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let grad = operand(c)?;
    let sizes = c.ints(1)?;
    let dim = sized_dim(c.int(2)?, sizes.len())?;
    let (start, _) = slice_bounds(Some(c.int(3)?), None, sizes[dim]);
    let step = c.opt_int(5)?.unwrap_or(1).max(1);
    Ok(spread_slice(c.b, grad, dim, start, step, sizes[dim])?.into())
}

fn select_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let grad = operand(c)?;
    let sizes = c.ints(1)?;
    let dim = sized_dim(c.int(2)?, sizes.len())?;
    let index = wrap_index(c.int(3)?, dim, &sizes)?;
    let grad = unsqueeze(c.b, grad, dim)?;
    Ok(spread_slice(c.b, grad, dim, index, 1, sizes[dim])?.into())
}

fn diagonal_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let grad = operand(c)?;
    let (sizes, offset) = (c.ints(1)?, c.int(2)?);
    let zeros = c.full(Number::Int(0), c.tensor(0)?.dtype, &sizes)?;
    let dims = (c.int(3)?, c.int(4)?);
    Ok(write_diagonal(c.b, zeros, grad, offset, dims)?.into())
}

/// Positions `[windows, size]` of windows that start every `step` elements.
fn windows(b: &mut Builder, count: i64, size: i64, step: i64) -> Result<Value> {
    let ty = TensorType::new(DType::Int32.element_type(), &[count, size]);
    let (window, within) = (b.iota(ty.clone(), 0)?, b.iota(ty, 1)?);
    let step = convert::splat(b, window, Number::Int(step))?;
    let start = b.multiply(window, step)?;
    Ok(b.add(start, within)?)
}

fn unfold(c: &mut Call<'_>) -> Result<Outputs> {
    let x = operand(c)?;
    let out = c.out(0)?.clone();
    let rank = c.b.rank(x);
    if out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    if rank == 0 {
        return Ok(c.b.reshape(x, &out.sizes)?.into());
    }
    let dim = wrap_dim(c.int(1)?, rank)?;
    let (size, step) = (c.int(2)?, c.int(3)?);
    let count = out.sizes[dim];
    if step == size {
        let part = slice_dim(c.b, x, dim, 0, count * size, 1)?;
        let mut dims = Dims::from_slice(c.b.dims(part));
        dims[dim] = count;
        dims.insert(dim + 1, size);
        let split = c.b.reshape(part, &dims)?;
        return Ok(move_dim(c.b, split, dim + 1, rank)?.into());
    }
    let index = windows(c.b, count, size, step)?;
    let taken = take(c.b, x, dim, index)?;
    Ok(move_dim(c.b, taken, dim + 1, rank)?.into())
}

fn unfold_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let grad = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let acc = out.dtype.opmath();
    let value = c.value(&grad, acc)?;
    let zeros = c.full(Number::Int(0), acc, &out.sizes)?;
    if grad.numel() == 0 {
        return Ok(c.convert(zeros, out.dtype)?.into());
    }
    if out.sizes.is_empty() {
        let sum = c.b.reshape(value, &[])?;
        return Ok(c.convert(sum, out.dtype)?.into());
    }
    let dim = wrap_dim(c.int(2)?, out.sizes.len())?;
    let (size, step) = (c.int(3)?, c.int(4)?);
    let index = windows(c.b, grad.sizes[dim], size, step)?;
    let updates = move_dim(c.b, value, out.sizes.len(), dim + 1)?;
    let sums = put(c.b, zeros, dim, index, updates, Combine::Add)?;
    Ok(c.convert(sums, out.dtype)?.into())
}
