//! The exponential of a matrix: a Taylor polynomial of the matrix scaled to a small norm, squared back.

use stablehlo::{Builder, Value};

use super::{INDEX, as_output, count_loop, expand, extents, eye, matmul, merge_batch, position, zeros};
use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[OpDef::new("aten::linalg_matrix_exp", linalg_matrix_exp)];

/// linalg_matrix_exp(A)
fn linalg_matrix_exp(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    let out = c.out(0)?.clone();
    if a.numel() == 0 {
        return Ok(zeros(c.b, out.dtype, &out.sizes)?.into());
    }
    let dtype = a.dtype.opmath();
    let value = c.value(&a, dtype)?;
    let matrix = merge_batch(c.b, value)?;
    let value = match extents(c.b, matrix) {
        [_, 1, 1] => c.b.exponential(matrix)?,
        _ => exponential(c.b, matrix, dtype)?,
    };
    Ok(as_output(c, 0, value)?.into())
}

fn exponential(b: &mut Builder, a: Value, dtype: DType) -> Result<Value> {
    let dims = extents(b, a);
    let halvings = halvings(b, a, dtype)?;
    let [each] = expand(b, [halvings], &dims)?;
    let zero = position(b, 0)?;
    let most = b.reduce_max(halvings, &[0, 1, 2])?;
    let scaled = count_loop(b, zero, most, &[a], |b, step, state| {
        let [step] = expand(b, [step], &dims)?;
        let half = formula(b, [state[0]], |[x]| x * 0.5)?;
        Ok(vec![formula(b, [step, each, half, state[0]], |[step, each, half, x]| {
            step.lt(each).select(half, x)
        })?])
    })?;
    let polynomial = taylor(b, scaled[0], dtype)?;
    let squared = count_loop(b, zero, most, &[polynomial], |b, step, state| {
        let [step] = expand(b, [step], &dims)?;
        let square = matmul(b, state[0], state[0])?;
        Ok(vec![formula(b, [step, each, square, state[0]], |[step, each, square, x]| {
            step.lt(each).select(square, x)
        })?])
    })?;
    Ok(squared[0])
}

/// The 1-norm up to which the polynomial of four terms by `groups` is exact to rounding: 3^20 / 20! and 2^24 / 24!.
/// Each squaring doubles the relative error, so a larger norm is worth more terms.
fn accuracy(dtype: DType) -> (f64, usize) {
    if dtype.real() == DType::Float64 { (2.0, 6) } else { (3.0, 5) }
}

/// How often each matrix must be halved until its 1-norm is small, `[batch, 1, 1]`.
fn halvings(b: &mut Builder, a: Value, dtype: DType) -> Result<Value> {
    let [batch, ..] = extents(b, a);
    let magnitude = b.abs(a)?;
    let sums = b.reduce_add(magnitude, &[1])?;
    let norm = b.reduce_max(sums, &[1])?;
    let (small, _) = accuracy(dtype);
    // No finite norm needs more; those of infinite ones do not matter.
    let most = if dtype.real() == DType::Float64 { 1024.0 } else { 128.0 };
    let count = formula(b, [norm], |[norm]| {
        let count = ((norm / norm.splat(small)).log() * std::f64::consts::LOG2_E).ceil();
        norm.gt(norm.splat(small)).select(count.min(norm.splat(most)), norm.splat(0.0))
    })?;
    let count = convert::convert(b, count, INDEX)?;
    Ok(b.reshape(count, &[batch, 1, 1])?)
}

/// The Taylor polynomial by powers up to the fourth, four coefficients at a time (Paterson and Stockmeyer).
fn taylor(b: &mut Builder, a: Value, dtype: DType) -> Result<Value> {
    let (_, groups) = accuracy(dtype);
    let dims = extents(b, a);
    let identity = eye(b, dtype, &dims)?;
    let a2 = matmul(b, a, a)?;
    let a3 = matmul(b, a2, a)?;
    let a4 = matmul(b, a2, a2)?;
    let mut factorial = 1.0;
    let mut inverse = vec![1.0];
    for i in 1..4 * groups {
        factorial *= i as f64;
        inverse.push(1.0 / factorial);
    }
    let mut sum = None;
    for group in inverse.chunks(4).rev() {
        let terms = formula(b, [identity, a, a2, a3], |[identity, a, a2, a3]| {
            identity * group[0] + a * group[1] + a2 * group[2] + a3 * group[3]
        })?;
        sum = Some(match sum {
            None => terms,
            Some(higher) => {
                let higher = matmul(b, higher, a4)?;
                b.add(higher, terms)?
            }
        });
    }
    sum.ok_or_else(|| LoweringError::unsupported("a polynomial without terms"))
}
