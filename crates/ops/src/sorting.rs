//! Sorts and what follows from them: topk, kthvalue, median, mode. NaN counts as the largest value, as on the CPU.

use stablehlo::{Builder, Direction, Value};

use crate::call::{Call, Outputs, wrap_dim};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Dims, Number};
use crate::indexing::at_least_1d;
use crate::indices::{gather_along, index_dtype, iota};
use crate::registry::OpDef;
use crate::scans::scan;
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::sort", |c| sort(c, 1, 2)),
    OpDef::new("aten::sort.stable", |c| sort(c, 2, 3)),
    OpDef::new("aten::argsort", |c| argsort(c, 1, 2)).composite(),
    OpDef::new("aten::argsort.stable", |c| argsort(c, 2, 3)).composite(),
    OpDef::new("aten::msort", msort).composite(),
    OpDef::new("aten::topk", topk),
    OpDef::new("aten::kthvalue", kthvalue),
    OpDef::new("aten::median", |c| median_all(c, false)),
    OpDef::new("aten::nanmedian", |c| median_all(c, true)),
    OpDef::new("aten::median.dim", |c| median(c, false)),
    OpDef::new("aten::nanmedian.dim", |c| median(c, true)),
    OpDef::new("aten::mode", mode),
];

/// Values in order along one dimension, with where each came from (32 bits where they suffice).
pub struct Sorted {
    pub values: Value,
    pub indices: Value,
    dim: usize,
}

/// A stable sort of a value of at least one dimension.
pub fn sorted(c: &mut Call<'_>, x: Value, dim: usize, descending: bool) -> Result<Sorted> {
    let dtype = convert::dtype_of(c.b, x)?;
    if dtype.is_complex() {
        return Err(LoweringError::invalid("Sort currently does not support complex dtypes on CPU"));
    }
    let sizes = Dims::from_slice(c.b.dims(x));
    let positions = iota(c.b, index_dtype(sizes[dim]), &sizes, dim)?;
    // Booleans have no order in StableHLO.
    let keys = if dtype.is_bool() { c.convert(x, DType::UInt8)? } else { x };
    let results = c.b.sort(&[keys, positions], dim as i64, true, |b, args| {
        let (a, other) = if descending { (args[1], args[0]) } else { (args[0], args[1]) };
        less(b, a, other)
    })?;
    Ok(Sorted { values: c.convert(results[0], dtype)?, indices: results[1], dim })
}

/// `a < b` where NaN is above everything else.
pub fn less(b: &mut Builder, x: Value, y: Value) -> stablehlo::Result<Value> {
    let below = b.compare(x, y, Direction::Lt)?;
    if !b.elem(x).is_float() {
        return Ok(below);
    }
    let (x_is_nan, y_is_nan) = (b.compare(x, x, Direction::Ne)?, b.compare(y, y, Direction::Ne)?);
    let x_is_number = b.not(x_is_nan)?;
    let only_y = b.and(x_is_number, y_is_nan)?;
    b.or(below, only_y)
}

/// Argument 0 with at least one dimension, sorted along the dimension in argument `dim`.
fn sort_argument(c: &mut Call<'_>, dim: usize, descending: bool) -> Result<Sorted> {
    let x = c.tensor(0)?;
    let dim = wrap_dim(c.opt_int(dim)?.unwrap_or(-1), x.rank())?;
    let value = c.value(&x, x.dtype)?;
    let value = c.b.reshape(value, &at_least_1d(&x.sizes))?;
    sorted(c, value, dim, descending)
}

/// Values and int64 indices in the sizes of the outputs.
fn finish(c: &mut Call<'_>, values: Value, indices: Value) -> Result<Outputs> {
    let sizes = c.out(0)?.sizes.clone();
    let indices = c.convert(indices, DType::Int64)?;
    Ok([c.b.reshape(values, &sizes)?, c.b.reshape(indices, &sizes)?].into())
}

