//! Distances between the rows of matrices in any p-norm. The differences of all pairs stand in the program as one
//! value, which XLA fuses into the sum over it.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::{Expr, formula};
use crate::graph::{Dims, Number};
use crate::indices::{index_dtype, iota, take};
use crate::matmul::precision;
use crate::registry::OpDef;
use crate::statistics::spread;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_cdist_forward", cdist),
    OpDef::new("aten::_cdist_backward", cdist_backward),
    OpDef::new("aten::_pdist_forward", pdist),
    OpDef::new("aten::_pdist_backward", pdist_backward),
];

/// `x[.., i, 1, k] - y[.., 1, j, k]` with the batch dimensions of `sizes` = [.., i, j].
fn differences(b: &mut Builder, x: Value, y: Value, sizes: &[i64]) -> Result<Value> {
    let rank = sizes.len();
    let mut all = Dims::from_slice(sizes);
    all.push(b.dims(x)[b.rank(x) - 1]);
    let mut batch = Dims::from_slice(&sizes[..rank - 2]);
    let mut expand = |b: &mut Builder, value: Value, rows: usize| -> Result<Value> {
        batch.truncate(rank - 2);
        batch.extend_from_slice(&[sizes[rows], all[rank]]);
        let value = convert::broadcast_to(b, value, &batch)?;
        let map: Dims = (0..=rank as i64).filter(|&dim| dim as usize != 2 * rank - 3 - rows).collect();
        Ok(b.broadcast_in_dim(value, &all, &map)?)
    };
    let x = expand(b, x, rank - 2)?;
    let y = expand(b, y, rank - 1)?;
    Ok(b.subtract(x, y)?)
}

/// The p-norm of the last dimension.
pub fn norm(b: &mut Builder, difference: Value, p: f64) -> Result<Value> {
    let last = [b.rank(difference) as i64 - 1];
    if p == f64::INFINITY {
        let magnitude = b.abs(difference)?;
        // Not the least float: a norm over no columns is 0.
        let zero = b.zero(b.elem(magnitude))?;
        let folded =
            b.reduce(&[magnitude], &[zero], &last, |b, args| Ok(vec![b.maximum(args[0], args[1])?]))?;
        return Ok(folded[0]);
    }
    let terms = formula(b, [difference], |[d]| match p {
        0.0 => d.abs().ceil().min(d.splat(1.0)),
        1.0 => d.abs(),
        2.0 => d * d,
        _ => d.abs().pow(d.splat(p)),
    })?;
    let sum = b.reduce_add(terms, &last)?;
    formula(b, [sum], |[sum]| match p {
        0.0 | 1.0 => sum,
        2.0 => sum.sqrt(),
        _ => sum.pow(sum.splat(1.0 / p)),
    })
}

/// The gradient of the norm by each difference, times the gradient of the result. Where the distance is 0, so is it.
fn norm_gradient<'f>(d: Expr<'f>, grad: Expr<'f>, distance: Expr<'f>, p: f64) -> Expr<'f> {
    let zero = d.splat(0.0);
    let near = distance.eq(zero);
    if p == 0.0 {
        return zero;
    }
    if p == 1.0 {
        return grad * d.sign();
    }
    if p == 2.0 {
        return near.select(zero, grad * d / distance);
    }
    if p == f64::INFINITY {
        let largest = 1.0 - (d.abs() - distance).abs().ceil().min(d.splat(1.0));
        return grad * d.sign() * largest;
    }
    let scale = grad / distance.pow(d.splat(p - 1.0));
    if p < 2.0 {
        let value = near.select(zero, d.sign() * d.abs().pow(d.splat(p - 1.0)) * scale);
        // The power is infinite there for p < 1.
        if p < 1.0 { d.eq(zero).select(zero, value) } else { value }
    } else {
        near.select(zero, d * d.abs().pow(d.splat(p - 2.0)) * scale)
    }
}

fn operand(c: &mut Call<'_>, x: &Tensor) -> Result<Value> {
    if !matches!(x.dtype, DType::Float32 | DType::Float64) {
        return Err(LoweringError::unsupported(format!("distances of {}", x.dtype)));
    }
    c.value(x, x.dtype)
}

/// aten::_cdist_forward(x1, x2, p, compute_mode)
fn cdist(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let p = c.float(2)?;
    let out = c.out(0)?.clone();
    let columns = x.sizes[x.rank() - 1];
    let (x, y) = (operand(c, &x)?, operand(c, &y)?);
    if columns == 0 || out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let rows = &out.sizes[out.sizes.len() - 2..];
    let by_product = match c.opt_int(3)?.unwrap_or(0) {
        0 => rows.iter().any(|&rows| rows > 25),
        mode => mode == 1,
    };
    let value = if p == 2.0 && by_product {
        euclidean_by_product(c, x, y, &out.sizes)?
    } else {
        let difference = differences(c.b, x, y, &out.sizes)?;
        norm(c.b, difference, p)?
    };
    Ok(value.into())
}

