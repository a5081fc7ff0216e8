//! The random stream: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in u32
//! arithmetic.
//!
//! Word `j` of an operator is lane `j % 4` of the block whose 128-bit counter is `offset + j / 4` (the high 64 bits are
//! zero) and whose key is the seed. An operator with `w` words for each element gives element `i`, by its row-major
//! logical index, the words `i * w ..`, and advances the offset by the blocks that it used. So the numbers depend on
//! seed, offset and logical index alone: padding, fusion and sharding cannot change them.

use stablehlo::{Builder, Direction, TensorType, Value};

use crate::call::Call;
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::Number;
use crate::indices::iota;

type Result<T> = std::result::Result<T, LoweringError>;

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Golden ratio and sqrt(3) - 1, added to the key after each round.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const LANES: i64 = 4;

/// The next `count` words of the generator, as a u32 vector.
pub fn words(c: &mut Call<'_>, count: i64) -> Result<Value> {
    let elem = DType::UInt32.element_type();
    if count == 0 {
        return Ok(c.b.splat(elem, &[0], 0u32)?);
    }
    let blocks = (count + LANES - 1) / LANES;
    if blocks > i64::from(u32::MAX) {
        return Err(LoweringError::unsupported(format!("{count} random words in one operator")));
    }
    let state = c.rng(blocks as u64)?;
    let seed = halves(c.b, state.seed)?;
    let offset = halves(c.b, state.offset)?;
    let b = &mut *c.b;
    let index = b.iota(TensorType::new(elem, &[blocks]), 0)?;
    let low = b.broadcast_scalar(offset[0], &[blocks])?;
    let low = b.add(low, index)?;
    let carry = b.compare(low, index, Direction::Lt)?;
    let carry = b.convert(carry, elem)?;
    let high = b.broadcast_scalar(offset[1], &[blocks])?;
    let high = b.add(high, carry)?;
    let zero = b.splat(elem, &[blocks], 0u32)?;
    let lanes = block(b, [low, high, zero, zero], seed)?;
    let mut columns = Vec::with_capacity(lanes.len());
    for lane in lanes {
        columns.push(b.reshape(lane, &[blocks, 1])?);
    }
    let table = b.concatenate(&columns, 1)?;
    let flat = b.reshape(table, &[blocks * LANES])?;
    Ok(b.slice(flat, &[0], &[count], &[1])?)
}

/// Low and high 32 bits of a 0-d u64.
fn halves(b: &mut Builder, x: Value) -> Result<[Value; 2]> {
    let (wide, narrow) = (DType::UInt64.element_type(), DType::UInt32.element_type());
    let mask = b.constant(wide, u64::from(u32::MAX))?;
    let low = b.and(x, mask)?;
    let shift = b.constant(wide, 32u64)?;
    let high = b.shift_right_logical(x, shift)?;
    Ok([b.convert(low, narrow)?, b.convert(high, narrow)?])
}

/// Ten rounds over vectors of counters, with one key (two scalars) for all.
fn block(b: &mut Builder, mut counter: [Value; 4], key: [Value; 2]) -> Result<[Value; 4]> {
    let elem = DType::UInt32.element_type();
    let dims = b.dims(counter[0]).to_vec();
    for round in 0..ROUNDS {
        let mut keys = key;
        for (key, weyl) in keys.iter_mut().zip(WEYL) {
            let step = b.constant(elem, weyl.wrapping_mul(round as u32))?;
            let bumped = b.add(*key, step)?;
            *key = b.broadcast_scalar(bumped, &dims)?;
        }
        let (high0, low0) = multiply(b, counter[0], MULTIPLIERS[0])?;
        let (high1, low1) = multiply(b, counter[2], MULTIPLIERS[1])?;
        let first = b.xor(high1, counter[1])?;
        let second = b.xor(high0, counter[3])?;
        counter = [b.xor(first, keys[0])?, low1, b.xor(second, keys[1])?, low0];
    }
    Ok(counter)
}

