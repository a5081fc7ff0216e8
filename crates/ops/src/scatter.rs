//! Writes at indices: scatter, index_put and the index_* family. Where several updates meet in one place and the
//! operator does not combine them, the last one wins on the CPU; PyTorch leaves it open.

use stablehlo::{Direction, Value};

use crate::arguments::Arguments;
use crate::call::{Call, Outputs, Tensor, wrap_dim};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Dims, Number};
use crate::indexing::{Indexed, at_least_1d};
use crate::indices::{Combine, Negative, OutOfRange, in_range_or_nowhere, put, scatter_along, scatter_at};
use crate::registry::OpDef;
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::scatter.src", |c| scatter(c, Reduce::Replace, true)).atomic(),
    OpDef::new("aten::scatter.value", |c| scatter(c, Reduce::Replace, true)).atomic(),
    OpDef::new("aten::scatter.reduce", scatter_by_name).atomic(),
    OpDef::new("aten::scatter.value_reduce", scatter_by_name).atomic(),
    OpDef::new("aten::scatter_add", |c| scatter(c, Reduce::Sum, true)).atomic(),
    OpDef::new("aten::scatter_reduce.two", |c| {
        let (reduce, include_self) = (Reduce::named(c.str(4)?)?, c.opt_bool(5)?.unwrap_or(true));
        scatter(c, reduce, include_self)
    })
    .atomic(),
    OpDef::new("aten::index_add", index_add).ones(&[4]).atomic(),
    OpDef::new("aten::index_copy", |c| index_slices(c, Reduce::Replace, true)).atomic(),
    OpDef::new("aten::index_reduce", |c| {
        let (reduce, include_self) = (Reduce::named(c.str(4)?)?, c.opt_bool(5)?.unwrap_or(true));
        index_slices(c, reduce, include_self)
    })
    .atomic(),
    OpDef::new("aten::index_fill.int_Scalar", index_fill).atomic(),
    OpDef::new("aten::index_fill.int_Tensor", index_fill).atomic(),
    OpDef::new("aten::put", put_flat).refuses(refuse_counts).atomic(),
    OpDef::new("aten::index_put", |c| index_put(c, true)).atomic(),
    OpDef::new("aten::_index_put_impl", |c| {
        let checked = !c.opt_bool(4)?.unwrap_or(false);
        index_put(c, checked)
    })
    .atomic(),
    OpDef::new("aten::_unsafe_index_put", |c| index_put(c, false)).atomic(),
];

/// `ReductionType` of scatter_reduce and index_reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduce {
    Replace,
    Sum,
    Prod,
    Mean,
    Amax,
    Amin,
}

impl Reduce {
    fn named(name: &str) -> Result<Self> {
        match name {
            "sum" | "add" => Ok(Self::Sum),
            "prod" | "multiply" => Ok(Self::Prod),
            "mean" => Ok(Self::Mean),
            "amax" => Ok(Self::Amax),
            "amin" => Ok(Self::Amin),
            _ => Err(LoweringError::invalid(
                "reduce argument must be either sum, prod, mean, amax or amin, got ".to_string() + name,
            )),
        }
    }

    fn combine(self) -> Combine {
        match self {
            Self::Replace => Combine::Replace,
            Self::Sum | Self::Mean => Combine::Add,
            Self::Prod => Combine::Multiply,
            Self::Amax => Combine::Maximum,
            Self::Amin => Combine::Minimum,
        }
    }

    /// The type to add and multiply in: CPU kernels keep an f32 buffer for narrower floats.
    fn accumulator(self, dtype: DType) -> DType {
        match self {
            Self::Sum | Self::Prod | Self::Mean => dtype.opmath(),
            _ => dtype,
        }
    }

    fn identity(self, c: &mut Call<'_>, dtype: DType) -> Result<Value> {
        let elem = dtype.element_type();
        Ok(match self {
            Self::Amax => c.b.min_value(elem)?,
            Self::Amin => c.b.max_value(elem)?,
            Self::Prod => c.b.one(elem)?,
            _ => c.b.zero(elem)?,
        })
    }
}

