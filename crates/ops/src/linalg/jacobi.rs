//! One-sided Jacobi (Hestenes): pairs of columns are rotated until all columns are orthogonal. Unlike bidiagonalisation
//! it finds small columns as exactly as large ones.
//!
//! The columns lie in two halves; column i of the left one meets column i of the right one, all pairs at once, and then
//! the columns move on as in a round-robin tournament: the first stays, the others go round. After one round less than
//! there are columns every pair has met once, which is a sweep, and all columns are where they began.

use stablehlo::{Builder, Value};

use super::{conjugate, crop, expand, extents, pad_to, repeat};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::{formula, formulas};
use crate::graph::{Dims, Number};

type Result<T> = std::result::Result<T, LoweringError>;

/// Random matrices take about 10, those with many equal singular values twice that.
const MOST_SWEEPS: i64 = 60;

#[derive(Clone, Copy, Debug)]
pub struct Rotated {
    pub matrix: Value,
    /// 0-d bool; false where an element is not finite.
    pub converged: Value,
}

/// What a real dtype can tell apart.
struct Limits {
    epsilon: f64,
    /// Squares of column lengths below are noise: their products would vanish.
    smallest: f64,
}

fn limits(real: DType) -> Limits {
    let (epsilon, tiny) = match real {
        DType::Float64 => (f64::EPSILON, f64::MIN_POSITIVE),
        _ => (f64::from(f32::EPSILON), f64::from(f32::MIN_POSITIVE)),
    };
    Limits { epsilon, smallest: tiny / (epsilon * epsilon) }
}

/// `x Q` with the unitary Q that makes the columns of the first `rows` rows orthogonal, the largest elements of which
/// are near 1.
pub fn orthogonalise(b: &mut Builder, x: Value, rows: i64) -> Result<Rotated> {
    let [_, height, n] = extents(b, x);
    let real = convert::dtype_of(b, x)?.real();
    let columns = n + n % 2;
    let half = columns / 2;
    let x = pad_to(b, x, height, columns)?;
    let left = columns_of(b, x, 0, half)?;
    let right = columns_of(b, x, half, columns)?;
    let infinity = convert::constant(b, Number::Float(f64::INFINITY), real)?;
    let none = convert::constant(b, Number::Int(0), DType::Int32)?;
    // The dot product of a pair is rounded about as a sum of `rows` numbers is.
    let enough = limits(real).epsilon * (rows as f64).sqrt();
    let state = b.while_loop(
        &[none, infinity, left, right],
        |b, state| {
            let unfinished =
                formula(b, [state[1]], |[off]| off.gt(off.splat(enough))).map_err(stablehlo::Error::body)?;
            let allowed = formula(b, [state[0]], |[sweep]| sweep.lt(sweep.splat_int(MOST_SWEEPS)))
                .map_err(stablehlo::Error::body)?;
            b.and(unfinished, allowed)
        },
        |b, state| {
            let sweep = formula(b, [state[0]], |[sweep]| sweep + sweep.splat_int(1))
                .map_err(stablehlo::Error::body)?;
            let zero = convert::constant(b, Number::Int(0), real).map_err(stablehlo::Error::body)?;
            let rounds =
                repeat(b, columns - 1, &[zero, state[2], state[3]], |b, _, state| round(b, state, rows));
            let mut next = rounds.map_err(stablehlo::Error::body)?;
            next.insert(0, sweep);
            Ok(next)
        },
    )?;
    let matrix = b.concatenate(&[state[2], state[3]], 2)?;
    let near = formula(b, [state[1]], |[off]| off.lt(off.splat(limits(real).epsilon.sqrt())))?;
    let lengths = squared_lengths(b, matrix)?;
    let finite = b.is_finite(lengths)?;
    let finite = b.reduce_and(finite, &[0, 1])?;
    Ok(Rotated { matrix: crop(b, matrix, height, n)?, converged: b.and(near, finite)? })
}

/// Columns `from..to`.
fn columns_of(b: &mut Builder, x: Value, from: i64, to: i64) -> Result<Value> {
    let [batch, height, _] = extents(b, x);
    Ok(b.slice(x, &[0, 0, from], &[batch, height, to], &[1, 1, 1])?)
}

/// Cosine and sine of rotations [batch, 1, pairs] and what makes the dot products real.
struct Rotation {
    sine: Value,
    /// The tangent of half the angle.
    half_tangent: Value,
    /// Of the dot products, conjugate.
    phase: Value,
    /// The largest cosine between two columns, 0-d.
    off: Value,
}