/// High and low half of the 64-bit product with a constant, from products of 16-bit halves: accelerators have no
/// 64-bit multiplication.
fn multiply(b: &mut Builder, x: Value, by: u32) -> Result<(Value, Value)> {
    let elem = DType::UInt32.element_type();
    let dims = b.dims(x).to_vec();
    let splat = |b: &mut Builder, value: u32| b.splat(elem, &dims, value);
    let (mask, sixteen) = (splat(b, 0xFFFF)?, splat(b, 16)?);
    let (by_low, by_high, whole) = (splat(b, by & 0xFFFF)?, splat(b, by >> 16)?, splat(b, by)?);
    let (x_low, x_high) = (b.and(x, mask)?, b.shift_right_logical(x, sixteen)?);
    let low_low = b.multiply(x_low, by_low)?;
    let high_low = b.multiply(x_high, by_low)?;
    let low_high = b.multiply(x_low, by_high)?;
    let high_high = b.multiply(x_high, by_high)?;
    // (2^16 - 1)^2 + 2 (2^16 - 1) = 2^32 - 1: the sum cannot overflow.
    let carried = b.shift_right_logical(low_low, sixteen)?;
    let rest = b.and(high_low, mask)?;
    let middle = b.add(carried, rest)?;
    let middle = b.add(middle, low_high)?;
    let above = b.shift_right_logical(high_low, sixteen)?;
    let carried = b.shift_right_logical(middle, sixteen)?;
    let high = b.add(high_high, above)?;
    let high = b.add(high, carried)?;
    Ok((high, b.multiply(x, whole)?))
}

/// Words in pairs as 64-bit numbers, the first word low.
fn wide_words(c: &mut Call<'_>, count: i64) -> Result<Value> {
    let words = words(c, 2 * count)?;
    let pairs = c.b.reshape(words, &[count, 2])?;
    let wide = c.b.convert(pairs, DType::UInt64.element_type())?;
    let low = c.b.slice(wide, &[0, 0], &[count, 1], &[1, 1])?;
    let high = c.b.slice(wide, &[0, 1], &[count, 2], &[1, 1])?;
    let shift = convert::splat(c.b, high, Number::Int(32))?;
    let high = c.b.shift_left(high, shift)?;
    let both = c.b.or(high, low)?;
    Ok(c.b.reshape(both, &[count])?)
}

/// One random integer per element: u32 of one word, or u64 of two.
pub fn integers(c: &mut Call<'_>, sizes: &[i64], wide: bool) -> Result<Value> {
    let count = sizes.iter().product();
    let words = if wide { wide_words(c, count)? } else { words(c, count)? };
    Ok(c.b.reshape(words, sizes)?)
}

/// The upper `digits` bits of each random integer.
fn upper_bits(c: &mut Call<'_>, sizes: &[i64], wide: bool, digits: u32) -> Result<Value> {
    let bits = integers(c, sizes, wide)?;
    let drop = if wide { 64 } else { 32 } - i64::from(digits);
    let shift = convert::splat(c.b, bits, Number::Int(drop))?;
    Ok(c.b.shift_right_logical(bits, shift)?)
}

/// Bits of the significand, the implicit one included.
pub fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::Float64 => 53,
        DType::Float16 => 11,
        DType::BFloat16 => 8,
        _ => 24,
    }
}

/// Uniform on [0, 1): a multiple of 2^-digits of `dtype`, so that rounding to `dtype` cannot give 1 (ATen's
/// `uniform_real_distribution`). In f32, or in f64 for f64.
pub fn unit(c: &mut Call<'_>, sizes: &[i64], dtype: DType) -> Result<Value> {
    let (digits, acc) = (digits(dtype), dtype.opmath());
    let bits = upper_bits(c, sizes, dtype == DType::Float64, digits)?;
    let value = c.b.convert(bits, acc.element_type())?;
    let scale = convert::splat(c.b, value, Number::Float((-f64::from(digits)).exp2()))?;
    Ok(c.b.multiply(value, scale)?)
}

