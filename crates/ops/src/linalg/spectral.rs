//! What eigenvalues and singular values share: scaling, order, and the error of an algorithm that does not converge.

use std::f64::consts::LOG2_E;

use stablehlo::{Builder, Direction, TensorType, Value};

use super::{INDEX, expand, extents, take_rows, transposed};
use crate::call::Call;
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::formula;

type Result<T> = std::result::Result<T, LoweringError>;

/// Matrices whose largest elements lie between 1 and 4, and the powers of two by which they were divided.
pub struct Scaled {
    pub matrix: Value,
    /// `[batch, 1]`, real.
    pub scale: Value,
}

/// Squares of elements must neither overflow nor vanish.
pub fn scaled(b: &mut Builder, x: Value) -> Result<Scaled> {
    let dims = extents(b, x);
    let dtype = convert::dtype_of(b, x)?;
    let magnitude = if dtype.is_complex() {
        let (re, im) = (b.real(x)?, b.imag(x)?);
        formula(b, [re, im], |[re, im]| re.abs().max(im.abs()))?
    } else {
        b.abs(x)?
    };
    let largest = b.reduce_max(magnitude, &[1, 2])?;
    // Half of it, which rounds to a power of two in range.
    let half = formula(b, [largest], |[x]| x * 0.5)?;
    let power = match dtype.real() {
        // TPU compilers have no reduce_precision of their pairs of float32.
        DType::Float64 => formula(b, [half], |[x]| x.splat(2.0).pow((x.log() * LOG2_E).floor()))?,
        _ => b.reduce_precision(half, 8, 0)?,
    };
    let scale = formula(b, [power], |[x]| x.eq(x.splat(0.0)).select(x.splat(1.0), x))?;
    let scale = b.reshape(scale, &[dims[0], 1])?;
    let divisor = b.reshape(scale, &[dims[0], 1, 1])?;
    let divisor = convert::convert(b, divisor, dtype)?;
    let [divisor] = expand(b, [divisor], &dims)?;
    Ok(Scaled { matrix: b.divide(x, divisor)?, scale })
}

/// What belongs to the scaled matrices, `[batch, n]`, of the matrices themselves.
pub fn unscaled(b: &mut Builder, values: Value, scale: Value) -> Result<Value> {
    let dims = [b.dims(values)[0], b.dims(values)[1]];
    let [scale] = expand(b, [scale], &dims)?;
    Ok(b.multiply(values, scale)?)
}

/// Column j times the real number `factors[batch, j]`.
pub fn scale_columns(b: &mut Builder, x: Value, factors: Value) -> Result<Value> {
    let dims = extents(b, x);
    let dtype = convert::dtype_of(b, x)?;
    let factors = convert::convert(b, factors, dtype)?;
    let factors = b.reshape(factors, &[dims[0], 1, dims[2]])?;
    let [factors] = expand(b, [factors], &dims)?;
    Ok(b.multiply(x, factors)?)
}

/// `values` `[batch, n]`, sorted (NaN anywhere: it is refused), and for each place the column it comes from, `[batch, n, 1]`.
pub fn sorted(b: &mut Builder, values: Value, descending: bool) -> Result<(Value, Value)> {
    let dims = [b.dims(values)[0], b.dims(values)[1]];
    let positions = b.iota(TensorType::new(INDEX.element_type(), &dims), 1)?;
    let sorted = b.sort(&[values, positions], 1, true, |b, args| {
        let (x, y) = if descending { (args[1], args[0]) } else { (args[0], args[1]) };
        b.compare(x, y, Direction::Lt)
    })?;
    Ok((sorted[0], b.reshape(sorted[1], &[dims[0], dims[1], 1])?))
}

pub fn take_columns(b: &mut Builder, x: Value, at: Value) -> Result<Value> {
    let x = transposed(b, x)?;
    let taken = take_rows(b, x, at)?;
    transposed(b, taken)
}

/// Raises unless the algorithm has converged: elements that are not finite keep it from it.
pub fn check_converged(c: &mut Call<'_>, converged: Value, message: &str) -> Result<()> {
    let failed = c.b.not(converged)?;
    c.check(failed, CheckKind::LinAlg, message);
    Ok(())
}