fn sort(c: &mut Call<'_>, dim: usize, descending: usize) -> Result<Outputs> {
    let descending = c.opt_bool(descending)?.unwrap_or(false);
    let sorted = sort_argument(c, dim, descending)?;
    finish(c, sorted.values, sorted.indices)
}

fn argsort(c: &mut Call<'_>, dim: usize, descending: usize) -> Result<Outputs> {
    let descending = c.opt_bool(descending)?.unwrap_or(false);
    let sorted = sort_argument(c, dim, descending)?;
    let sizes = c.out(0)?.sizes.clone();
    let indices = c.convert(sorted.indices, DType::Int64)?;
    Ok(c.b.reshape(indices, &sizes)?.into())
}

fn msort(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let value = c.value(&x, x.dtype)?;
    let value = c.b.reshape(value, &at_least_1d(&x.sizes))?;
    let sorted = sorted(c, value, 0, false)?;
    Ok(c.b.reshape(sorted.values, &x.sizes)?.into())
}

fn topk(c: &mut Call<'_>) -> Result<Outputs> {
    let k = c.int(1)?;
    let largest = c.opt_bool(3)?.unwrap_or(true);
    let sorted = sort_argument(c, 2, largest)?;
    let size = c.b.dims(sorted.values)[sorted.dim];
    if k < 0 || k > size {
        return Err(LoweringError::invalid("selected index k out of range"));
    }
    let values = slice_dim(c.b, sorted.values, sorted.dim, 0, k, 1)?;
    let indices = slice_dim(c.b, sorted.indices, sorted.dim, 0, k, 1)?;
    finish(c, values, indices)
}

fn kthvalue(c: &mut Call<'_>) -> Result<Outputs> {
    let k = c.int(1)?;
    let sorted = sort_argument(c, 2, false)?;
    let size = c.b.dims(sorted.values)[sorted.dim];
    if k < 1 || k > size {
        return Err(LoweringError::invalid("kthvalue(): selected number k out of range for dimension"));
    }
    let values = slice_dim(c.b, sorted.values, sorted.dim, k - 1, k, 1)?;
    let indices = slice_dim(c.b, sorted.indices, sorted.dim, k - 1, k, 1)?;
    finish(c, values, indices)
}

/// Position of the median in sorted values, size 1 in the sorted dimension: the lower middle; with `ignore_nan` that
/// of the numbers, else the first NaN if there is one.
fn median_position(c: &mut Call<'_>, sorted: &Sorted, ignore_nan: bool) -> Result<Value> {
    let sizes = Dims::from_slice(c.b.dims(sorted.values));
    let (n, dim) = (sizes[sorted.dim], sorted.dim);
    let mut one = sizes.clone();
    one[dim] = 1;
    let dtype = index_dtype(n);
    if !convert::dtype_of(c.b, sorted.values)?.is_float() {
        return c.full(Number::Int((n - 1) / 2), dtype, &one);
    }
    let is_number = c.b.compare(sorted.values, sorted.values, Direction::Eq)?;
    let is_number = c.convert(is_number, dtype)?;
    let numbers = c.b.reduce_add(is_number, &[dim as i64])?;
    let numbers = c.b.reshape(numbers, &one)?;
    let unit = convert::splat(c.b, numbers, Number::Int(1))?;
    let two = convert::splat(c.b, numbers, Number::Int(2))?;
    if ignore_nan {
        // All NaN: the first.
        let numbers = c.b.maximum(numbers, unit)?;
        let last = c.b.subtract(numbers, unit)?;
        return Ok(c.b.divide(last, two)?);
    }
    let all = convert::splat(c.b, numbers, Number::Int(n))?;
    let middle = convert::splat(c.b, numbers, Number::Int((n - 1) / 2))?;
    let has_nan = c.b.compare(numbers, all, Direction::Ne)?;
    Ok(c.b.select(has_nan, numbers, middle)?)
}

