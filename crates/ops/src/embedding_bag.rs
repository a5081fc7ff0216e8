//! Bags of embeddings: rows of a weight, reduced bag by bag. A bag is a run of indices that starts at its offset.

use stablehlo::{Direction, ScatterDimensionNumbers, ScatterFlags, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::distances::norm;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::formula;
use crate::graph::{Dims, Number};
use crate::indices::{
    Combine, Negative, OutOfRange, any, ignored_outside, in_range, in_range_or_nowhere, index_dtype,
    index_vectors, iota, put, scatter_along, take,
};
use crate::normalization::as_output;
use crate::registry::OpDef;
use crate::scans::scan;
use crate::statistics::spread;
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_embedding_bag", embedding_bag),
    OpDef::new("aten::_embedding_bag_forward_only", embedding_bag),
    OpDef::new("aten::_embedding_bag_backward", |c| {
        if c.bool(9)? {
            return Err(LoweringError::unsupported("sparse gradients of bags of embeddings"));
        }
        backward(c, 3, 10)
    }),
    OpDef::new("aten::_embedding_bag_dense_backward", |c| backward(c, 2, 8)),
    OpDef::new("aten::_embedding_bag_per_sample_weights_backward", per_sample_weights_backward),
    OpDef::new("aten::embedding_renorm", renorm).atomic(),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Sum,
    Mean,
    Max,
}

impl Mode {
    fn parse(c: &Call<'_>, index: usize) -> Result<Self> {
        match c.int(index)? {
            0 => Ok(Self::Sum),
            1 => Ok(Self::Mean),
            2 => Ok(Self::Max),
            other => Err(LoweringError::invalid(format!("embedding_bag: {other} is not a mode"))),
        }
    }
}

/// The bag of each index.
fn bags(c: &mut Call<'_>, offsets: &Tensor, count: i64, bags: i64) -> Result<Value> {
    let value = c.value(offsets, DType::Int64)?;
    if offsets.numel() > 0 {
        let first = slice_dim(c.b, value, 0, 0, 1, 1)?;
        let wrong = formula(c.b, [first], |[first]| first.ne(first.splat_int(0)))?;
        let wrong = any(c.b, wrong)?;
        let message = "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0.";
        c.check(wrong, CheckKind::Runtime, message);
        let beyond = formula(c.b, [value], |[offset]| {
            offset.lt(offset.splat_int(0)) | offset.gt(offset.splat_int(count))
        })?;
        let beyond = any(c.b, beyond)?;
        let message = format!("offsets[-1] can not be greater than input's length({count})");
        c.check(beyond, CheckKind::Runtime, message);
    }
    let dtype = index_dtype(count.max(bags));
    let value = c.convert(value, dtype)?;
    let starts = slice_dim(c.b, value, 0, 0, bags, 1)?;
    // An index belongs to the last bag that starts at or before it.
    let zeros = c.full(Number::Int(0), dtype, &[count])?;
    let ones = c.full(Number::Int(1), dtype, &[bags])?;
    let started = put(c.b, zeros, 0, starts, ones, Combine::Add)?;
    let bag = scan(c.b, [started], 0, &|b, [x], [y]| Ok([b.add(x, y)?]))?[0];
    formula(c.b, [bag], |[bag]| bag - bag.splat_int(1))
}

/// Whether an index is the padding, `[n]`.
fn is_padding(c: &mut Call<'_>, places: Value, padding: i64) -> Result<Value> {
    let padding = if padding < 0 { -1 } else { padding };
    formula(c.b, [places], |[place]| place.eq(place.splat_int(padding)))
}

