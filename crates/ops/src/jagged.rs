//! Jagged dimensions: rows `[total, ..]` that offsets divide into consecutive runs, one per batch, and the same rows
//! padded to `[batch, longest, ..]`.

use stablehlo::{Direction, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::indices::{Combine, gather_at, index_vectors, iota, put, take};
use crate::registry::OpDef;
use crate::scans::scan;
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_jagged_to_padded_dense_forward", to_padded).float_operands(&[3]),
    OpDef::new("aten::_padded_dense_to_jagged_forward", from_padded),
];

/// The offsets of the only jagged dimension, `[batch + 1]`.
fn offsets(c: &Call<'_>) -> Result<Tensor> {
    match c.tensors(1)?.as_slice() {
        [offsets] if offsets.rank() == 1 && offsets.dtype.is_integral(false) => Ok(offsets.clone()),
        other => Err(LoweringError::unsupported(format!("{} jagged dimensions", other.len()))),
    }
}

/// The starts and ends of the runs, `[batch]`.
fn runs(c: &mut Call<'_>) -> Result<(Value, Value)> {
    let offsets = offsets(c)?;
    let n = offsets.sizes[0];
    let table = c.value(&offsets, DType::Int64)?;
    Ok((slice_dim(c.b, table, 0, 0, n - 1, 1)?, slice_dim(c.b, table, 0, 1, n, 1)?))
}

/// aten::_jagged_to_padded_dense_forward(values, offsets, max_lengths, padding_value). Longer runs are cut.
fn to_padded(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let (starts, ends) = runs(c)?;
    let padding = c.scalar(3, out.dtype)?;
    let padding = c.b.broadcast_scalar(padding, &out.sizes)?;
    if x.numel() == 0 || out.sizes.contains(&0) {
        return Ok(padding.into());
    }
    let grid = &out.sizes[..2];
    let [starts, ends] = [c.b.broadcast_in_dim(starts, grid, &[0])?, c.b.broadcast_in_dim(ends, grid, &[0])?];
    let steps = iota(c.b, DType::Int64, grid, 1)?;
    let places = c.b.add(starts, steps)?;
    let is_inside = c.b.compare(places, ends, Direction::Lt)?;
    let is_inside = c.b.broadcast_in_dim(is_inside, &out.sizes, &[0, 1])?;
    let value = c.value(&x, out.dtype)?;
    // A gather clamps what lies outside.
    let rows = take(c.b, value, 0, places)?;
    Ok(c.b.select(is_inside, rows, padding)?.into())
}

/// aten::_padded_dense_to_jagged_forward(dense, offsets, total_L). Rows that were cut are 0.
fn from_padded(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let zeros = c.full(Number::Int(0), out.dtype, &out.sizes)?;
    if x.numel() == 0 || out.sizes.contains(&0) {
        return Ok(zeros.into());
    }
    let (total, longest) = (out.sizes[0], x.sizes[1]);
    let (starts, ends) = runs(c)?;
    // The run of a row is the number of ends up to it; the scatter drops ends behind the last row.
    let batch = Dims::from_slice(c.b.dims(ends));
    let (none, one) =
        (c.full(Number::Int(0), DType::Int64, &[total])?, c.full(Number::Int(1), DType::Int64, &batch)?);
    let ended = put(c.b, none, 0, ends, one, Combine::Add)?;
    let [run] = scan(c.b, [ended], 0, &|b, [x], [y]| Ok([b.add(x, y)?]))?;
    let start = take(c.b, starts, 0, run)?;
    let rows = iota(c.b, DType::Int64, &[total], 0)?;
    let step = c.b.subtract(rows, start)?;
    let limit = convert::splat(c.b, step, Number::Int(longest))?;
    let is_inside = c.b.compare(step, limit, Direction::Lt)?;
    let is_inside = c.b.broadcast_in_dim(is_inside, &out.sizes, &[0])?;
    let value = c.value(&x, out.dtype)?;
    let vectors = index_vectors(c.b, &[run, step], &[total])?;
    let taken = gather_at(c.b, value, &[0, 1], vectors, 0)?;
    Ok(c.b.select(is_inside, taken, zeros)?.into())
}