fn nothing_along(name: &str, dim: usize) -> LoweringError {
    let message = format!("{name}(): Expected reduction dim {dim} to have non-zero size.");
    LoweringError::InvalidArgument { kind: CheckKind::Index, message }
}

fn median(c: &mut Call<'_>, ignore_nan: bool) -> Result<Outputs> {
    let sorted = sort_argument(c, 1, false)?;
    if c.b.dims(sorted.values)[sorted.dim] == 0 {
        return Err(nothing_along("median", sorted.dim));
    }
    let position = median_position(c, &sorted, ignore_nan)?;
    let values = gather_along(c.b, sorted.values, sorted.dim, position)?;
    let indices = gather_along(c.b, sorted.indices, sorted.dim, position)?;
    finish(c, values, indices)
}

fn median_all(c: &mut Call<'_>, ignore_nan: bool) -> Result<Outputs> {
    let x = c.tensor(0)?;
    if x.numel() == 0 {
        let nothing = if x.dtype.is_float() { Number::Float(f64::NAN) } else { Number::Int(i64::MIN) };
        return Ok(c.full(nothing, x.dtype, &[])?.into());
    }
    let value = c.value(&x, x.dtype)?;
    let flat = c.b.reshape(value, &[x.numel()])?;
    let sorted = sorted(c, flat, 0, false)?;
    let position = median_position(c, &sorted, ignore_nan)?;
    let value = gather_along(c.b, sorted.values, 0, position)?;
    Ok(c.b.reshape(value, &[])?.into())
}

/// The most frequent value, the smallest of several; the index is that of its last occurrence.
fn mode(c: &mut Call<'_>) -> Result<Outputs> {
    let sorted = sort_argument(c, 1, false)?;
    let dim = sorted.dim;
    let sizes = Dims::from_slice(c.b.dims(sorted.values));
    let n = sizes[dim];
    if n == 0 {
        return Err(nothing_along("mode", dim));
    }
    if sizes.contains(&0) {
        let (values, positions) = (c.out(0)?.clone(), c.out(1)?.clone());
        let values = c.full(Number::Int(0), values.dtype, &values.sizes)?;
        return Ok([values, c.full(Number::Int(0), positions.dtype, &positions.sizes)?].into());
    }
    // Length of each run of equal values up to each position, from where the run began.
    let dtype = index_dtype(n);
    let positions = iota(c.b, dtype, &sizes, dim)?;
    let previous = slice_dim(c.b, sorted.values, dim, 0, n - 1, 1)?;
    let next = slice_dim(c.b, sorted.values, dim, 1, n, 1)?;
    let differs = c.b.compare(previous, next, Direction::Ne)?;
    let mut one = sizes.clone();
    one[dim] = 1;
    let first = c.full(Number::Bool(true), DType::Bool, &one)?;
    let begins = c.b.concatenate(&[first, differs], dim as i64)?;
    let zero = convert::splat(c.b, positions, Number::Int(0))?;
    let starts = c.b.select(begins, positions, zero)?;
    let [starts] = scan(c.b, [starts], dim, &|b, [before], [own]| Ok([b.maximum(before, own)?]))?;
    let lengths = c.b.subtract(positions, starts)?;
    let longest = c.b.reduce_max(lengths, &[dim as i64])?;
    let longest = c.b.reshape(longest, &one)?;
    let map: Dims = (0..sizes.len() as i64).collect();
    let longest = c.b.broadcast_in_dim(longest, &sizes, &map)?;
    let is_longest = c.b.compare(lengths, longest, Direction::Eq)?;
    let beyond = convert::splat(c.b, positions, Number::Int(n))?;
    let candidates = c.b.select(is_longest, positions, beyond)?;
    let position = c.b.reduce_min(candidates, &[dim as i64])?;
    let position = c.b.reshape(position, &one)?;
    let values = gather_along(c.b, sorted.values, dim, position)?;
    let indices = gather_along(c.b, sorted.indices, dim, position)?;
    finish(c, values, indices)
}
