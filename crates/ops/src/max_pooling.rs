//! Max pooling with the positions of the maxima.
//!
//! As on CPU, NaN is larger than any number; of equal elements the first counts, of several NaN the last.

use stablehlo::{Builder, Direction, Value, WindowDims};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Dims, Number};
use crate::indices::{Combine, Negative, OutOfRange, in_range, index_dtype, scatter_along};
use crate::normalization::as_output;
use crate::registry::OpDef;
use crate::windows::{Pool, Segments, plane_positions};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::max_pool2d_with_indices", |c| max_pool(c, 2)),
    OpDef::new("aten::max_pool3d_with_indices", |c| max_pool(c, 3)),
    OpDef::new("aten::max_pool2d_with_indices_backward", |c| max_pool_backward(c, 2)),
    OpDef::new("aten::max_pool3d_with_indices_backward", |c| max_pool_backward(c, 3)),
    OpDef::new("aten::adaptive_max_pool2d", |c| adaptive_max_pool(c, 2)),
    OpDef::new("aten::adaptive_max_pool3d", |c| adaptive_max_pool(c, 3)),
    OpDef::new("aten::adaptive_max_pool2d_backward", |c| adaptive_max_pool_backward(c, 2)),
    OpDef::new("aten::adaptive_max_pool3d_backward", |c| adaptive_max_pool_backward(c, 3)),
    OpDef::new("aten::max_unpool2d", |c| max_unpool(c, 2)),
    OpDef::new("aten::max_unpool3d", |c| max_unpool(c, 3)),
];

/// Whether (a, i) counts before (b, j): a total order, so that the windows may be folded in any order.
fn wins(b: &mut Builder, (x, i): (Value, Value), (y, j): (Value, Value)) -> stablehlo::Result<Value> {
    let larger = b.compare(x, y, Direction::Gt)?;
    let equal = b.compare(x, y, Direction::Eq)?;
    let earlier = b.compare(i, j, Direction::Lt)?;
    let first = b.and(equal, earlier)?;
    let wins = b.or(larger, first)?;
    if !b.elem(x).is_float() {
        return Ok(wins);
    }
    let x_nan = b.compare(x, x, Direction::Ne)?;
    let y_nan = b.compare(y, y, Direction::Ne)?;
    let y_number = b.not(y_nan)?;
    let later = b.compare(i, j, Direction::Gt)?;
    let over = b.or(y_number, later)?;
    let nan_wins = b.and(x_nan, over)?;
    b.or(wins, nan_wins)
}

/// Folds pairs (value, position); the arguments are two accumulators and two elements.
pub fn fold(b: &mut Builder, args: &[Value]) -> stablehlo::Result<Vec<Value>> {
    let keep = wins(b, (args[0], args[1]), (args[2], args[3]))?;
    Ok(vec![b.select(keep, args[0], args[2])?, b.select(keep, args[1], args[3])?])
}

/// Values to start from: less than anything, at a position after any.
pub fn initial(b: &mut Builder, values: Value, positions: Value) -> Result<[Value; 2]> {
    Ok([b.min_value(b.elem(values))?, b.max_value(b.elem(positions))?])
}

fn positions(c: &mut Call<'_>, sizes: &[i64], rank: usize) -> Result<Value> {
    let plane: i64 = sizes[sizes.len() - rank..].iter().product();
    plane_positions(c.b, sizes, rank, index_dtype(plane))
}

/// Arguments: self, kernel, stride, padding, dilation, ceil_mode (which shows in the output's sizes).
fn max_pool(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let pool = Pool::parse(c, 1, rank, true)?;
    let value = c.value(&x, x.dtype)?;
    if out.sizes.contains(&0) {
        let empty = c.full(Number::Int(0), out.dtype, &out.sizes)?;
        return Ok([as_output(c, 0, empty)?, as_output(c, 1, empty)?].into());
    }
    let window = pool.window(&x.sizes, &out.sizes);
    let positions = positions(c, &x.sizes, rank)?;
    let inits = initial(c.b, value, positions)?;
    let pooled = if window.dims.iter().product::<i64>() <= UNROLLED {
        fold_in_order(c.b, [value, positions], inits, &window, &out.sizes)?
    } else {
        let pooled = c.b.reduce_window(&[value, positions], &inits, &window, fold)?;
        [pooled[0], pooled[1]]
    };
    Ok([as_output(c, 0, pooled[0])?, as_output(c, 1, pooled[1])?].into())
}

/// Elements of the largest window that is folded element by element: all windows at once, in vector operations.
const UNROLLED: i64 = 32;

/// The maxima of all windows of `sizes`, from the first element of each window to the last.
fn fold_in_order(
    b: &mut Builder,
    pairs: [Value; 2],
    inits: [Value; 2],
    window: &WindowDims,
    sizes: &[i64],
) -> Result<[Value; 2]> {
    let rank = sizes.len();
    let (low, high): (Vec<i64>, Vec<i64>) = window.padding.iter().copied().unzip();
    let padded = low.iter().chain(&high).any(|&n| n != 0);
    let [values, positions] = match padded {
        true => [
            b.pad(pairs[0], inits[0], &low, &high, &vec![0; rank])?,
            b.pad(pairs[1], inits[1], &low, &high, &vec![0; rank])?,
        ],
        false => pairs,
    };
    let mut best: Option<[Value; 2]> = None;
    for element in 0..window.dims.iter().product() {
        let starts = element_offsets(element, window);
        let limits: Vec<i64> =
            (0..rank).map(|dim| starts[dim] + (sizes[dim] - 1) * window.strides[dim] + 1).collect();
        let next = [
            b.slice(values, &starts, &limits, &window.strides)?,
            b.slice(positions, &starts, &limits, &window.strides)?,
        ];
        let Some([value, position]) = best else {
            best = Some(next);
            continue;
        };
        let mut replaces = b.compare(next[0], value, Direction::Gt)?;
        if b.elem(value).is_float() {
            let nan = b.compare(next[0], next[0], Direction::Ne)?;
            replaces = b.or(replaces, nan)?;
        }
        if padded {
            // Positions only grow, but for the padding's, which gives way even to an equal value.
            let was_padding = b.compare(next[1], position, Direction::Lt)?;
            replaces = b.or(replaces, was_padding)?;
        }
        best = Some([b.select(replaces, next[0], value)?, b.select(replaces, next[1], position)?]);
    }
    Ok(best.unwrap_or(pairs))
}

