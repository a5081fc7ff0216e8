//! Triangular systems by substitution, which is as exact as LAPACK's: XLA's own expansion inverts diagonal blocks.

use stablehlo::{Builder, Value};

use super::{
    Triangle, as_output, block, broadcast_batch, column, crop, expand, extents, eye, matmul, pad_to, part,
    position, positions, put_part, repeat, row, transposed,
};
use crate::call::{Call, Outputs};
use crate::convert;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::Dims;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::linalg_solve_triangular", linalg_solve_triangular),
    OpDef::new("aten::triangular_solve", triangular_solve),
];

/// Which elements of the coefficients are read.
#[derive(Clone, Copy, Debug)]
pub struct Coefficients {
    pub triangle: Triangle,
    /// The diagonal counts as ones.
    pub unit: bool,
}

/// `x` with `a x = rhs`.
pub fn solve(b: &mut Builder, a: Value, rhs: Value, which: Coefficients) -> Result<Value> {
    let [_, n, columns] = extents(b, rhs);
    let size = block(n);
    if size == n {
        return substitute(b, a, rhs, which);
    }
    let blocks = (n + size - 1) / size;
    let padded = blocks * size;
    let (a, x) = (pad_with_ones(b, a, padded)?, pad_to(b, rhs, padded, columns)?);
    let results = repeat(b, blocks, &[x], |b, step, state| {
        let size_value = position(b, size)?;
        let offset = b.multiply(step, size_value)?;
        let first = match which.triangle {
            Triangle::Lower => offset,
            Triangle::Upper => {
                let last = position(b, padded - size)?;
                b.subtract(last, offset)?
            }
        };
        let zero = position(b, 0)?;
        let square = part(b, a, first, first, size, size)?;
        let known = part(b, state[0], first, zero, size, columns)?;
        let known = substitute(b, square, known, which)?;
        let below = part(b, a, zero, first, padded, size)?;
        let product = matmul(b, below, known)?;
        let dims = Dims::from_slice(b.dims(product));
        let rows = positions(b, &dims, 1)?;
        let [first_row] = expand(b, [first], &dims)?;
        let x = formula(b, [state[0], product, rows, first_row], |[x, product, rows, first]| {
            let unknown = match which.triangle {
                Triangle::Lower => rows.gt(first),
                Triangle::Upper => rows.lt(first),
            };
            unknown.select(x - product, x)
        })?;
        Ok(vec![put_part(b, x, known, first, zero)?])
    })?;
    crop(b, results[0], n, columns)
}

/// Row by row: each known one is subtracted from those that are not.
fn substitute(b: &mut Builder, a: Value, rhs: Value, which: Coefficients) -> Result<Value> {
    let dims = Dims::from_slice(b.dims(rhs));
    let n = dims[1];
    let results = repeat(b, n, &[rhs], |b, step, state| {
        let at = match which.triangle {
            Triangle::Lower => step,
            Triangle::Upper => {
                let last = position(b, n - 1)?;
                b.subtract(last, step)?
            }
        };
        let mut known = row(b, state[0], at)?;
        if !which.unit {
            let pivot = part(b, a, at, at, 1, 1)?;
            let row_dims = Dims::from_slice(b.dims(known));
            let [pivot] = expand(b, [pivot], &row_dims)?;
            known = b.divide(known, pivot)?;
        }
        let coefficients = column(b, a, at)?;
        let rows = positions(b, &dims, 1)?;
        let [known, coefficients, at] = expand(b, [known, coefficients, at], &dims)?;
        let x =
            formula(b, [state[0], known, coefficients, rows, at], |[x, known, coefficients, rows, at]| {
                let unknown = match which.triangle {
                    Triangle::Lower => rows.gt(at),
                    Triangle::Upper => rows.lt(at),
                };
                rows.eq(at).select(known, unknown.select(x - coefficients * known, x))
            })?;
        Ok(vec![x])
    })?;
    Ok(results[0])
}

/// Pads a square matrix with those of an identity.
pub fn pad_with_ones(b: &mut Builder, a: Value, n: i64) -> Result<Value> {
    let given = b.dims(a)[1];
    let a = pad_to(b, a, n, n)?;
    let dims = extents(b, a);
    let dtype = convert::dtype_of(b, a)?;
    let (rows, ones) = (positions(b, &dims, 1)?, eye(b, dtype, &dims)?);
    formula(b, [a, rows, ones], |[a, rows, ones]| rows.ge(rows.splat_int(given)).select(ones, a))
}

/// `x` with `x a = rhs`.
pub fn solve_right(b: &mut Builder, a: Value, rhs: Value, which: Coefficients) -> Result<Value> {
    let (a, rhs) = (transposed(b, a)?, transposed(b, rhs)?);
    let x = solve(b, a, rhs, Coefficients { triangle: which.triangle.other(), ..which })?;
    transposed(b, x)
}

/// linalg_solve_triangular(A, B, *, upper, left, unitriangular)
fn linalg_solve_triangular(c: &mut Call<'_>) -> Result<Outputs> {
    let (a, rhs) = (c.tensor(0)?, c.tensor(1)?);
    let which = Coefficients {
        triangle: if c.bool(2)? { Triangle::Upper } else { Triangle::Lower },
        unit: c.opt_bool(4)?.unwrap_or(false),
    };
    let left = c.opt_bool(3)?.unwrap_or(true);
    let out = c.out(0)?.clone();
    if out.sizes.contains(&0) {
        return Ok(super::zeros(c.b, out.dtype, &out.sizes)?.into());
    }
    let batch = &out.sizes[..out.sizes.len() - 2];
    let (a, rhs) = (broadcast_batch(c, &a, batch)?, broadcast_batch(c, &rhs, batch)?);
    let x = if left { solve(c.b, a, rhs, which)? } else { solve_right(c.b, a, rhs, which)? };
    Ok(as_output(c, 0, x)?.into())
}

/// triangular_solve(B, A, upper, transpose, unitriangular); the second result is A.
fn triangular_solve(c: &mut Call<'_>) -> Result<Outputs> {
    let (rhs, a) = (c.tensor(0)?, c.tensor(1)?);
    let triangle = if c.opt_bool(2)?.unwrap_or(true) { Triangle::Upper } else { Triangle::Lower };
    let transpose = c.opt_bool(3)?.unwrap_or(false);
    let which = Coefficients { triangle, unit: c.opt_bool(4)?.unwrap_or(false) };
    let (out, copy) = (c.out(0)?.clone(), c.out(1)?.clone());
    let coefficients = c.broadcast(&a, copy.dtype, &copy.sizes)?;
    if out.sizes.contains(&0) {
        return Ok([super::zeros(c.b, out.dtype, &out.sizes)?, coefficients].into());
    }
    let batch = &out.sizes[..out.sizes.len() - 2];
    let (a, rhs) = (broadcast_batch(c, &a, batch)?, broadcast_batch(c, &rhs, batch)?);
    let x = if transpose {
        let a = transposed(c.b, a)?;
        solve(c.b, a, rhs, Coefficients { triangle: triangle.other(), ..which })?
    } else {
        solve(c.b, a, rhs, which)?
    };
    Ok([as_output(c, 0, x)?, coefficients].into())
}