/// Uniform on (0, 1], for logarithms: from f32 at 2^-33 (curand's `uniform`), from f64 at 2^-53.
pub fn unit_above_zero(c: &mut Call<'_>, sizes: &[i64], dtype: DType) -> Result<Value> {
    let bits =
        if dtype == DType::Float64 { upper_bits(c, sizes, true, 53)? } else { integers(c, sizes, false)? };
    above_zero(c.b, bits, dtype)
}

fn above_zero(b: &mut Builder, bits: Value, dtype: DType) -> Result<Value> {
    let (scale, first) = if dtype == DType::Float64 { (-53f64, 1.0) } else { (-32f64, 0.5) };
    let value = b.convert(bits, dtype.opmath().element_type())?;
    let first = convert::splat(b, value, Number::Float(first))?;
    let scale = convert::splat(b, value, Number::Float(scale.exp2()))?;
    let value = b.add(value, first)?;
    Ok(b.multiply(value, scale)?)
}

/// Standard normal numbers by Box and Muller: elements 2m and 2m + 1 are the cosine and the sine of one pair of
/// uniform numbers, made of the words of these two elements.
pub fn normal(c: &mut Call<'_>, sizes: &[i64], dtype: DType) -> Result<Value> {
    let count: i64 = sizes.iter().product();
    let wide = dtype == DType::Float64;
    let even = count + count % 2;
    let bits = if wide { upper_bits(c, &[even], true, 53)? } else { words(c, even)? };
    let b = &mut *c.b;
    let pairs = b.reshape(bits, &[even / 2, 2])?;
    let first = b.slice(pairs, &[0, 0], &[even / 2, 1], &[1, 1])?;
    let second = b.slice(pairs, &[0, 1], &[even / 2, 2], &[1, 1])?;
    let radius = above_zero(b, first, dtype)?;
    let radius = b.log(radius)?;
    let factor = convert::splat(b, radius, Number::Float(-2.0))?;
    let radius = b.multiply(radius, factor)?;
    let radius = b.sqrt(radius)?;
    let turn = above_zero(b, second, dtype)?;
    let circle = convert::splat(b, turn, Number::Float(2.0 * std::f64::consts::PI))?;
    let angle = b.multiply(turn, circle)?;
    let (cosine, sine) = (b.cosine(angle)?, b.sine(angle)?);
    let (x, y) = (b.multiply(radius, cosine)?, b.multiply(radius, sine)?);
    let table = b.concatenate(&[x, y], 1)?;
    let flat = b.reshape(table, &[even])?;
    let flat = b.slice(flat, &[0], &[count], &[1])?;
    Ok(b.reshape(flat, sizes)?)
}

/// 0, 1, ..., n - 1 in random order, as int32 or int64: a sort of 64-bit random keys.
pub fn permutation(c: &mut Call<'_>, n: i64, dtype: DType) -> Result<Value> {
    let keys = integers(c, &[n, 2], false)?;
    let first = c.b.slice(keys, &[0, 0], &[n, 1], &[1, 1])?;
    let second = c.b.slice(keys, &[0, 1], &[n, 2], &[1, 1])?;
    let (first, second) = (c.b.reshape(first, &[n])?, c.b.reshape(second, &[n])?);
    let numbers = iota(c.b, dtype, &[n], 0)?;
    let sorted = c.b.sort(&[first, second, numbers], 0, true, |b, args| {
        let below = b.compare(args[0], args[1], Direction::Lt)?;
        let tie = b.compare(args[0], args[1], Direction::Eq)?;
        let below_by_second = b.compare(args[2], args[3], Direction::Lt)?;
        let by_second = b.and(tie, below_by_second)?;
        b.or(below, by_second)
    })?;
    Ok(sorted[2])
}
