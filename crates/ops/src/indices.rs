//! What gathers and scatters share: indices made safe, and reads and writes at index vectors.

use stablehlo::{
    Builder, Direction, GatherDimensionNumbers, ScatterDimensionNumbers, ScatterFlags, TensorType, Value,
};

use crate::call::{Call, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Dims, Number};

type Result<T> = std::result::Result<T, LoweringError>;

/// What an operator makes of a negative index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negative {
    FromEnd,
    Refused,
}

/// How an operator reports an index that is out of range: as CPU kernels do, which name it, or not.
#[derive(Clone, Debug)]
pub struct OutOfRange {
    pub kind: CheckKind,
    pub message: String,
}

impl OutOfRange {
    pub fn in_self() -> Self {
        Self { kind: CheckKind::Index, message: "index out of range in self".into() }
    }

    pub fn of_bags() -> Self {
        let message = "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be {index}";
        Self { kind: CheckKind::Runtime, message: message.into() }
    }

    pub fn of_dimension(kind: CheckKind, dim: usize, size: i64) -> Self {
        let message = format!("index {{index}} is out of bounds for dimension {dim} with size {size}");
        Self { kind, message }
    }
}

/// The type of indices in programs: 32 bits where they suffice, which is what accelerators have in hardware.
pub fn index_dtype(size: i64) -> DType {
    if size <= i64::from(i32::MAX) { DType::Int32 } else { DType::Int64 }
}

