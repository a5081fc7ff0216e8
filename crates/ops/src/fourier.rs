//! Discrete Fourier transforms over any dimensions: `torch.fft` and `stft` decompose to these three operators.

use stablehlo::{FftType, Value};

use crate::arguments::Arguments;
use crate::call::{Call, Outputs, wrap_dim};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_fft_c2c", complex_to_complex),
    OpDef::new("aten::_fft_r2c", real_to_complex),
    OpDef::new("aten::_fft_c2r", complex_to_real).strides(strides_of_real),
];

/// All but the last dimension are transformed first, as complex numbers; each step leaves the dimensions that it
/// transforms innermost, the others around them in the order of their strides.
fn strides_of_real(arguments: &Arguments<'_>, sizes: &[i64]) -> Result<Dims> {
    let x = arguments.tensor(0)?;
    let dims =
        arguments.ints(1)?.iter().map(|&dim| wrap_dim(dim, x.sizes.len())).collect::<Result<Vec<_>>>()?;
    let (rest, halved) = split(&dims)?;
    let before = if rest.is_empty() { x.strides.clone() } else { after_step(&x.sizes, &x.strides, rest) };
    Ok(after_step(sizes, &before, &[halved]))
}

fn after_step(sizes: &[i64], strides: &[i64], dims: &[usize]) -> Dims {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&dim| (dims.contains(&dim), std::cmp::Reverse(strides[dim])));
    let mut after = Dims::from_elem(1, sizes.len());
    let mut step = 1;
    for &dim in order.iter().rev() {
        after[dim] = step;
        step *= sizes[dim].max(1);
    }
    after
}

/// Most dimensions that one `stablehlo.fft` transforms.
const LARGEST_RANK: usize = 3;

/// Arguments: self, dimensions, normalisation, forward.
fn complex_to_complex(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dims = dims(c, x.rank())?;
    if x.numel() == 0 {
        return empty(c);
    }
    let value = c.value(&x, x.dtype)?;
    let value = transform(c, value, if c.bool(3)? { FftType::Fft } else { FftType::Ifft }, &dims)?;
    let inverted = if c.bool(3)? { 1 } else { count(&x.sizes, &dims) };
    normalised(c, value, x.dtype, count(&x.sizes, &dims), inverted)
}

/// Arguments: self, dimensions, normalisation, whether the last of the dimensions keeps only its first half.
fn real_to_complex(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dims = dims(c, x.rank())?;
    if x.numel() == 0 {
        return empty(c);
    }
    let dtype = c.out(0)?.dtype;
    let transformed = if c.bool(3)? {
        let value = c.value(&x, x.dtype)?;
        let (rest, halved) = split(&dims)?;
        let value = along(c, value, FftType::Rfft, &[halved], x.sizes[halved])?;
        transform(c, value, FftType::Fft, rest)?
    } else {
        let value = c.value(&x, dtype)?;
        transform(c, value, FftType::Fft, &dims)?
    };
    normalised(c, transformed, dtype, count(&x.sizes, &dims), 1)
}

/// Arguments: self, dimensions, normalisation, the result's size in the last of the dimensions.
fn complex_to_real(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dims = dims(c, x.rank())?;
    let out = c.out(0)?.clone();
    if x.numel() == 0 || out.sizes.contains(&0) {
        return empty(c);
    }
    let value = c.value(&x, x.dtype)?;
    let (rest, halved) = split(&dims)?;
    let value = transform(c, value, FftType::Ifft, rest)?;
    let value = along(c, value, FftType::Irfft, &[halved], out.sizes[halved])?;
    let total = count(&out.sizes, &dims);
    normalised(c, value, out.dtype, total, total)
}

/// The dimensions (argument 1), counted from the front.
fn dims(c: &Call<'_>, rank: usize) -> Result<Vec<usize>> {
    c.ints(1)?.into_iter().map(|dim| wrap_dim(dim, rank)).collect()
}

fn split(dims: &[usize]) -> Result<(&[usize], usize)> {
    let (last, rest) =
        dims.split_last().ok_or_else(|| LoweringError::invalid("no dimension to transform"))?;
    Ok((rest, *last))
}

fn count(sizes: &[i64], dims: &[usize]) -> i64 {
    dims.iter().map(|&dim| sizes[dim]).product()
}

fn empty(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into())
}

/// A complex transform over any number of dimensions, as few at a time as there must be.
fn transform(c: &mut Call<'_>, value: Value, kind: FftType, dims: &[usize]) -> Result<Value> {
    dims.chunks(LARGEST_RANK).try_fold(value, |value, dims| {
        let last = dims.last().map_or(0, |&dim| c.b.dims(value)[dim]);
        along(c, value, kind, dims, last)
    })
}

/// Transforms at most three dimensions: moved to the end, and back. `last`: elements of the last of them, which a real
/// transform halves on one side.
fn along(c: &mut Call<'_>, value: Value, kind: FftType, dims: &[usize], last: i64) -> Result<Value> {
    let sizes = Dims::from_slice(c.b.dims(value));
    let mut order: Vec<usize> = (0..sizes.len()).filter(|dim| !dims.contains(dim)).collect();
    order.extend(dims);
    let mut length: Vec<i64> = dims.iter().map(|&dim| sizes[dim]).collect();
    if let Some(end) = length.last_mut() {
        *end = last;
    }
    let mut back = vec![0; order.len()];
    for (place, &dim) in order.iter().enumerate() {
        back[dim] = place as i64;
    }
    let moved = order.iter().enumerate().any(|(place, &dim)| place != dim);
    let order: Vec<i64> = order.into_iter().map(|dim| dim as i64).collect();
    let value = if moved { c.b.transpose(value, &order)? } else { value };
    let value = c.b.fft(value, kind, &length)?;
    Ok(if moved { c.b.transpose(value, &back)? } else { value })
}

/// Applies the normalisation (argument 2): none, by the root of `total`, by `total`. The inverse transforms of
/// StableHLO have divided by `divided` already.
fn normalised(c: &mut Call<'_>, value: Value, dtype: DType, total: i64, divided: i64) -> Result<Outputs> {
    let (total, divided) = (total as f64, divided as f64);
    let scale = match c.int(2)? {
        0 => divided,
        1 => divided / total.sqrt(),
        2 => divided / total,
        other => return Err(LoweringError::invalid(format!("normalisation {other} is not known"))),
    };
    if scale == 1.0 {
        return Ok(value.into());
    }
    let sizes = Dims::from_slice(c.b.dims(value));
    let scale = c.full(Number::Float(scale), dtype.real(), &sizes)?;
    if !dtype.is_complex() {
        return Ok(c.b.multiply(value, scale)?.into());
    }
    // Part by part: a complex factor would turn an infinite part into NaN in the other.
    let (re, im) = (c.b.real(value)?, c.b.imag(value)?);
    let (re, im) = (c.b.multiply(re, scale)?, c.b.multiply(im, scale)?);
    Ok(c.b.complex(re, im)?.into())
}
