//! Average pooling, and adaptive average pooling. Sums are kept in the opmath type.

use stablehlo::Value;

use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::normalization::as_output;
use crate::registry::OpDef;
use crate::statistics::spread;
use crate::windows::{Pool, Segments};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::avg_pool2d", |c| avg_pool(c, 2)),
    OpDef::new("aten::avg_pool3d", |c| avg_pool(c, 3)),
    OpDef::new("aten::avg_pool2d_backward", |c| avg_pool_backward(c, 2)),
    OpDef::new("aten::avg_pool3d_backward", |c| avg_pool_backward(c, 3)),
    OpDef::new("aten::_adaptive_avg_pool2d", |c| adaptive_avg_pool(c, 2)),
    OpDef::new("aten::_adaptive_avg_pool3d", |c| adaptive_avg_pool(c, 3)),
    OpDef::new("aten::_adaptive_avg_pool2d_backward", |c| adaptive_avg_pool_backward(c, 2)),
    OpDef::new("aten::_adaptive_avg_pool3d_backward", |c| adaptive_avg_pool_backward(c, 3)),
];

/// How many elements each window counts along one dimension.
fn counts(pool: &Pool, dim: usize, size: i64, outputs: i64, include_pad: bool) -> Vec<i64> {
    (0..outputs)
        .map(|i| {
            let start = i * pool.stride[dim] - pool.padding[dim];
            let end = (start + pool.kernel[dim]).min(size + pool.padding[dim]);
            if include_pad { end - start } else { end.min(size) - start.max(0) }
        })
        .collect()
}

/// The product of counts along the last dimensions, at every element of `sizes`.
fn product(c: &mut Call<'_>, counts: &[Vec<i64>], dtype: DType, sizes: &[i64]) -> Result<Value> {
    let leading = sizes.len() - counts.len();
    let mut scalar = 1;
    let mut product: Option<Value> = None;
    for (dim, counts) in counts.iter().enumerate() {
        if counts.windows(2).all(|pair| pair[0] == pair[1]) {
            scalar *= counts.first().copied().unwrap_or(1);
            continue;
        }
        let others: Dims = (0..sizes.len() as i64).filter(|&d| d != (leading + dim) as i64).collect();
        let factor = c.b.constant_i64_array(counts)?;
        let factor = convert::convert(c.b, factor, dtype)?;
        let factor = spread(c.b, factor, sizes, &others)?;
        product = Some(match product {
            Some(product) => c.b.multiply(product, factor)?,
            None => factor,
        });
    }
    let scalar = c.full(Number::Int(scalar), dtype, sizes)?;
    match product {
        Some(product) => Ok(c.b.multiply(product, scalar)?),
        None => Ok(scalar),
    }
}

/// What each window's sum is divided by. Arguments from `first`: count_include_pad, divisor_override.
fn divisor(
    c: &mut Call<'_>,
    pool: &Pool,
    first: usize,
    inputs: &[i64],
    outputs: &[i64],
    dtype: DType,
) -> Result<Value> {
    let include_pad = c.bool(first)?;
    if let Some(divisor) = c.opt_int(first + 1)? {
        if divisor == 0 {
            return Err(LoweringError::invalid("divisor must be not zero"));
        }
        return c.full(Number::Int(divisor), dtype, outputs);
    }
    let leading = inputs.len() - pool.rank();
    let counts: Vec<Vec<i64>> = (0..pool.rank())
        .map(|dim| counts(pool, dim, inputs[leading + dim], outputs[leading + dim], include_pad))
        .collect();
    product(c, &counts, dtype, outputs)
}

/// Arguments: self, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override.
fn avg_pool(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let dtype = x.dtype.opmath();
    let pool = Pool::parse(c, 1, rank, false)?;
    if out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let window = pool.window(&x.sizes, &out.sizes);
    let divisor = divisor(c, &pool, 5, &x.sizes, &out.sizes, dtype)?;
    let value = c.value(&x, dtype)?;
    let zero = c.b.zero(dtype.element_type())?;
    let sums = c.b.reduce_window(&[value], &[zero], &window, |b, args| Ok(vec![b.add(args[0], args[1])?]))?;
    let mean = c.b.divide(sums[0], divisor)?;
    Ok(c.convert(mean, out.dtype)?.into())
}

/// Arguments: gradient, self, then those of the forward operator.
fn avg_pool_backward(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let (grad, x) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = x.dtype.opmath();
    let pool = Pool::parse(c, 2, rank, false)?;
    let out = c.out(0)?.clone();
    if grad.numel() == 0 {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let divisor = divisor(c, &pool, 6, &x.sizes, &grad.sizes, dtype)?;
    let value = c.value(&grad, dtype)?;
    let value = c.b.divide(value, divisor)?;
    // Each input element sums the windows over it: those windows slide over the gradient spread out by the stride.
    let mut window = pool.window(&x.sizes, &grad.sizes);
    for dim in 0..rank {
        let at = x.rank() - rank + dim;
        let spread = (grad.sizes[at] - 1) * pool.stride[dim] + 1;
        let low = pool.kernel[dim] - 1 - pool.padding[dim];
        window.base_dilations[at] = pool.stride[dim];
        window.strides[at] = 1;
        window.padding[at] = (low, x.sizes[at] + pool.kernel[dim] - 1 - spread - low);
    }
    let zero = c.b.zero(dtype.element_type())?;
    let sums = c.b.reduce_window(&[value], &[zero], &window, |b, args| Ok(vec![b.add(args[0], args[1])?]))?;
    Ok([as_output(c, 0, sums[0])?].into())
}

/// Per trailing dimension, the windows from `inputs` to `outputs`.
fn adaptive(inputs: &[i64], outputs: &[i64], rank: usize) -> Vec<Segments> {
    (inputs.len() - rank..inputs.len()).map(|dim| Segments::adaptive(inputs[dim], outputs[dim])).collect()
}

fn adaptive_avg_pool(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let dtype = x.dtype.opmath();
    let windows = adaptive(&x.sizes, &out.sizes, rank);
    let counts: Vec<Vec<i64>> = windows.iter().map(Segments::lengths).collect();
    let mut value = c.value(&x, dtype)?;
    for (dim, windows) in windows.iter().enumerate() {
        value = windows.sum(c.b, value, x.rank() - rank + dim)?;
    }
    let divisor = product(c, &counts, dtype, &out.sizes)?;
    let mean = c.b.divide(value, divisor)?;
    Ok(c.convert(mean, out.dtype)?.into())
}

fn adaptive_avg_pool_backward(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let (grad, x) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = x.dtype.opmath();
    let windows = adaptive(&x.sizes, &grad.sizes, rank);
    let counts: Vec<Vec<i64>> = windows.iter().map(Segments::lengths).collect();
    let divisor = product(c, &counts, dtype, &grad.sizes)?;
    let value = c.value(&grad, dtype)?;
    let mut value = c.b.divide(value, divisor)?;
    for (dim, windows) in windows.iter().enumerate() {
        let at = x.rank() - rank + dim;
        value = windows.containing(x.sizes[at]).sum(c.b, value, at)?;
    }
    Ok([as_output(c, 0, value)?].into())
}
