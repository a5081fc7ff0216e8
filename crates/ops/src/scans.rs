//! Cumulative operations along one dimension.

use stablehlo::{Builder, TensorType, Value};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::{Expr, formula, formulas};
use crate::graph::Number;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::cummax", |c| cumulative_extreme(c, true)),
    OpDef::new("aten::cummin", |c| cumulative_extreme(c, false)),
    OpDef::new("aten::cumprod", |c| cumulate(c, |x, y| x * y)).computes_in_out(),
    OpDef::new("aten::cumsum", |c| cumulate(c, |x, y| x + y)).computes_in_out(),
];

/// Combines earlier values with later ones; associative.
type Combine<'c, const N: usize> = &'c dyn Fn(&mut Builder, [Value; N], [Value; N]) -> Result<[Value; N]>;

/// Inclusive scan along `dim` in O(n) operations and O(log n) depth: neighbours are combined, the half-size problem is
/// solved, and the other half follows from it (Blelloch; `reduce_window` over whole rows is quadratic on CPU).
pub fn scan<const N: usize>(
    b: &mut Builder,
    values: [Value; N],
    dim: usize,
    combine: Combine<'_, N>,
) -> Result<[Value; N]> {
    let n = b.dims(values[0])[dim];
    if n < 2 {
        return Ok(values);
    }
    let first = strided(b, values, dim, 0, n - 1, 2)?;
    let second = strided(b, values, dim, 1, n, 2)?;
    let pairs = combine(b, first, second)?;
    let odd = scan(b, pairs, dim, combine)?;
    let later = strided(b, values, dim, 2, n, 2)?;
    let head = strided(b, values, dim, 0, 1, 1)?;
    let even = match b.dims(later[0])[dim] {
        0 => head,
        count => {
            let before = strided(b, odd, dim, 0, count, 1)?;
            let rest = combine(b, before, later)?;
            let mut even = head;
            for (even, rest) in even.iter_mut().zip(rest) {
                *even = b.concatenate(&[*even, rest], dim as i64)?;
            }
            even
        }
    };
    let mut results = even;
    for (result, odd) in results.iter_mut().zip(odd) {
        *result = interleave(b, *result, odd, dim)?;
    }
    Ok(results)
}

fn strided<const N: usize>(
    b: &mut Builder,
    mut values: [Value; N],
    dim: usize,
    start: i64,
    limit: i64,
    stride: i64,
) -> Result<[Value; N]> {
    for value in &mut values {
        let mut limits = b.dims(*value).to_vec();
        let (mut starts, mut strides) = (vec![0; limits.len()], vec![1; limits.len()]);
        (starts[dim], limits[dim], strides[dim]) = (start.min(limit), limit, stride);
        *value = b.slice(*value, &starts, &limits, &strides)?;
    }
    Ok(values)
}

/// even[0], odd[0], even[1], ...; `even` has as many entries along `dim` as `odd`, or one more.
fn interleave(b: &mut Builder, even: Value, odd: Value, dim: usize) -> Result<Value> {
    let rank = b.rank(even);
    let (evens, odds) = (b.dims(even)[dim], b.dims(odd)[dim]);
    let zero = b.zero(b.elem(even))?;
    let spread = |b: &mut Builder, value: Value, low: i64, high: i64| {
        let (mut lows, mut highs, mut interior) = (vec![0; rank], vec![0; rank], vec![0; rank]);
        (lows[dim], highs[dim], interior[dim]) = (low, high, 1);
        b.pad(value, zero, &lows, &highs, &interior)
    };
    let even = spread(b, even, 0, i64::from(evens == odds))?;
    let odd = spread(b, odd, 1, i64::from(evens > odds))?;
    // A sum of the two would turn -0 into 0.
    let ty = TensorType::new(DType::Int32.element_type(), b.dims(even));
    let index = b.iota(ty, dim as i64)?;
    let is_even = formula(b, [index], |[i]| (i & i.splat_int(1)).eq(i.splat_int(0)))?;
    Ok(b.select(is_even, even, odd)?)
}

/// The inclusive scan of argument 0 along the dimension at position 1.
pub fn cumulate(c: &mut Call<'_>, build: impl for<'f> Fn(Expr<'f>, Expr<'f>) -> Expr<'f>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dim = c.dim(1, x.rank())?;
    let out = c.out(0)?.clone();
    let value = c.value(&x, out.dtype.opmath())?;
    if x.rank() == 0 {
        return Ok(c.convert(value, out.dtype)?.into());
    }
    let combine =
        |b: &mut Builder, [x]: [Value; 1], [y]: [Value; 1]| Ok([formula(b, [x, y], |[x, y]| build(x, y))?]);
    let [value] = scan(c.b, [value], dim, &combine)?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// (values, indices); among equal values the last position counts, and NaN beats every number.
fn cumulative_extreme(c: &mut Call<'_>, max: bool) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dim = c.dim(1, x.rank())?;
    if x.dtype.is_complex() {
        return Err(LoweringError::unsupported("an order of complex numbers"));
    }
    let value = c.value(&x, x.dtype)?;
    if x.rank() == 0 {
        return Ok([value, c.full(Number::Int(0), DType::Int64, &[])?].into());
    }
    let ty = TensorType::new(DType::Int32.element_type(), &x.sizes);
    let index = c.b.iota(ty, dim as i64)?;
    let is_float = x.dtype.is_float();
    let combine = |b: &mut Builder, [x, i]: [Value; 2], [y, j]: [Value; 2]| {
        formulas(b, [x, i, y, j], |[x, i, y, j]| {
            let beats = if max { y.ge(x) } else { y.le(x) };
            let later = if is_float { beats | y.is_nan() } else { beats };
            [later.select(y, x), later.select(j, i)]
        })
    };
    let [value, index] = scan(c.b, [value, index], dim, &combine)?;
    Ok([value, convert::convert(c.b, index, DType::Int64)?].into())
}