/// Arguments: weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
/// padding_idx. Outputs: the bags, the bag of each index, indices per bag, the row of each maximum.
fn embedding_bag(c: &mut Call<'_>) -> Result<Outputs> {
    let (weight, indices, offsets) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let mode = Mode::parse(c, 4)?;
    let out = c.out(0)?.clone();
    let (count, rows) = (indices.numel(), weight.sizes[0]);
    let (bag_count, columns) = (out.sizes[0], out.sizes[1]);
    let acc = out.dtype.opmath();
    let places = in_range(c, &indices, rows, Negative::Refused, Some(&OutOfRange::of_bags()))?;
    let bag = bags(c, &offsets, count, bag_count)?;
    let padding = is_padding(c, places, c.opt_int(8)?.unwrap_or(-1))?;
    let counted = c.b.not(padding)?;
    let size_dtype = index_dtype(count);
    let ones = c.convert(counted, size_dtype)?;
    let zeros = c.full(Number::Int(0), size_dtype, &[bag_count])?;
    let bag_size = put(c.b, zeros, 0, bag, ones, Combine::Add)?;
    let value = c.value(&weight, acc)?;
    let taken = match count {
        0 => c.full(Number::Int(0), acc, &[0, columns])?,
        _ => take(c.b, value, 0, places)?,
    };
    let (reduced, positions) = if mode == Mode::Max {
        let [reduced, positions] = maxima(c, taken, counted, bag, bag_count)?;
        (reduced, Some(positions))
    } else {
        let mut taken = taken;
        if let Some(weights) = c.opt_tensor(6)? {
            let weights = c.value(&weights, acc)?;
            let weights = spread(c.b, weights, &[count, columns], &[1])?;
            taken = c.b.multiply(taken, weights)?;
        }
        let counted = spread(c.b, counted, &[count, columns], &[1])?;
        let zero = convert::splat(c.b, taken, Number::Int(0))?;
        let taken = c.b.select(counted, taken, zero)?;
        let zeros = c.full(Number::Int(0), acc, &[bag_count, columns])?;
        let mut sum = put(c.b, zeros, 0, bag, taken, Combine::Add)?;
        if mode == Mode::Mean {
            let size = c.convert(bag_size, acc)?;
            let size = spread(c.b, size, &[bag_count, columns], &[1])?;
            sum = formula(c.b, [sum, size], |[sum, size]| sum / size.max(size.splat(1.0)))?;
        }
        (sum, None)
    };
    let sizes = c.out(2)?.sizes.clone();
    let zero = c.full(Number::Int(0), size_dtype, &[])?;
    // With include_last_offset there is one more offset than there are bags.
    let bag_size = c.b.pad(bag_size, zero, &[0], &[sizes[0] - bag_count], &[0])?;
    let rows_of_maxima = match positions {
        Some(positions) if count > 0 => {
            let row = take(c.b, places, 0, positions)?;
            formula(c.b, [row, positions], |[row, position]| {
                position.eq(position.splat_int(count)).select(row.splat_int(-1), row)
            })?
        }
        _ => {
            let sizes = c.out(3)?.sizes.clone();
            c.full(Number::Int(-1), DType::Int64, &sizes)?
        }
    };
    Ok([
        as_output(c, 0, reduced)?,
        as_output(c, 1, bag)?,
        as_output(c, 2, bag_size)?,
        as_output(c, 3, rows_of_maxima)?,
    ]
    .into())
}