/// Combines `updates` into `x` with a scatter of any kind, given as a function of target, updates and combination.
fn reduce_into(
    c: &mut Call<'_>,
    x: Value,
    updates: Value,
    reduce: Reduce,
    include_self: bool,
    write: impl Fn(&mut Call<'_>, Value, Value, Combine) -> Result<Value>,
) -> Result<Value> {
    let dtype = convert::dtype_of(c.b, x)?;
    let acc = reduce.accumulator(dtype);
    let (own, updates) = (c.convert(x, acc)?, c.convert(updates, acc)?);
    let update_sizes = Dims::from_slice(c.b.dims(updates));
    let start = if include_self || reduce == Reduce::Replace {
        own
    } else {
        let identity = reduce.identity(c, acc)?;
        let identities = c.b.broadcast_scalar(identity, &update_sizes)?;
        write(c, own, identities, Combine::Replace)?
    };
    let mut result = write(c, start, updates, reduce.combine())?;
    if reduce == Reduce::Mean {
        let sizes = Dims::from_slice(c.b.dims(result));
        let count = if acc.is_complex() { DType::Float32 } else { acc };
        let from = c.full(Number::Int(i64::from(include_self)), count, &sizes)?;
        let ones = c.full(Number::Int(1), count, &update_sizes)?;
        let counts = write(c, from, ones, Combine::Add)?;
        let one = convert::splat(c.b, counts, Number::Int(1))?;
        let counts = c.b.maximum(counts, one)?;
        let counts = c.convert(counts, acc)?;
        result = divide_floor(c, result, counts)?;
    }
    c.convert(result, dtype)
}

/// Division by a positive count; of integers towards minus infinity.
fn divide_floor(c: &mut Call<'_>, x: Value, count: Value) -> Result<Value> {
    let quotient = c.b.divide(x, count)?;
    if !convert::dtype_of(c.b, x)?.is_integral(false) {
        return Ok(quotient);
    }
    let zero = convert::splat(c.b, x, Number::Int(0))?;
    let rest = c.b.remainder(x, count)?;
    let negative = c.b.compare(rest, zero, Direction::Lt)?;
    let negative = c.convert(negative, convert::dtype_of(c.b, x)?)?;
    Ok(c.b.subtract(quotient, negative)?)
}

/// `scatter(..., reduce=)`, whose names are "add" and "multiply".
fn scatter_by_name(c: &mut Call<'_>) -> Result<Outputs> {
    let reduce = match c.str(4)? {
        "add" => Reduce::Sum,
        "multiply" => Reduce::Prod,
        _ => return Err(LoweringError::invalid("reduce argument must be either add or multiply.")),
    };
    scatter(c, reduce, true)
}

fn scatter(c: &mut Call<'_>, reduce: Reduce, include_self: bool) -> Result<Outputs> {
    let (x, index, source) = (c.tensor(0)?, c.tensor(2)?, c.tensor(3)?);
    let value = c.value(&x, x.dtype)?;
    if index.numel() == 0 {
        return Ok(value.into());
    }
    let dim = wrap_dim(c.int(1)?, x.rank())?;
    let (sizes, index_sizes) = (at_least_1d(&x.sizes), at_least_1d(&index.sizes));
    let error = OutOfRange::of_dimension(CheckKind::Runtime, dim, sizes[dim]);
    let index = in_range_or_nowhere(c, &index, sizes[dim], Negative::Refused, Some(&error))?;
    let index = c.b.reshape(index, &index_sizes)?;
    let updates = source_part(c, &source, x.dtype, &index_sizes)?;
    let value = c.b.reshape(value, &sizes)?;
    let result = reduce_into(c, value, updates, reduce, include_self, |c, into, updates, combine| {
        // The index may be smaller than self in the other dimensions: those parts of self are not touched.
        let mut part = into;
        for (other, &size) in index_sizes.iter().enumerate().filter(|(other, _)| *other != dim) {
            part = slice_dim(c.b, part, other, 0, size, 1)?;
        }
        let written = scatter_along(c.b, part, dim, index, updates, combine)?;
        put_back(c, into, written)
    })?;
    Ok(c.b.reshape(result, &x.sizes)?.into())
}

/// The part of the source that the index covers, or a number repeated.
fn source_part(c: &mut Call<'_>, source: &Tensor, dtype: DType, sizes: &[i64]) -> Result<Value> {
    let value = c.value(source, dtype)?;
    if source.wrapped || (source.sizes.is_empty() && source.is_host()) {
        return Ok(c.b.broadcast_scalar(value, sizes)?);
    }
    let mut value = c.b.reshape(value, &at_least_1d(&source.sizes))?;
    for (dim, &size) in sizes.iter().enumerate() {
        value = slice_dim(c.b, value, dim, 0, size, 1)?;
    }
    Ok(value)
}

/// `part`, which starts at the origin, in place of that part of `x`.
fn put_back(c: &mut Call<'_>, x: Value, part: Value) -> Result<Value> {
    if c.b.dims(x) == c.b.dims(part) {
        return Ok(part);
    }
    let zero = c.b.zero(DType::Int32.element_type())?;
    let starts = vec![zero; c.b.rank(x)];
    Ok(c.b.dynamic_update_slice(x, part, &starts)?)
}

fn index_add(c: &mut Call<'_>) -> Result<Outputs> {
    index_slices(c, Reduce::Sum, true)
}

/// Slices of the source written to, or combined with, the slices of self at an index.
fn index_slices(c: &mut Call<'_>, reduce: Reduce, include_self: bool) -> Result<Outputs> {
    let (x, index, source) = (c.tensor(0)?, c.tensor(2)?, c.tensor(3)?);
    let value = c.value(&x, x.dtype)?;
    let dim = wrap_dim(c.int(1)?, x.rank())?;
    let sizes = at_least_1d(&x.sizes);
    // Of nothing along the dimension no index is right, and only the kernel of index_copy does not look.
    let looks = sizes[dim] == 0 && c.op() != "aten::index_copy";
    if index.numel() == 0 || x.numel() == 0 && !looks {
        return Ok(value.into());
    }
    let error = match c.op() {
        "aten::index_copy" => OutOfRange::of_dimension(CheckKind::Index, dim, sizes[dim]),
        "aten::index_add" if x.rank() > 1 => OutOfRange::of_dimension(CheckKind::Runtime, dim, sizes[dim]),
        _ => OutOfRange::in_self(),
    };
    let places = in_range_or_nowhere(c, &index, sizes[dim], Negative::Refused, Some(&error))?;
    let places = c.b.reshape(places, &[index.numel()])?;
    let acc = reduce.accumulator(x.dtype);
    let mut updates = c.value(&source, acc)?;
    if c.op() == "aten::index_add" && !c.is_one(4) {
        let alpha = c.scalar(4, acc)?;
        let alpha = c.b.broadcast_scalar(alpha, &source.sizes)?;
        updates = c.b.multiply(updates, alpha)?;
    }
    let mut update_sizes = sizes.clone();
    update_sizes[dim] = index.numel();
    let updates = c.b.reshape(updates, &update_sizes)?;
    let value = c.b.reshape(value, &sizes)?;
    let result = reduce_into(c, value, updates, reduce, include_self, |c, into, updates, combine| {
        put(c.b, into, dim, places, updates, combine)
    })?;
    Ok(c.b.reshape(result, &x.sizes)?.into())
}

fn index_fill(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, index) = (c.tensor(0)?, c.tensor(2)?);
    let value = c.value(&x, x.dtype)?;
    let fill = c.scalar(3, x.dtype)?;
    if index.numel() == 0 || x.numel() == 0 {
        return Ok(value.into());
    }
    let dim = wrap_dim(c.int(1)?, x.rank())?;
    let sizes = at_least_1d(&x.sizes);
    let error = OutOfRange::of_dimension(CheckKind::Index, dim, sizes[dim]);
    let places = in_range_or_nowhere(c, &index, sizes[dim], Negative::FromEnd, Some(&error))?;
    // A boolean per slice instead of a scatter of slices.
    let places = c.b.reshape(places, &[index.numel()])?;
    let unmarked = c.full(Number::Bool(false), DType::Bool, &[sizes[dim]])?;
    let marks = c.full(Number::Bool(true), DType::Bool, &[index.numel()])?;
    let marked = put(c.b, unmarked, 0, places, marks, Combine::Replace)?;
    let marked = c.b.broadcast_in_dim(marked, &sizes, &[dim as i64])?;
    let value = c.b.reshape(value, &sizes)?;
    let fill = c.b.broadcast_scalar(fill, &sizes)?;
    let result = c.b.select(marked, fill, value)?;
    Ok(c.b.reshape(result, &x.sizes)?.into())
}

