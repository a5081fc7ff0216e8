//! Reductions of consecutive segments along one dimension, and their gradients.

use stablehlo::{Direction, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::{formula, formulas};
use crate::graph::Number;
use crate::indices::{Combine, any, iota, put, scatter_along, take};
use crate::registry::OpDef;
use crate::scans::scan;
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::segment_reduce", segment_reduce),
    OpDef::new("aten::_segment_reduce_backward", segment_reduce_backward),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduction {
    Sum,
    Mean,
    Product,
    Maximum,
    Minimum,
}

impl Reduction {
    fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "sum" => Self::Sum,
            "mean" => Self::Mean,
            "prod" => Self::Product,
            "max" | "amax" => Self::Maximum,
            "min" | "amin" => Self::Minimum,
            other => {
                return Err(LoweringError::invalid(format!(
                    "reduce argument must be either sum, prod, mean, amax or amin, got {other}"
                )));
            }
        })
    }

    fn combine(self) -> Combine {
        match self {
            Self::Sum | Self::Mean => Combine::Add,
            Self::Product => Combine::Multiply,
            Self::Maximum => Combine::Maximum,
            Self::Minimum => Combine::Minimum,
        }
    }

    fn identity(self) -> f64 {
        match self {
            Self::Sum | Self::Mean => 0.0,
            Self::Product => 1.0,
            Self::Maximum => f64::NEG_INFINITY,
            Self::Minimum => f64::INFINITY,
        }
    }
}

/// Where the segments of data `[outer, n, inner]` lie.
struct Segments {
    outer: i64,
    n: i64,
    inner: i64,
    count: i64,
    /// Elements of each segment, `[outer * count]` int64.
    lengths: Value,
    /// The segment of each element among those of all outer positions, `[outer * n]` int64; beyond the last one where
    /// there is none.
    numbers: Value,
}

impl Segments {
    /// From argument `lengths`, or else from `offsets`, of which there is one more than there are segments.
    fn of(c: &mut Call<'_>, data: &Tensor, lengths: usize, offsets: usize, axis: usize) -> Result<Self> {
        let axis = c.dim(axis, data.rank())?;
        let (table, is_lengths) = match (c.opt_tensor(lengths)?, c.opt_tensor(offsets)?) {
            (Some(lengths), _) => (lengths, true),
            (None, Some(offsets)) => (offsets, false),
            _ => {
                let message = "segment_reduce(): Either lengths or offsets must be defined.";
                return Err(LoweringError::invalid(message));
            }
        };
        if !matches!(table.dtype, DType::Int32 | DType::Int64) {
            return Err(LoweringError::unsupported(format!("segments given as {}", table.dtype)));
        }
        let name = if is_lengths { "lengths" } else { "offsets" };
        if table.rank() > data.rank() || axis + 1 != table.rank() {
            return Err(LoweringError::invalid(format!(
                "segment_reduce(): Expected axis to be the last dimension of {name} but got {axis}."
            )));
        }
        if table.sizes[..axis] != data.sizes[..axis] {
            return Err(LoweringError::invalid(format!(
                "segment_reduce(): Expected {name} to have the data's sizes before the axis."
            )));
        }
        let outer: i64 = data.sizes[..axis].iter().product();
        let (n, inner) = (data.sizes[axis], data.sizes[axis + 1..].iter().product());
        let given = c.value(&table, DType::Int64)?;
        let given = c.b.reshape(given, &[outer, table.sizes[axis]])?;
        let (offsets, lengths) = if is_lengths {
            let [ends] = scan(c.b, [given], 1, &|b, [x], [y]| Ok([b.add(x, y)?]))?;
            let zero = c.full(Number::Int(0), DType::Int64, &[outer, 1])?;
            (c.b.concatenate(&[zero, ends], 1)?, given)
        } else {
            check_offsets(c, given, n)?;
            let last = table.sizes[axis];
            let (starts, ends) =
                (slice_dim(c.b, given, 1, 0, last - 1, 1)?, slice_dim(c.b, given, 1, 1, last, 1)?);
            (given, c.b.subtract(ends, starts)?)
        };
        let count = c.b.dims(lengths)[1];
        let numbers = segment_numbers(c, offsets, n)?;
        let lengths = c.b.reshape(lengths, &[outer * count])?;
        Ok(Self { outer, n, inner, count, lengths, numbers })
    }

    fn total(&self) -> i64 {
        self.outer * self.count
    }

    /// Combines rows `[outer * n, inner]` per segment, starting from `initial` (0-d).
    fn fold(&self, c: &mut Call<'_>, rows: Value, initial: Value, combine: Combine) -> Result<Value> {
        let start = c.b.broadcast_scalar(initial, &[self.total(), self.inner])?;
        put(c.b, start, 0, self.numbers, rows, combine)
    }

    /// Each row's segment of `[outer * count, inner]`; any segment for rows that are in none.
    fn spread(&self, c: &mut Call<'_>, values: Value) -> Result<Value> {
        take(c.b, values, 0, self.numbers)
    }