/// The largest element of each bag and column, 0 for an empty bag, and where among the indices it stands: the first of
/// equal ones, `count` for an empty bag. As on CPU and CUDA, NaN counts only where it is the first of its bag.
fn maxima(c: &mut Call<'_>, taken: Value, counted: Value, bag: Value, bags: i64) -> Result<[Value; 2]> {
    let sizes = Dims::from_slice(c.b.dims(taken));
    let count = sizes[0];
    let dtype = convert::dtype_of(c.b, taken)?;
    let position = index_dtype(count);
    let order = iota(c.b, position, &[count], 0)?;
    let last = c.full(Number::Int(count), position, &[count])?;
    let order = c.b.select(counted, order, last)?;
    let none = c.full(Number::Int(count), position, &[bags])?;
    let first = put(c.b, none, 0, bag, order, Combine::Minimum)?;
    let first = if count == 0 { order } else { take(c.b, first, 0, bag)? };
    let order = spread(c.b, order, &sizes, &[1])?;
    let first = spread(c.b, first, &sizes, &[1])?;
    let absent = formula(c.b, [taken, order, first], |[x, order, first]| {
        order.eq(order.splat_int(count)) | (x.is_nan() & order.ne(first))
    })?;
    let lowest = c.b.min_value(dtype.element_type())?;
    let filler = c.b.broadcast_scalar(lowest, &sizes)?;
    let values = c.b.select(absent, filler, taken)?;
    let last = convert::splat(c.b, order, Number::Int(count))?;
    let order = c.b.select(absent, last, order)?;
    let start = c.b.broadcast_scalar(lowest, &[bags, sizes[1]])?;
    let none = c.full(Number::Int(count), position, &[bags, sizes[1]])?;
    let [values, positions] = if count == 0 {
        [start, none]
    } else {
        let vectors = index_vectors(c.b, &[bag], &[count])?;
        let numbers = ScatterDimensionNumbers {
            update_window_dims: [1].into_iter().collect(),
            inserted_window_dims: [0].into_iter().collect(),
            scatter_dims_to_operand_dims: [0].into_iter().collect(),
            index_vector_dim: 1,
            ..ScatterDimensionNumbers::default()
        };
        let results = c.b.scatter(
            &[start, none],
            vectors,
            &[values, order],
            &numbers,
            ScatterFlags::default(),
            |b, args| {
                // A total order, so that updates may come in any.
                let nan = b.compare(args[0], args[0], Direction::Ne)?;
                let other = b.compare(args[2], args[2], Direction::Eq)?;
                let larger = b.compare(args[0], args[2], Direction::Gt)?;
                let equal = b.compare(args[0], args[2], Direction::Eq)?;
                let earlier = b.compare(args[1], args[3], Direction::Lt)?;
                let tie = b.and(equal, earlier)?;
                let wins = b.or(larger, tie)?;
                let wins = b.and(wins, other)?;
                let wins = b.or(wins, nan)?;
                Ok(vec![b.select(wins, args[0], args[2])?, b.select(wins, args[1], args[3])?])
            },
        )?;
        [results[0], results[1]]
    };
    let values = formula(c.b, [values, positions], |[x, position]| {
        position.eq(position.splat_int(count)).select(x.splat(0.0), x)
    })?;
    Ok([values, positions])
}

/// The dense gradient of the weight. Arguments: gradient, indices; from `bag` on the bag of each index, indices per bag,
/// rows of the maxima, number of rows, scale_grad_by_freq, mode; from `weights` on per_sample_weights and padding_idx.
fn backward(c: &mut Call<'_>, bag: usize, weights: usize) -> Result<Outputs> {
    let (grad, indices, maxima) = (c.tensor(0)?, c.tensor(1)?, bag + 2);
    let scaled = c.bool(bag + 4)?;
    let mode = Mode::parse(c, bag + 5)?;
    let (bag, bag_sizes) = (c.tensor(bag)?, c.tensor(bag + 1)?);
    let out = c.out(0)?.clone();
    let acc = out.dtype.opmath();
    let [rows, columns] = out.sizes[..] else {
        return Err(LoweringError::invalid("embedding_bag: the weight must be a matrix"));
    };
    let zeros = c.full(Number::Int(0), acc, &out.sizes)?;
    if indices.numel() == 0 || out.sizes.contains(&0) {
        return Ok(c.convert(zeros, out.dtype)?.into());
    }
    let padding = c.opt_int(weights + 1)?.unwrap_or(-1);
    let grad_value = c.value(&grad, acc)?;
    if mode == Mode::Max {
        let chosen = c.tensor(maxima)?;
        // Empty bags name row -1, which the scatter skips.
        let chosen = ignored_outside(c, &chosen, rows)?;
        let sums = scatter_along(c.b, zeros, 0, chosen, grad_value, Combine::Add)?;
        return Ok(c.convert(sums, out.dtype)?.into());
    }
    let count = indices.numel();
    let places = ignored_outside(c, &indices, rows)?;
    let bag = c.value(&bag, index_dtype(grad.sizes[0]))?;
    let mut updates = take(c.b, grad_value, 0, bag)?;
    let mut scale = c.full(Number::Int(1), acc, &[count])?;
    if let Some(weights) = c.opt_tensor(weights)? {
        scale = c.value(&weights, acc)?;
    }
    if scaled {
        let ones = c.full(Number::Int(1), acc, &[count])?;
        let none = c.full(Number::Int(0), acc, &[rows])?;
        let counts = put(c.b, none, 0, places, ones, Combine::Add)?;
        let counts = take(c.b, counts, 0, places)?;
        scale = c.b.divide(scale, counts)?;
    }
    if mode == Mode::Mean {
        let size = c.value(&bag_sizes, acc)?;
        let size = take(c.b, size, 0, bag)?;
        scale = c.b.divide(scale, size)?;
    }
    let padding = is_padding(c, places, padding)?;
    let scale = spread(c.b, scale, &[count, columns], &[1])?;
    let padding = spread(c.b, padding, &[count, columns], &[1])?;
    updates = formula(c.b, [updates, scale, padding], |[x, scale, padding]| {
        padding.select(x.splat(0.0), x * scale)
    })?;
    let sums = put(c.b, zeros, 0, places, updates, Combine::Add)?;
    Ok(c.convert(sums, out.dtype)?.into())
}

