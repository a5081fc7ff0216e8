//! Sums and moments over some dimensions, and their values spread back over those dimensions.

use stablehlo::{Builder, Value};

use crate::convert;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::{Dims, Number};

type Result<T> = std::result::Result<T, LoweringError>;

/// Repeats a value reduced over `reduced` along those dimensions of `sizes`.
pub fn spread(b: &mut Builder, x: Value, sizes: &[i64], reduced: &[i64]) -> Result<Value> {
    let kept: Dims = (0..sizes.len() as i64).filter(|dim| !reduced.contains(dim)).collect();
    Ok(b.broadcast_in_dim(x, sizes, &kept)?)
}

/// The sum over `reduced`, at every element.
pub fn spread_sum(b: &mut Builder, x: Value, reduced: &[i64]) -> Result<Value> {
    let sizes = Dims::from_slice(b.dims(x));
    let sum = b.reduce_add(x, reduced)?;
    spread(b, sum, &sizes, reduced)
}

/// The maximum over `reduced`, at every element; NaN where there is one.
pub fn spread_max(b: &mut Builder, x: Value, reduced: &[i64]) -> Result<Value> {
    let sizes = Dims::from_slice(b.dims(x));
    let max = b.reduce_max(x, reduced)?;
    spread(b, max, &sizes, reduced)
}

/// How many elements `reduced` spans.
pub fn count(b: &Builder, x: Value, reduced: &[i64]) -> i64 {
    reduced.iter().map(|&dim| b.dims(x)[dim as usize]).product()
}

/// `x / n` for a number of elements.
pub fn divide_by_count(b: &mut Builder, x: Value, n: i64) -> Result<Value> {
    let n = convert::splat(b, x, Number::Int(n))?;
    Ok(b.divide(x, n)?)
}

pub fn mean(b: &mut Builder, x: Value, reduced: &[i64]) -> Result<Value> {
    let n = count(b, x, reduced);
    let sum = b.reduce_add(x, reduced)?;
    divide_by_count(b, sum, n)
}

/// What normalising layers need of their input, over `reduced`.
pub struct Moments {
    /// Without the reduced dimensions.
    pub mean: Value,
    /// `sum((x - mean)^2)`, without the reduced dimensions.
    pub squares: Value,
    /// `x - mean`
    pub centred: Value,
    pub count: i64,
}

/// Two passes: the difference of the mean square and the squared mean loses all digits where the mean is large.
pub fn moments(b: &mut Builder, x: Value, reduced: &[i64]) -> Result<Moments> {
    let sizes = Dims::from_slice(b.dims(x));
    let mean = mean(b, x, reduced)?;
    let spread_mean = spread(b, mean, &sizes, reduced)?;
    let centred = b.subtract(x, spread_mean)?;
    let square = b.multiply(centred, centred)?;
    let squares = b.reduce_add(square, reduced)?;
    Ok(Moments { mean, squares, centred, count: count(b, x, reduced) })
}

/// `1 / sqrt(variance + eps)` with a 0-d `eps`.
pub fn inverse_deviation(b: &mut Builder, variance: Value, eps: Value) -> Result<Value> {
    let dims = Dims::from_slice(b.dims(variance));
    let eps = b.broadcast_scalar(eps, &dims)?;
    formula(b, [variance, eps], |[variance, eps]| (variance + eps).rsqrt())
}
