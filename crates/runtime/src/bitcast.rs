//! Dtype views: the bytes of a buffer seen as another dtype.

use ops::{DType, Dims};
use stablehlo::{Builder, Direction, ElementType, Value};

type Result<T> = std::result::Result<T, stablehlo::Error>;

/// `base` (row-major, dtype `from`) as elements of `to`: same bytes. The last dimension grows or shrinks with the
/// element size; when it does not divide, the result is flat and bytes beyond the last whole element are dropped.
pub fn reinterpret(b: &mut Builder, base: Value, from: DType, to: DType) -> Result<Value> {
    if from == to {
        return Ok(base);
    }
    let plain = to_plain(b, base)?;
    let resized = resize_elements(b, plain, plain_elem(to))?;
    from_plain(b, resized, to)
}

/// The complex conjugate.
pub fn conjugate(b: &mut Builder, value: Value) -> Result<Value> {
    let real = b.real(value)?;
    let imag = b.imag(value)?;
    let imag = b.negate(imag)?;
    b.complex(real, imag)
}

/// The inverse of [`reinterpret`]: `value` (dtype `from`) back in the shape and dtype of `original`, whose bytes fill
/// what `value` dropped.
pub fn restore(b: &mut Builder, value: Value, from: DType, original: Value, to: DType) -> Result<Value> {
    if from == to {
        return Ok(value);
    }
    let plain = to_plain(b, value)?;
    let resized = resize_elements(b, plain, plain_elem(to))?;
    let typed = from_plain(b, resized, to)?;
    let dims = Dims::from_slice(b.dims(original));
    let (have, want) = (b.dims(typed).iter().product::<i64>(), dims.iter().product::<i64>());
    let flat = b.reshape(typed, &[have])?;
    if have == want {
        return b.reshape(flat, &dims);
    }
    let original_flat = b.reshape(original, &[want])?;
    let tail = b.slice(original_flat, &[have], &[want], &[1])?;
    let whole = b.concatenate(&[flat, tail], 0)?;
    b.reshape(whole, &dims)
}

/// The element type that carries the bits of a dtype: bool travels as bytes, complex numbers as pairs of floats.
fn plain_elem(dtype: DType) -> ElementType {
    match dtype {
        DType::Bool => ElementType::U8,
        DType::Complex64 => ElementType::F32,
        DType::Complex128 => ElementType::F64,
        other => other.element_type(),
    }
}

fn to_plain(b: &mut Builder, value: Value) -> Result<Value> {
    match b.elem(value) {
        ElementType::Pred => b.convert(value, ElementType::U8),
        ElementType::C64 | ElementType::C128 => {
            let dims = Dims::from_slice(b.dims(value));
            let mut paired = dims.clone();
            paired.push(1);
            let real = b.real(value)?;
            let imag = b.imag(value)?;
            let real = b.reshape(real, &paired)?;
            let imag = b.reshape(imag, &paired)?;
            let pair = b.concatenate(&[real, imag], dims.len() as i64)?;
            scale_last(b, pair, &dims, 2)
        }
        _ => Ok(value),
    }
}

fn from_plain(b: &mut Builder, value: Value, to: DType) -> Result<Value> {
    match to {
        DType::Bool => {
            let dims = Dims::from_slice(b.dims(value));
            let zero = b.splat(ElementType::U8, &dims, 0)?;
            b.compare(value, zero, Direction::Ne)
        }
        DType::Complex64 | DType::Complex128 => {
            let value = split_last(b, value, 2)?;
            let dims = Dims::from_slice(b.dims(value));
            let rank = dims.len();
            let part = |b: &mut Builder, which: i64| {
                let mut starts = Dims::from_elem(0, rank);
                let mut limits = dims.clone();
                starts[rank - 1] = which;
                limits[rank - 1] = which + 1;
                let strides = Dims::from_elem(1, rank);
                let part = b.slice(value, &starts, &limits, &strides)?;
                b.reshape(part, &dims[..rank - 1])
            };
            let real = part(b, 0)?;
            let imag = part(b, 1)?;
            b.complex(real, imag)
        }
        _ => Ok(value),
    }
}

/// Changes the element type of a value of plain elements, keeping its bytes.
fn resize_elements(b: &mut Builder, value: Value, to: ElementType) -> Result<Value> {
    let from = b.elem(value);
    if from == to {
        return Ok(value);
    }
    let (from_bits, to_bits) = (from.size_bits() as i64, to.size_bits() as i64);
    if from_bits == to_bits {
        return b.bitcast_convert(value, to);
    }
    if from_bits > to_bits {
        let dims = Dims::from_slice(b.dims(value));
        let split = b.bitcast_convert(value, to)?;
        return scale_last(b, split, &dims, from_bits / to_bits);
    }
    let grouped = split_last(b, value, to_bits / from_bits)?;
    b.bitcast_convert(grouped, to)
}

/// `[..., n, k]` to `[..., n * k]`
fn scale_last(b: &mut Builder, value: Value, dims: &[i64], k: i64) -> Result<Value> {
    let mut merged = Dims::from_slice(dims);
    match merged.last_mut() {
        Some(last) => *last *= k,
        None => merged.push(k),
    }
    b.reshape(value, &merged)
}

/// `[..., n * k]` to `[..., n, k]`; flat, without the remainder, when the last dimension does not divide.
fn split_last(b: &mut Builder, value: Value, k: i64) -> Result<Value> {
    let mut dims = Dims::from_slice(b.dims(value));
    match dims.last_mut() {
        Some(last) if *last % k == 0 => {
            *last /= k;
            dims.push(k);
            b.reshape(value, &dims)
        }
        _ => {
            let total: i64 = dims.iter().product();
            let flat = b.reshape(value, &[total])?;
            let whole = total / k * k;
            let cut = if whole == total { flat } else { b.slice(flat, &[0], &[whole], &[1])? };
            b.reshape(cut, &[total / k, k])
        }
    }
}

/// Dimensions of the result of [`reinterpret`].
pub fn reinterpreted_dims(dims: &[i64], from: DType, to: DType) -> Dims {
    let mut dims = Dims::from_slice(dims);
    if from == to {
        return dims;
    }
    let (from_size, to_size) = (from.size() as i64, to.size() as i64);
    if from_size == to_size && from.is_complex() == to.is_complex() {
        return dims;
    }
    let mut bits = from_size;
    // Mirrors reinterpret step by step: the order of splits and merges decides when the result goes flat.
    if from.is_complex() {
        scale_last_dim(&mut dims, 2);
        bits /= 2;
    }
    let to_plain = if to.is_complex() { to_size / 2 } else { to_size };
    if bits > to_plain {
        scale_last_dim(&mut dims, bits / to_plain);
    } else if bits < to_plain {
        split_last_dim(&mut dims, to_plain / bits);
    }
    if to.is_complex() {
        split_last_dim(&mut dims, 2);
    }
    dims
}

fn scale_last_dim(dims: &mut Dims, k: i64) {
    match dims.last_mut() {
        Some(last) => *last *= k,
        None => dims.push(k),
    }
}

fn split_last_dim(dims: &mut Dims, k: i64) {
    match dims.last_mut() {
        Some(last) if *last % k == 0 => *last /= k,
        _ => {
            let total: i64 = dims.iter().product();
            *dims = Dims::from_slice(&[total / k]);
        }
    }
}
