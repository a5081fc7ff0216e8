//! Fractional max pooling (Graham, 2014): windows of equal size whose starts are drawn per plane.

use stablehlo::{GatherDimensionNumbers, Value};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::{Dims, Number};
use crate::indices::{index_dtype, iota};
use crate::max_pooling::{fold, initial, scatter_gradient};
use crate::normalization::as_output;
use crate::registry::OpDef;
use crate::statistics::spread;
use crate::views::take_one;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::fractional_max_pool2d", |c| forward(c, 2)),
    OpDef::new("aten::fractional_max_pool2d_backward", |c| scatter_gradient(c, 4, 2)),
    OpDef::new("aten::fractional_max_pool3d", |c| forward(c, 3)),
    OpDef::new("aten::fractional_max_pool3d_backward", |c| scatter_gradient(c, 4, 3)),
];

/// The first element of each window along one axis, [planes, windows], from one sample per plane. Each step is rounded
/// to the samples' dtype, as in ATen.
fn starts(
    c: &mut Call<'_>,
    samples: Value,
    dtype: DType,
    input: i64,
    windows: i64,
    kernel: i64,
) -> Result<Value> {
    let sizes = [c.b.dims(samples)[0], windows];
    let samples = spread(c.b, samples, &sizes, &[1])?;
    let window = iota(c.b, DType::Int32, &sizes, 1)?;
    let room = (input - kernel) as f64;
    formula(c.b, [samples, window], |[sample, window]| {
        let last = window.splat_int(input - kernel);
        if windows == 1 {
            return last;
        }
        let alpha = sample.splat(room).round_to(dtype) / sample.splat((windows - 1) as f64).round_to(dtype);
        let alpha = alpha.round_to(dtype);
        let moved = (window.to(dtype.opmath()).round_to(dtype) + sample).round_to(dtype);
        let start = (moved * alpha).round_to(dtype).to(DType::Int32)
            - (sample * alpha).round_to(dtype).to(DType::Int32);
        window.eq(window.splat_int(windows - 1)).select(last, start)
    })
}

/// Arguments: self, kernel, output size, samples [N, C, rank]. Outputs: maxima, their places in the planes.
fn forward(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let (x, samples) = (c.tensor(0)?, c.tensor(3)?);
    let (kernel, windows) = (c.ints(1)?, c.ints(2)?);
    let out = c.out(0)?.clone();
    if out.sizes.contains(&0) {
        let empty = c.full(Number::Int(0), out.dtype, &out.sizes)?;
        return Ok([as_output(c, 0, empty)?, as_output(c, 1, empty)?].into());
    }
    if samples.dtype != x.dtype || samples.rank() != 3 || kernel.len() != rank || windows.len() != rank {
        return Err(LoweringError::unsupported("samples of another dtype or rank than they must have"));
    }
    let spatial = Dims::from_slice(&x.sizes[x.rank() - rank..]);
    let planes: i64 = x.sizes[..x.rank() - rank].iter().product();
    let plane: i64 = spatial.iter().product();
    let index = index_dtype(plane);
    let value = c.value(&samples, x.dtype.opmath())?;
    // There may be samples of more inputs than there are.
    let batch = if x.rank() == rank + 2 { x.sizes[0] } else { 1 };
    let limits: Dims = std::iter::once(batch).chain(samples.sizes.iter().skip(1).copied()).collect();
    let value = c.b.slice(value, &[0; 3], &limits, &[1; 3])?;
    let value = c.b.reshape(value, &[planes, rank as i64])?;
    // [planes, windows.., kernel..]
    let mut sizes = Dims::from_slice(&[planes]);
    sizes.extend_from_slice(&windows);
    sizes.extend_from_slice(&kernel);
    let mut place: Option<Value> = None;
    for dim in 0..rank {
        // In two dimensions the samples are those of columns and rows, in three those of frames, rows, columns.
        let sample = if rank == 2 { 1 - dim } else { dim };
        let sample = take_one(c.b, value, 1, sample as i64)?;
        let starts = starts(c, sample, x.dtype, spatial[dim], windows[dim], kernel[dim])?;
        let starts = c.convert(starts, index)?;
        let starts = c.b.broadcast_in_dim(starts, &sizes, &[0, dim as i64 + 1])?;
        let within = iota(c.b, index, &sizes, 1 + rank + dim)?;
        let at = c.b.add(starts, within)?;
        place = Some(match place {
            Some(place) => {
                formula(c.b, [place, at], |[place, at]| place * place.splat_int(spatial[dim]) + at)?
            }
            None => at,
        });
    }
    let place = place.ok_or_else(|| LoweringError::unsupported("pooling without dimensions"))?;
    let value = c.value(&x, x.dtype)?;
    let value = c.b.reshape(value, &[planes, plane])?;
    let mut vectors = sizes.clone();
    vectors.push(1);
    let vectors = c.b.reshape(place, &vectors)?;
    let numbers = GatherDimensionNumbers {
        collapsed_slice_dims: [1].into_iter().collect(),
        operand_batching_dims: [0].into_iter().collect(),
        start_indices_batching_dims: [0].into_iter().collect(),
        start_index_map: [1].into_iter().collect(),
        index_vector_dim: sizes.len() as i64,
        ..GatherDimensionNumbers::default()
    };
    let windows = c.b.gather(value, vectors, &numbers, &[1, 1], false)?;
    let inits = initial(c.b, windows, place)?;
    let within: Dims = (1 + rank as i64..1 + 2 * rank as i64).collect();
    let pooled = c.b.reduce(&[windows, place], &inits, &within, fold)?;
    let places = convert::convert(c.b, pooled[1], DType::Int64)?;
    Ok([as_output(c, 0, pooled[0])?, as_output(c, 1, places)?].into())
}