    /// `[outer * count]` or `[outer * n]` along the inner elements, too.
    fn along_inner(&self, c: &mut Call<'_>, value: Value) -> Result<Value> {
        let rows = c.b.dims(value)[0];
        Ok(c.b.broadcast_in_dim(value, &[rows, self.inner], &[0])?)
    }
}

/// Offsets ascend within the data: the CPU refuses those that descend, and reads beyond the data for those outside.
fn check_offsets(c: &mut Call<'_>, offsets: Value, n: i64) -> Result<()> {
    let count = c.b.dims(offsets)[1];
    let starts = slice_dim(c.b, offsets, 1, 0, count - 1, 1)?;
    let ends = slice_dim(c.b, offsets, 1, 1, count, 1)?;
    let descends = c.b.compare(ends, starts, Direction::Lt)?;
    let descends = any(c.b, descends)?;
    c.check(descends, CheckKind::Runtime, "Expected segment_length >= 0 to be true, but got false.");
    let outside = formula(c.b, [offsets], |[x]| x.lt(x.splat_int(0)) | x.gt(x.splat_int(n)))?;
    let outside = any(c.b, outside)?;
    let message = format!("segment_reduce(): Expected offsets between 0 and data.size(axis), which is {n}.");
    c.check(outside, CheckKind::Runtime, message);
    Ok(())
}

/// How many segments begin at or before each of n positions, less one, from offsets `[outer, count + 1]`; the last one
/// begins what is in no segment.
fn segment_numbers(c: &mut Call<'_>, offsets: Value, n: i64) -> Result<Value> {
    let (outer, limits) = (c.b.dims(offsets)[0], c.b.dims(offsets)[1]);
    let inside = formula(c.b, [offsets], |[x]| x.max(x.splat_int(0)).min(x.splat_int(n)))?;
    let marks = c.full(Number::Int(0), DType::Int64, &[outer, n + 1])?;
    let ones = c.full(Number::Int(1), DType::Int64, &[outer, limits])?;
    let marks = scatter_along(c.b, marks, 1, inside, ones, Combine::Add)?;
    let [begun] = scan(c.b, [marks], 1, &|b, [x], [y]| Ok([b.add(x, y)?]))?;
    let begun = slice_dim(c.b, begun, 1, 0, n, 1)?;
    let row = iota(c.b, DType::Int64, &[outer, n], 0)?;
    let count = limits - 1;
    let numbers = formula(c.b, [begun, row], |[begun, row]| {
        let (one, count_of_row) = (begun.splat_int(1), begun.splat_int(count));
        let exists = begun.ge(one) & begun.le(count_of_row);
        exists.select(row * count_of_row + begun - one, begun.splat_int(outer * count))
    })?;
    Ok(c.b.reshape(numbers, &[outer * n])?)
}

fn refuse_no_float(data: &Tensor) -> Result<()> {
    if data.dtype.is_float() && !data.dtype.is_float8() {
        return Ok(());
    }
    Err(LoweringError::unsupported(format!("segments of {}", data.dtype)))
}

/// aten::segment_reduce(data, reduce, *, lengths, indices, offsets, axis=0, unsafe=False, initial)
fn segment_reduce(c: &mut Call<'_>) -> Result<Outputs> {
    let (data, reduction) = (c.tensor(0)?, Reduction::named(c.str(1)?)?);
    let out = c.out(0)?.clone();
    refuse_no_float(&data)?;
    let segments = Segments::of(c, &data, 2, 4, 5)?;
    if !c.is_none(2) && !c.bool(6)? {
        check_lengths(c, &segments)?;
    }
    let dtype = data.dtype.opmath();
    let initial = match c.opt_scalar(7, dtype)? {
        Some(initial) => initial,
        None => c.full(Number::Float(reduction.identity()), dtype, &[])?,
    };
    let rows = c.value(&data, dtype)?;
    let rows = c.b.reshape(rows, &[segments.outer * segments.n, segments.inner])?;
    let mut result = segments.fold(c, rows, initial, reduction.combine())?;
    if reduction == Reduction::Mean {
        let lengths = c.convert(segments.lengths, dtype)?;
        let lengths = segments.along_inner(c, lengths)?;
        let of_nothing_is_nan = c.is_none(7);
        result = formula(c.b, [result, lengths], |[sum, length]| {
            let of_nothing = if of_nothing_is_nan { sum.splat(f64::NAN) } else { sum };
            length.gt(length.splat(0.0)).select(sum / length, of_nothing)
        })?;
    }
    let result = c.b.reshape(result, &out.sizes)?;
    Ok(c.convert(result, out.dtype)?.into())
}