/// [`in_range`] or [`in_range_or_nowhere`]
pub type InRange = fn(&mut Call<'_>, &Tensor, i64, Negative, Option<&OutOfRange>) -> Result<Value>;

/// Indices into a dimension of `size`. Those out of range make the program report `error` and are clamped, so that
/// the access itself is safe.
pub fn in_range(
    c: &mut Call<'_>,
    index: &Tensor,
    size: i64,
    negative: Negative,
    error: Option<&OutOfRange>,
) -> Result<Value> {
    Ok(checked(c, index, size, negative, error)?.0)
}

/// [`in_range`], for an operator that writes at the indices: if one of them is out of range, they all become so, and a
/// scatter writes nothing.
pub fn in_range_or_nowhere(
    c: &mut Call<'_>,
    index: &Tensor,
    size: i64,
    negative: Negative,
    error: Option<&OutOfRange>,
) -> Result<Value> {
    let (places, failed) = checked(c, index, size, negative, error)?;
    let Some(failed) = failed else { return Ok(places) };
    let nowhere = convert::splat(c.b, places, Number::Int(size))?;
    let sizes = Dims::from_slice(c.b.dims(places));
    let failed = c.b.broadcast_scalar(failed, &sizes)?;
    Ok(c.b.select(failed, nowhere, places)?)
}

/// The indices, and whether the program reports an error.
fn checked(
    c: &mut Call<'_>,
    index: &Tensor,
    size: i64,
    negative: Negative,
    error: Option<&OutOfRange>,
) -> Result<(Value, Option<Value>)> {
    if !index.dtype.is_integral(false) {
        return Err(LoweringError::unsupported(format!("indices of type {}", index.dtype)));
    }
    let to = index_dtype(size);
    if index.numel() == 0 {
        return Ok((c.value(index, to)?, None));
    }
    if size == 0 {
        let error = error.cloned().unwrap_or_else(OutOfRange::in_self);
        let message = error.message.replace(" {index}", "");
        return Err(LoweringError::InvalidArgument { kind: error.kind, message });
    }
    let wide = if index.dtype == DType::Int32 { DType::Int32 } else { DType::Int64 };
    if wide == DType::Int32 && to == DType::Int64 {
        return Err(LoweringError::unsupported("int32 indices into a dimension of more than 2^31 elements"));
    }
    let value = c.value(index, wide)?;
    let low = if negative == Negative::FromEnd { -size } else { 0 };
    let mut failed = None;
    if let Some(error) = error {
        let outside = outside(c.b, value, low, size)?;
        let flag = any(c.b, outside)?;
        failed = Some(flag);
        if error.message.contains("{index}") {
            let found = one_of(c, value, outside)?;
            c.check_number(found, error.kind, error.message.clone());
        } else {
            c.check(flag, error.kind, error.message.clone());
        }
    }
    let value = if negative == Negative::FromEnd {
        let zero = convert::splat(c.b, value, Number::Int(0))?;
        let is_negative = c.b.compare(value, zero, Direction::Lt)?;
        let by = convert::splat(c.b, value, Number::Int(size))?;
        let wrapped = c.b.add(value, by)?;
        c.b.select(is_negative, wrapped, value)?
    } else {
        value
    };
    let clamped = clamp(c.b, value, 0, size - 1)?;
    Ok((c.convert(clamped, to)?, failed))
}

/// Indices of a scatter that ignores those out of range, as XLA's scatter does: they stay out of range.
pub fn ignored_outside(c: &mut Call<'_>, index: &Tensor, size: i64) -> Result<Value> {
    let value = c.value(index, DType::Int64)?;
    let clamped = clamp(c.b, value, -1, size)?;
    c.convert(clamped, index_dtype(size))
}

fn clamp(b: &mut Builder, value: Value, low: i64, high: i64) -> Result<Value> {
    let dtype = convert::dtype_of(b, value)?;
    let low = convert::constant(b, Number::Int(low), dtype)?;
    let high = convert::constant(b, Number::Int(high), dtype)?;
    Ok(b.clamp(low, value, high)?)
}

/// Where elements are below `low`, or `high` and more.
fn outside(b: &mut Builder, value: Value, low: i64, high: i64) -> Result<Value> {
    let low = convert::splat(b, value, Number::Int(low))?;
    let high = convert::splat(b, value, Number::Int(high))?;
    let below = b.compare(value, low, Direction::Lt)?;
    let above = b.compare(value, high, Direction::Ge)?;
    Ok(b.or(below, above)?)
}

/// One of the marked elements, none of which is 0; 0 if none is marked. Positive ones come first.
fn one_of(c: &mut Call<'_>, value: Value, marked: Value) -> Result<Value> {
    let value = c.convert(value, DType::Int64)?;
    let zero = convert::splat(c.b, value, Number::Int(0))?;
    let marked = c.b.select(marked, value, zero)?;
    let dims: Dims = (0..c.b.rank(value) as i64).collect();
    let largest = c.b.reduce_max(marked, &dims)?;
    let smallest = c.b.reduce_min(marked, &dims)?;
    let zero = convert::splat(c.b, largest, Number::Int(0))?;
    let none = c.b.compare(largest, zero, Direction::Eq)?;
    Ok(c.b.select(none, smallest, largest)?)
}

/// Whether any element of a boolean value is true.
pub fn any(b: &mut Builder, value: Value) -> Result<Value> {
    let dims: Dims = (0..b.rank(value) as i64).collect();
    Ok(b.reduce_or(value, &dims)?)
}

/// Index vectors `[B.., k]` from one index tensor of dimensions `sizes` = B per indexed dimension.
pub fn index_vectors(b: &mut Builder, indices: &[Value], sizes: &[i64]) -> Result<Value> {
    let mut column = Dims::from_slice(sizes);
    column.push(1);
    // Dimensions of different lengths may have indices of different types.
    let wide = indices.iter().any(|&index| b.elem(index) == DType::Int64.element_type());
    let mut columns = Vec::with_capacity(indices.len());
    for &index in indices {
        let index = convert::broadcast_to(b, index, sizes)?;
        let index = if wide { convert::convert(b, index, DType::Int64)? } else { index };
        columns.push(b.reshape(index, &column)?);
    }
    Ok(b.concatenate(&columns, sizes.len() as i64)?)
}

/// Where the index dimensions `at..at + batch` leave those of the window.
fn window_dims(rank: usize, batch: usize, at: usize) -> Dims {
    (0..rank).filter(|&dim| dim < at || dim >= at + batch).map(|dim| dim as i64).collect()
}

fn sorted(dims: &[usize]) -> Dims {
    let mut dims: Dims = dims.iter().map(|&dim| dim as i64).collect();
    dims.sort_unstable();
    dims
}

/// `x` at index vectors `[B.., k]` over the dimensions `dims`, in the order of the components. B takes the
/// positions from `at` on in the result; the other dimensions of `x` keep their order around it.
pub fn gather_at(b: &mut Builder, x: Value, dims: &[usize], vectors: Value, at: usize) -> Result<Value> {
    let mut slice_sizes = Dims::from_slice(b.dims(x));
    for &dim in dims {
        slice_sizes[dim] = 1;
    }
    let batch = b.rank(vectors) - 1;
    let rank = batch + slice_sizes.len() - dims.len();
    let numbers = GatherDimensionNumbers {
        offset_dims: window_dims(rank, batch, at),
        collapsed_slice_dims: sorted(dims),
        start_index_map: dims.iter().map(|&dim| dim as i64).collect(),
        index_vector_dim: batch as i64,
        ..GatherDimensionNumbers::default()
    };
    Ok(b.gather(x, vectors, &numbers, &slice_sizes, false)?)
}

/// `x` at `index` `[B..]` along `dim`; B takes the place of that dimension.
pub fn take(b: &mut Builder, x: Value, dim: usize, index: Value) -> Result<Value> {
    let sizes = Dims::from_slice(b.dims(index));
    let vectors = index_vectors(b, &[index], &sizes)?;
    gather_at(b, x, &[dim], vectors, dim)
}

/// How a scatter combines the present element with an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    Replace,
    Add,
    Multiply,
    Maximum,
    Minimum,
}