fn refuse_counts(arguments: &Arguments<'_>) -> Result<()> {
    let [index, source] =
        [arguments.tensor(1)?, arguments.tensor(2)?].map(|meta| meta.sizes.iter().product::<i64>());
    if index == source {
        return Ok(());
    }
    let message = format!(
        "put_(): Expected source and index to have the same number of elements, but got source.numel() = {source}, \
         index.numel() = {index}"
    );
    Err(LoweringError::InvalidArgument { kind: CheckKind::Index, message })
}

fn put_flat(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, index, source) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let value = c.value(&x, x.dtype)?;
    if index.numel() == 0 {
        return Ok(value.into());
    }
    let error = OutOfRange {
        kind: CheckKind::Index,
        message: format!("out of range: tried to access an index on a tensor of {} elements.", x.numel()),
    };
    let places = in_range_or_nowhere(c, &index, x.numel(), Negative::FromEnd, Some(&error))?;
    let places = c.b.reshape(places, &[index.numel()])?;
    let updates = c.value(&source, x.dtype)?;
    let updates = c.b.reshape(updates, &[index.numel()])?;
    let flat = c.b.reshape(value, &[x.numel()])?;
    let reduce = if c.opt_bool(3)?.unwrap_or(false) { Reduce::Sum } else { Reduce::Replace };
    let result = reduce_into(c, flat, updates, reduce, true, |c, into, updates, combine| {
        put(c.b, into, 0, places, updates, combine)
    })?;
    Ok(c.b.reshape(result, &x.sizes)?.into())
}