fn check_lengths(c: &mut Call<'_>, segments: &Segments) -> Result<()> {
    let negative = formula(c.b, [segments.lengths], |[x]| x.lt(x.splat_int(0)))?;
    let negative = any(c.b, negative)?;
    c.check(negative, CheckKind::Runtime, "lengths contains negative value!");
    let lengths = c.b.reshape(segments.lengths, &[segments.outer, segments.count])?;
    let sums = c.b.reduce_add(lengths, &[1])?;
    let all = convert::splat(c.b, sums, Number::Int(segments.n))?;
    let differs = c.b.compare(sums, all, Direction::Ne)?;
    let differs = any(c.b, differs)?;
    let message = "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when \
                   !unsafe.";
    c.check(differs, CheckKind::Runtime, message);
    Ok(())
}

/// aten::_segment_reduce_backward(grad, output, data, reduce, *, lengths, offsets, axis=0, initial)
fn segment_reduce_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, output, data) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let reduction = Reduction::named(c.str(3)?)?;
    let out = c.out(0)?.clone();
    refuse_no_float(&data)?;
    let segments = Segments::of(c, &data, 4, 5, 6)?;
    let dtype = data.dtype.opmath();
    if segments.total() == 0 || data.numel() == 0 {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let per_segment = [segments.total(), segments.inner];
    let (grad, output) = (c.value(&grad, dtype)?, c.value(&output, dtype)?);
    let (grad, output) = (c.b.reshape(grad, &per_segment)?, c.b.reshape(output, &per_segment)?);
    let (grad, output) = (segments.spread(c, grad)?, segments.spread(c, output)?);
    let data = c.value(&data, dtype)?;
    let data = c.b.reshape(data, &[segments.outer * segments.n, segments.inner])?;
    let result = match reduction {
        Reduction::Sum => grad,
        Reduction::Mean => {
            let lengths = c.convert(segments.lengths, dtype)?;
            let lengths = segments.along_inner(c, lengths)?;
            let lengths = segments.spread(c, lengths)?;
            c.b.divide(grad, lengths)?
        }
        Reduction::Product => gradient_of_product(c, &segments, grad, output, data)?,
        Reduction::Maximum | Reduction::Minimum => {
            let chosen = formula(c.b, [data, output], |[x, output]| x.is_nan() | x.eq(output))?;
            let ones = c.convert(chosen, dtype)?;
            let zero = c.full(Number::Int(0), dtype, &[])?;
            let sharing = segments.fold(c, ones, zero, Combine::Add)?;
            let sharing = segments.spread(c, sharing)?;
            formula(c.b, [chosen, grad, sharing], |[chosen, grad, sharing]| {
                // PyTorch's kernels, on every device, share positive gradients only.
                let zero = grad.splat(0.0);
                let shared = grad.gt(zero).select(grad / sharing, grad);
                chosen.select(shared, zero)
            })?
        }
    };
    let limit = convert::splat(c.b, segments.numbers, Number::Int(segments.total()))?;
    let exists = c.b.compare(segments.numbers, limit, Direction::Lt)?;
    let exists = segments.along_inner(c, exists)?;
    let result = formula(c.b, [exists, result], |[exists, x]| exists.select(x, x.splat(0.0)))?;
    let result = c.b.reshape(result, &out.sizes)?;
    Ok(c.convert(result, out.dtype)?.into())
}

/// grad * output / x, and for zeros and NaN grad * the product of the segment's other elements.
fn gradient_of_product(
    c: &mut Call<'_>,
    segments: &Segments,
    grad: Value,
    output: Value,
    data: Value,
) -> Result<Value> {
    let dtype = convert::dtype_of(c.b, data)?;
    let [zeros, nans, others] = formulas(c.b, [data], |[x]| {
        let (zero, one) = (x.splat(0.0), x.splat(1.0));
        let (is_zero, is_nan) = (x.eq(zero), x.is_nan());
        [is_zero.select(one, zero), is_nan.select(one, zero), (is_zero | is_nan).select(one, x)]
    })?;
    let initial = match c.opt_scalar(7, dtype)? {
        Some(initial) => initial,
        None => c.full(Number::Int(1), dtype, &[])?,
    };
    let zero = c.full(Number::Int(0), dtype, &[])?;
    let product = segments.fold(c, others, initial, Combine::Multiply)?;
    let zero_count = segments.fold(c, zeros, zero, Combine::Add)?;
    let nan_count = segments.fold(c, nans, zero, Combine::Add)?;
    let (product, zero_count, nan_count) =
        (segments.spread(c, product)?, segments.spread(c, zero_count)?, segments.spread(c, nan_count)?);
    let values = [grad, output, data, zeros, nans, product, zero_count, nan_count];
    formula(c.b, values, |[grad, output, x, zero, nan, product, zero_count, nan_count]| {
        let (none, one) = (x.splat(0.0), x.splat(1.0));
        let other_zeros = (zero_count - zero).gt(none).select(none, one);
        let other_nans = (nan_count - nan).gt(none).select(x.splat(f64::NAN), one);
        let others = product * other_zeros * other_nans;
        (zero + nan).gt(none).select(grad * others, grad * output / x)
    })
}