/// One round: (off, left, right) to the same, rotated and moved on.
fn round(b: &mut Builder, state: &[Value], rows: i64) -> Result<Vec<Value>> {
    let &[off, left, right] = state else { return Err(LoweringError::unsupported("loop state")) };
    let rotation = rotation(b, left, right, rows)?;
    let off = b.maximum(off, rotation.off)?;
    let dims = extents(b, left);
    let [sine, half_tangent, phase] =
        expand(b, [rotation.sine, rotation.half_tangent, rotation.phase], &dims)?;
    // Rutishauser's form: a cosine rounded near 1 would change lengths a little at each step.
    let [left, right] =
        formulas(b, [left, right, sine, half_tangent, phase], |[left, right, sine, half, phase]| {
            let right = right * phase;
            [left - sine * (right + half * left), right + sine * (left - half * right)]
        })?;
    let pairs = dims[2];
    if pairs == 1 {
        return Ok(vec![off, left, right]);
    }
    let (stays, moves) = (columns_of(b, left, 0, 1)?, columns_of(b, left, 1, pairs - 1)?);
    let (up, back) = (columns_of(b, right, 0, 1)?, columns_of(b, right, 1, pairs)?);
    let down = columns_of(b, left, pairs - 1, pairs)?;
    Ok(vec![off, b.concatenate(&[stays, up, moves], 2)?, b.concatenate(&[back, down], 2)?])
}

/// The angle that makes each pair orthogonal, at most 45 degrees.
fn rotation(b: &mut Builder, left: Value, right: Value, rows: i64) -> Result<Rotation> {
    let [batch, _, pairs] = extents(b, left);
    let dtype = convert::dtype_of(b, left)?;
    let limits = limits(dtype.real());
    let part = [batch, rows, pairs];
    let left = b.slice(left, &[0, 0, 0], &part, &[1, 1, 1])?;
    let right = b.slice(right, &[0, 0, 0], &part, &[1, 1, 1])?;
    let [left_square, right_square] = [squared_lengths(b, left)?, squared_lengths(b, right)?];
    let conjugates = conjugate(b, left)?;
    let products = b.multiply(conjugates, right)?;
    let dot = b.reduce_add(products, &[1])?;
    let magnitude = b.abs(dot)?;
    let [cosine, turned, sine, half_tangent] =
        formulas(b, [left_square, right_square, magnitude], |[l, r, dot]| {
            let (zero, one) = (dot.splat(0.0), dot.splat(1.0));
            let cosine = dot / (l.sqrt() * r.sqrt());
            // NaN is not: its matrix is given up, and the others go on.
            let is_meant = l.min(r).ge(l.splat(limits.smallest)) & cosine.ge(zero);
            let cosine = is_meant.select(cosine, zero);
            let turned = cosine.gt(dot.splat(limits.epsilon));
            let zeta = (r - l) / turned.select(dot + dot, one);
            let sign = zeta.lt(zero).select(-one, one);
            let tangent = sign / (zeta.abs() + (one + zeta * zeta).sqrt());
            let tangent = turned.select(tangent, zero);
            let cos = one / (one + tangent * tangent).sqrt();
            let sine = tangent * cos;
            [cosine, turned, sine, sine / (one + cos)]
        })?;
    let magnitude = convert::convert(b, magnitude, dtype)?;
    let mut phase = formula(b, [dot, magnitude, turned], |[dot, magnitude, turned]| {
        let one = dot.splat(1.0);
        turned.select(dot, one) / turned.select(magnitude, one)
    })?;
    phase = conjugate(b, phase)?;
    let off = b.reduce_max(cosine, &[0, 1])?;
    let row = Dims::from_slice(&[batch, 1, pairs]);
    let (mut sine, mut half_tangent) = (sine, half_tangent);
    for value in [&mut sine, &mut half_tangent, &mut phase] {
        *value = convert::convert(b, *value, dtype)?;
        *value = b.reshape(*value, &row)?;
    }
    Ok(Rotation { sine, half_tangent, phase, off })
}

/// The squares of the columns' lengths, [batch, columns].
pub fn squared_lengths(b: &mut Builder, x: Value) -> Result<Value> {
    let squares = if b.elem(x).is_complex() {
        let (re, im) = (b.real(x)?, b.imag(x)?);
        formula(b, [re, im], |[re, im]| re * re + im * im)?
    } else {
        b.multiply(x, x)?
    };
    Ok(b.reduce_add(squares, &[1])?)
}