fn index_put(c: &mut Call<'_>, checked: bool) -> Result<Outputs> {
    let (x, indices, values) = (c.tensor(0)?, c.opt_tensors(1)?, c.tensor(2)?);
    let accumulate = c.opt_bool(3)?.unwrap_or(false);
    let value = c.value(&x, x.dtype)?;
    if x.numel() == 0 && indices.iter().flatten().all(|index| index.numel() == 0) {
        return Ok(value.into());
    }
    if let Some(result) = crate::masked::index_put(c, &x, &indices, &values, accumulate)? {
        return Ok(result.into());
    }
    let reduce = if accumulate { Reduce::Sum } else { Reduce::Replace };
    let Some(indexed) = Indexed::new(c, &x, &indices, checked, in_range_or_nowhere)? else {
        // Nothing is indexed: every element is written.
        let updates = c.broadcast(&values, x.dtype, &x.sizes)?;
        let result = reduce_into(c, value, updates, reduce, true, |c, into, updates, combine| {
            Ok(if combine == Combine::Add { c.b.add(into, updates)? } else { updates })
        })?;
        return Ok(result.into());
    };
    let sizes = indexed.result_sizes(&x);
    if sizes.contains(&0) {
        return Ok(value.into());
    }
    // Leading dimensions of size 1 are ignored, as assignment ignores them.
    let extra = values.rank().saturating_sub(sizes.len());
    if values.sizes[..extra].iter().any(|&size| size != 1) {
        return Err(LoweringError::invalid(format!(
            "shape mismatch: value tensor of shape {:?} cannot be broadcast to indexing result of shape {sizes:?}",
            values.sizes
        )));
    }
    let updates = c.value(&values, x.dtype)?;
    let updates = c.b.reshape(updates, &values.sizes[extra..])?;
    let updates = convert::broadcast_to(c.b, updates, &sizes)?;
    let result = reduce_into(c, value, updates, reduce, true, |c, into, updates, combine| {
        scatter_at(c.b, into, &indexed.dims, indexed.vectors, updates, indexed.at, combine)
    })?;
    Ok(result.into())
}