/// Where the given element of the window, counted in row-major order, lies in the padded input for the first window.
fn element_offsets(element: i64, window: &WindowDims) -> Vec<i64> {
    let mut rest = element;
    let mut offsets = vec![0; window.dims.len()];
    for dim in (0..offsets.len()).rev() {
        offsets[dim] = rest % window.dims[dim] * window.window_dilations[dim];
        rest /= window.dims[dim];
    }
    offsets
}

/// Arguments: gradient, self, kernel, stride, padding, dilation, ceil_mode, positions.
fn max_pool_backward(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let (grad, x) = (c.tensor(0)?, c.tensor(1)?);
    let pool = Pool::parse(c, 2, rank, true)?;
    if pool.dilation.iter().any(|&dilation| dilation != 1) || grad.numel() == 0 {
        return scatter_gradient(c, 7, rank);
    }
    // The positions follow from the input, and accelerators select windows faster than they scatter.
    let dtype = x.dtype.opmath();
    let value = c.value(&x, dtype)?;
    let grad = c.value(&grad, dtype)?;
    let sizes = Dims::from_slice(c.b.dims(grad));
    let window = pool.window(&x.sizes, &sizes);
    let zero = c.b.zero(dtype.element_type())?;
    let scattered = c.b.select_and_scatter(
        value,
        grad,
        zero,
        &window,
        |b, args| {
            // In order of position: NaN gives way to a later NaN, anything else to what is larger.
            let at_least = b.compare(args[0], args[1], Direction::Ge)?;
            let nan = b.compare(args[0], args[0], Direction::Ne)?;
            let stays = b.or(at_least, nan)?;
            let number = b.compare(args[1], args[1], Direction::Eq)?;
            b.and(stays, number)
        },
        |b, args| b.add(args[0], args[1]),
    )?;
    Ok([as_output(c, 0, scattered)?].into())
}

/// Adds the gradient (argument 0) to self (argument 1) at the positions (argument `at`) within each plane.
pub fn scatter_gradient(c: &mut Call<'_>, at: usize, rank: usize) -> Result<Outputs> {
    let (grad, x, positions) = (c.tensor(0)?, c.tensor(1)?, c.tensor(at)?);
    let dtype = x.dtype.opmath();
    let leading: i64 = x.sizes[..x.rank() - rank].iter().product();
    let plane: i64 = x.sizes[x.rank() - rank..].iter().product();
    let count: i64 = grad.sizes[grad.rank() - rank..].iter().product();
    let zeros = c.full(Number::Int(0), dtype, &[leading, plane])?;
    let grad = c.value(&grad, dtype)?;
    let grad = c.b.reshape(grad, &[leading, count])?;
    let positions = c.value(&positions, index_dtype(plane))?;
    let positions = c.b.reshape(positions, &[leading, count])?;
    let summed = scatter_along(c.b, zeros, 1, positions, grad, Combine::Add)?;
    Ok([as_output(c, 0, summed)?].into())
}

fn adaptive_max_pool(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let leading = x.rank() - rank;
    let mut values = c.value(&x, x.dtype)?;
    let mut places = positions(c, &x.sizes, rank)?;
    let inits = initial(c.b, values, places)?;
    for dim in leading..x.rank() {
        let segments = Segments::adaptive(x.sizes[dim], out.sizes[dim]);
        values = segments.gather(c.b, values, dim, inits[0])?;
        places = segments.gather(c.b, places, dim, inits[1])?;
        let pooled = c.b.reduce(&[values, places], &inits, &[dim as i64 + 1], fold)?;
        [values, places] = [pooled[0], pooled[1]];
    }
    let places = convert::convert(c.b, places, DType::Int64)?;
    Ok([as_output(c, 0, values)?, as_output(c, 1, places)?].into())
}

/// Arguments: gradient, self, positions.
fn adaptive_max_pool_backward(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    scatter_gradient(c, 2, rank)
}

/// aten::max_unpool2d(self, indices, output_size): each element at its index in a plane of zeros.
fn max_unpool(c: &mut Call<'_>, spatial: usize) -> Result<Outputs> {
    let (x, index) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    if x.numel() == 0 || out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let (batch, extents) = out.sizes.split_at(out.sizes.len() - spatial);
    let (planes, extent): (i64, i64) = (batch.iter().product(), extents.iter().product());
    let volume: Vec<String> = extents.iter().map(i64::to_string).collect();
    let message =
        format!("Found an invalid max index: {{index}} (output volumes are of size {})", volume.join("x"));
    let error = OutOfRange { kind: CheckKind::Runtime, message };
    let places = in_range(c, &index, extent, Negative::Refused, Some(&error))?;
    let flat = [planes, x.numel() / planes];
    let places = c.b.reshape(places, &flat)?;
    let value = c.value(&x, out.dtype)?;
    let value = c.b.reshape(value, &flat)?;
    let zeros = c.full(Number::Int(0), out.dtype, &[planes, extent])?;
    let written = scatter_along(c.b, zeros, 1, places, value, Combine::Replace)?;
    Ok(c.b.reshape(written, &out.sizes)?.into())
}