/// `sqrt(|x|² - 2 x·y + |y|²)`: what PyTorch computes for many rows, although it cancels where rows are close.
fn euclidean_by_product(c: &mut Call<'_>, x: Value, y: Value, sizes: &[i64]) -> Result<Value> {
    let rank = sizes.len();
    let mut parts = Vec::with_capacity(2);
    for (value, rows) in [(x, rank - 2), (y, rank - 1)] {
        let mut own = Dims::from_slice(&sizes[..rank - 2]);
        own.extend_from_slice(&[sizes[rows], *c.b.dims(value).last().unwrap_or(&0)]);
        let value = convert::broadcast_to(c.b, value, &own)?;
        let square = c.b.multiply(value, value)?;
        let square = c.b.reduce_add(square, &[rank as i64 - 1])?;
        let other = (2 * rank - 3 - rows) as i64;
        parts.push((value, spread(c.b, square, sizes, &[other])?));
    }
    let [(x, x_squared), (y, y_squared)] = parts[..] else {
        return Err(LoweringError::unsupported("operands of a distance"));
    };
    let dtype = convert::dtype_of(c.b, x)?;
    let batch: Vec<i64> = (0..rank as i64 - 2).collect();
    let last = [rank as i64 - 1];
    let dims = stablehlo::DotDimensionNumbers::new(&batch, &batch, &last, &last);
    let precision = precision(c, dtype);
    let product = c.b.dot_general(x, y, &dims, precision, dtype.element_type())?;
    formula(c.b, [x_squared, y_squared, product], |[x, y, product]| {
        (x - 2.0 * product + y).max(x.splat(0.0)).sqrt()
    })
}

/// The gradient by the rows of `x`: `grad` and `distance` have the sizes [.., i, j].
fn by_rows(b: &mut Builder, x: Value, y: Value, grad: Value, distance: Value, p: f64) -> Result<Value> {
    let sizes = Dims::from_slice(b.dims(grad));
    let difference = differences(b, x, y, &sizes)?;
    let all = Dims::from_slice(b.dims(difference));
    let columns = [sizes.len() as i64];
    let grad = spread(b, grad, &all, &columns)?;
    let distance = spread(b, distance, &all, &columns)?;
    let terms =
        formula(b, [difference, grad, distance], |[d, grad, distance]| norm_gradient(d, grad, distance, p))?;
    Ok(b.reduce_add(terms, &[sizes.len() as i64 - 1])?)
}

/// aten::_cdist_backward(grad, x1, x2, p, distances): the gradient of x1, expanded to the common batch.
fn cdist_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, y, distance) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?, c.tensor(4)?);
    let p = c.float(3)?;
    let out = c.out(0)?.clone();
    let (x, y) = (operand(c, &x)?, operand(c, &y)?);
    if out.sizes.contains(&0) || grad.numel() == 0 {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let distance = c.broadcast(&distance, out.dtype, &grad.sizes)?;
    let grad = c.value(&grad, out.dtype)?;
    Ok(by_rows(c.b, x, y, grad, distance, p)?.into())
}

/// aten::_pdist_forward(self, p): the distances of all pairs i < j, row by row.
fn pdist(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let p = c.float(1)?;
    let out = c.out(0)?.clone();
    let (n, pairs) = (x.sizes[0], out.sizes[0]);
    let value = operand(c, &x)?;
    if pairs == 0 || x.sizes[1] == 0 {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let difference = differences(c.b, value, value, &[n, n])?;
    let all = norm(c.b, difference, p)?;
    let all = c.b.reshape(all, &[n * n])?;
    if index_dtype(n * n) != DType::Int32 {
        return Err(LoweringError::unsupported(format!("distances between {n} rows")));
    }
    // Counted from the last pair, rows have 1, 2, 3... pairs. The root is exact to less than 1.
    let position = iota(c.b, DType::Int32, &[pairs], 0)?;
    let place = formula(c.b, [position], |[position]| {
        let back = position.splat_int(pairs - 1) - position;
        let estimate = (((back.to(DType::Float32) * 8.0 + 1.0).sqrt() - 1.0) * 0.5).to(DType::Int32);
        let one = back.splat_int(1);
        let row = pairs_before(estimate).gt(back).select(estimate - one, estimate);
        let row = pairs_before(row + one).le(back).select(row + one, row);
        let column = back.splat_int(n - 1) - (back - pairs_before(row));
        (back.splat_int(n - 2) - row) * back.splat_int(n) + column
    })?;
    Ok(take(c.b, all, 0, place)?.into())
}

/// How many pairs the first rows have together, if these have 1, 2, 3... pairs.
fn pairs_before(rows: Expr<'_>) -> Expr<'_> {
    rows * (rows + rows.splat_int(1)) / rows.splat_int(2)
}

/// aten::_pdist_backward(grad, self, p, distances)
fn pdist_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, distance) = (c.tensor(0)?, c.tensor(1)?, c.tensor(3)?);
    let p = c.float(2)?;
    let out = c.out(0)?.clone();
    let n = x.sizes[0];
    let value = operand(c, &x)?;
    if grad.numel() == 0 || out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let dtype = index_dtype(n * n);
    let square = [n, n];
    let (row, column) = (iota(c.b, dtype, &square, 0)?, iota(c.b, dtype, &square, 1)?);
    let position = formula(c.b, [row, column], |[i, j]| {
        let (low, high) = (i.min(j), i.max(j));
        low * (low.splat_int(2 * n - 1) - low) / low.splat_int(2) + high - low - low.splat_int(1)
    })?;
    let (grad, distance) = (c.value(&grad, out.dtype)?, c.value(&distance, out.dtype)?);
    // On the diagonal the difference is 0, and with it the gradient, whatever the gather reads there.
    let grad = take(c.b, grad, 0, position)?;
    let distance = take(c.b, distance, 0, position)?;
    let zero = convert::splat(c.b, grad, Number::Int(0))?;
    let diagonal = c.b.compare(row, column, stablehlo::Direction::Eq)?;
    let grad = c.b.select(diagonal, zero, grad)?;
    let distance = c.b.select(diagonal, zero, distance)?;
    Ok(by_rows(c.b, value, value, grad, distance, p)?.into())
}