impl Combine {
    fn emit(self, b: &mut Builder, present: Value, update: Value) -> stablehlo::Result<Value> {
        match self {
            Self::Replace => Ok(update),
            Self::Add => b.add(present, update),
            Self::Multiply => b.multiply(present, update),
            Self::Maximum => Self::extreme(b, present, update, Direction::Gt),
            Self::Minimum => Self::extreme(b, present, update, Direction::Lt),
        }
    }

    /// The CPU plugin's scatter loses NaN in `maximum` and `minimum`, so they are spelled out for floats.
    fn extreme(b: &mut Builder, present: Value, update: Value, wins: Direction) -> stablehlo::Result<Value> {
        if !b.elem(present).is_float() {
            return if wins == Direction::Gt {
                b.maximum(present, update)
            } else {
                b.minimum(present, update)
            };
        }
        let wins = b.compare(present, update, wins)?;
        let is_nan = b.compare(present, present, Direction::Ne)?;
        let keep = b.or(wins, is_nan)?;
        b.select(keep, present, update)
    }
}

/// [`gather_at`] the other way: `updates` has the shape that it would return.
pub fn scatter_at(
    b: &mut Builder,
    x: Value,
    dims: &[usize],
    vectors: Value,
    updates: Value,
    at: usize,
    combine: Combine,
) -> Result<Value> {
    let batch = b.rank(vectors) - 1;
    let numbers = ScatterDimensionNumbers {
        update_window_dims: window_dims(b.rank(updates), batch, at),
        inserted_window_dims: sorted(dims),
        scatter_dims_to_operand_dims: dims.iter().map(|&dim| dim as i64).collect(),
        index_vector_dim: batch as i64,
        ..ScatterDimensionNumbers::default()
    };
    scatter(b, x, vectors, updates, &numbers, combine)
}

/// Writes `updates` at `index` `[B..]` along `dim`; B takes the place of that dimension in `updates`.
pub fn put(
    b: &mut Builder,
    x: Value,
    dim: usize,
    index: Value,
    updates: Value,
    combine: Combine,
) -> Result<Value> {
    let sizes = Dims::from_slice(b.dims(index));
    let vectors = index_vectors(b, &[index], &sizes)?;
    scatter_at(b, x, &[dim], vectors, updates, dim, combine)
}

fn scatter(
    b: &mut Builder,
    x: Value,
    indices: Value,
    updates: Value,
    numbers: &ScatterDimensionNumbers,
    combine: Combine,
) -> Result<Value> {
    if b.ty(updates).element_count() == Some(0) {
        return Ok(x);
    }
    let results = b.scatter(&[x], indices, &[updates], numbers, ScatterFlags::default(), |b, args| {
        Ok(vec![combine.emit(b, args[0], args[1])?])
    })?;
    Ok(results[0])
}

/// Each element of the result is the element of `x` at the same place, but at `index` along `dim`. `x` and `index`
/// have equal sizes in the other dimensions.
pub fn gather_along(b: &mut Builder, x: Value, dim: usize, index: Value) -> Result<Value> {
    let rank = b.rank(x);
    let others: Dims = (0..rank as i64).filter(|&d| d != dim as i64).collect();
    let mut vectors = Dims::from_slice(b.dims(index));
    vectors.push(1);
    let index = b.reshape(index, &vectors)?;
    let numbers = GatherDimensionNumbers {
        collapsed_slice_dims: [dim as i64].into_iter().collect(),
        operand_batching_dims: others.clone(),
        start_indices_batching_dims: others,
        start_index_map: [dim as i64].into_iter().collect(),
        index_vector_dim: rank as i64,
        ..GatherDimensionNumbers::default()
    };
    Ok(b.gather(x, index, &numbers, &Dims::from_elem(1, rank), false)?)
}

/// [`gather_along`] the other way: `updates` has the sizes of `index`.
pub fn scatter_along(
    b: &mut Builder,
    x: Value,
    dim: usize,
    index: Value,
    updates: Value,
    combine: Combine,
) -> Result<Value> {
    let rank = b.rank(x);
    let others: Dims = (0..rank as i64).filter(|&d| d != dim as i64).collect();
    let mut vectors = Dims::from_slice(b.dims(index));
    vectors.push(1);
    let index = b.reshape(index, &vectors)?;
    let numbers = ScatterDimensionNumbers {
        inserted_window_dims: [dim as i64].into_iter().collect(),
        input_batching_dims: others.clone(),
        scatter_indices_batching_dims: others,
        scatter_dims_to_operand_dims: [dim as i64].into_iter().collect(),
        index_vector_dim: rank as i64,
        ..ScatterDimensionNumbers::default()
    };
    scatter(b, x, index, updates, &numbers, combine)
}

/// 0, 1, 2, ... along `dim` of a value of `dims`.
pub fn iota(b: &mut Builder, dtype: DType, dims: &[i64], dim: usize) -> Result<Value> {
    Ok(b.iota(TensorType::new(dtype.element_type(), dims), dim as i64)?)
}