/// Arguments: gradient, weight, indices, offsets, the bag of each index, mode, padding_idx.
fn per_sample_weights_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, weight, indices, bag) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?, c.tensor(4)?);
    if Mode::parse(c, 5)? != Mode::Sum {
        return Err(LoweringError::invalid(
            "embedding_bag_backward: per_sample_weights only supported for mode='sum'",
        ));
    }
    let out = c.out(0)?.clone();
    if indices.numel() == 0 || weight.numel() == 0 {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let acc = out.dtype.opmath();
    let places = in_range(c, &indices, weight.sizes[0], Negative::Refused, Some(&OutOfRange::of_bags()))?;
    let bag = c.value(&bag, index_dtype(grad.sizes[0]))?;
    let (grad, weight) = (c.value(&grad, acc)?, c.value(&weight, acc)?);
    let (grad, row) = (take(c.b, grad, 0, bag)?, take(c.b, weight, 0, places)?);
    let product = c.b.multiply(grad, row)?;
    let sum = c.b.reduce_add(product, &[1])?;
    let padding = is_padding(c, places, c.opt_int(6)?.unwrap_or(-1))?;
    let value = formula(c.b, [sum, padding], |[sum, padding]| padding.select(sum.splat(0.0), sum))?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// aten::embedding_renorm(self, indices, max_norm, norm_type): the rows that are looked up, scaled down to the norm.
fn renorm(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, indices) = (c.tensor(0)?, c.tensor(1)?);
    let (most, p) = (c.float(2)?, c.float(3)?);
    let value = c.value(&x, x.dtype)?;
    if indices.numel() == 0 || x.numel() == 0 {
        return Ok(value.into());
    }
    let error = OutOfRange::in_self();
    let places = in_range_or_nowhere(c, &indices, x.sizes[0], Negative::Refused, Some(&error))?;
    let places = c.b.reshape(places, &[indices.numel()])?;
    let rows = take(c.b, value, 0, places)?;
    let rows = c.convert(rows, x.dtype.opmath())?;
    let sizes = Dims::from_slice(c.b.dims(rows));
    let norms = norm(c.b, rows, p)?;
    // The norm is a tensor of the weight's dtype.
    let norms = c.convert(norms, x.dtype)?;
    let norms = c.convert(norms, x.dtype.opmath())?;
    let norms = spread(c.b, norms, &sizes, &[1])?;
    let rows = formula(c.b, [rows, norms], |[x, norm]| {
        norm.gt(norm.splat(most)).select(x * (most / (norm + 1e-7)), x)
    })?;
    let rows = c.convert(rows, x.dtype)?;
    Ok(put(c.b, value, 0, places, rows, Combine::Replace)?.into())
}
