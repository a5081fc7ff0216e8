//! LU factors with partial pivoting: P A = L U.

use stablehlo::{Builder, Value};

use super::triangular::{self, Coefficients};
use super::{
    INDEX, Triangle, block, column, count_loop, crop, diagonal, expand, extents, matmul, pad_to, part,
    position, positions, put_part, repeat, row, take_rows,
};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::Dims;

type Result<T> = std::result::Result<T, LoweringError>;

/// What LAPACK's getrf gives.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// Unit lower L below the diagonal, U on and above it.
    pub lu: Value,
    /// `[batch, min(rows, columns), 1]`: the row, counted from 1, with which row i was swapped.
    pub pivots: Value,
    /// `[batch, rows, 1]`: row i of L U is this row of the matrix.
    pub permutation: Value,
}

pub fn factor(b: &mut Builder, a: Value, pivot: bool) -> Result<Factors> {
    let [batch, m, n] = extents(b, a);
    let k = m.min(n);
    let size = block(k);
    let zero = position(b, 0)?;
    if size == k {
        let steps = position(b, k)?;
        let panel = factor_panel(b, a, zero, steps, k, pivot)?;
        return Ok(panel);
    }
    let blocks = (k + size - 1) / size;
    // Blocks never reach over the end, where slices would be moved.
    let (rows, columns) = (m.max(blocks * size), n.max(blocks * size));
    let a = pad_to(b, a, rows, columns)?;
    let pivots = super::zeros(b, INDEX, &[batch, blocks * size, 1])?;
    let permutation = positions(b, &[batch, rows, 1], 1)?;
    let results = repeat(b, blocks, &[a, pivots, permutation], |b, step, state| {
        let &[a, pivots, permutation] = state else { return Ok(state.to_vec()) };
        let (zero, size_value, end) = (position(b, 0)?, position(b, size)?, position(b, k)?);
        let first = b.multiply(step, size_value)?;
        let left = b.subtract(end, first)?;
        let steps = b.minimum(left, size_value)?;
        let panel = part(b, a, zero, first, rows, size)?;
        let panel = factor_panel(b, panel, first, steps, size, pivot)?;
        let a = take_rows(b, a, panel.permutation)?;
        let permutation = take_rows(b, permutation, panel.permutation)?;
        let pivots = put_part(b, pivots, panel.pivots, first, zero)?;
        let a = put_part(b, a, panel.lu, zero, first)?;

        let square = part(b, panel.lu, first, zero, size, size)?;
        let right = part(b, a, first, zero, size, columns)?;
        let unit_lower = Coefficients { triangle: Triangle::Lower, unit: true };
        let solved = triangular::solve(b, square, right, unit_lower)?;
        let next = b.add(first, size_value)?;
        let dims = Dims::from_slice(b.dims(right));
        let [next_column] = expand(b, [next], &dims)?;
        let at = positions(b, &dims, 2)?;
        let right = formula(b, [right, solved, at, next_column], |[right, solved, at, next]| {
            at.ge(next).select(solved, right)
        })?;
        let a = put_part(b, a, right, first, zero)?;

        let product = matmul(b, panel.lu, right)?;
        let dims = Dims::from_slice(b.dims(a));
        let (row_at, column_at) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
        let [next] = expand(b, [next], &dims)?;
        let a = formula(b, [a, product, row_at, column_at, next], |[a, product, row, column, next]| {
            (row.ge(next) & column.ge(next)).select(a - product, a)
        })?;
        Ok(vec![a, pivots, permutation])
    })?;
    Ok(Factors {
        lu: crop(b, results[0], m, n)?,
        pivots: crop(b, results[1], k, 1)?,
        permutation: crop(b, results[2], m, 1)?,
    })
}

/// Factors the columns of `a`, whose diagonal begins in row `first`, in `steps` steps of at most `limit`.
fn factor_panel(
    b: &mut Builder,
    a: Value,
    first: Value,
    steps: Value,
    limit: i64,
    pivot: bool,
) -> Result<Factors> {
    let dims = extents(b, a);
    let [batch, m, _] = dims;
    let column_dims = [batch, m, 1];
    let permutation = positions(b, &column_dims, 1)?;
    let pivots = super::zeros(b, INDEX, &[batch, limit, 1])?;
    let start = position(b, 0)?;
    let results = count_loop(b, start, steps, &[a, pivots, permutation], |b, step, state| {
        let &[a, pivots, permutation] = state else { return Ok(state.to_vec()) };
        let (zero, one) = (position(b, 0)?, position(b, 1)?);
        let at = b.add(first, step)?;
        let candidates = column(b, a, step)?;
        let [at_each] = expand(b, [at], &[batch, 1, 1])?;
        let chosen = if pivot { largest_below(b, candidates, at)? } else { at_each };
        let [one] = expand(b, [one], &[batch, 1, 1])?;
        let counted_from_one = b.add(chosen, one)?;
        let pivots = put_part(b, pivots, counted_from_one, step, zero)?;

        let permutation = swap_rows(b, permutation, at, chosen)?.0;
        let (a, pivot_row) = swap_rows(b, a, at, chosen)?;

        let pivot = part(b, pivot_row, zero, step, 1, 1)?;
        let swapped = column(b, a, step)?;
        let [pivot] = expand(b, [pivot], &column_dims)?;
        let multipliers = formula(b, [swapped, pivot], |[swapped, pivot]| {
            pivot.eq(pivot.splat(0.0)).select(swapped, swapped / pivot)
        })?;
        let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
        let [multipliers, pivot_row, at, step] = expand(b, [multipliers, pivot_row, at, step], &dims)?;
        let a = formula(
            b,
            [a, multipliers, pivot_row, rows, columns, at, step],
            |[a, multipliers, pivot_row, rows, columns, at, step]| {
                let updated = columns.gt(step).select(a - multipliers * pivot_row, a);
                rows.gt(at).select(columns.eq(step).select(multipliers, updated), a)
            },
        )?;
        Ok(vec![a, pivots, permutation])
    })?;
    Ok(Factors { lu: results[0], pivots: results[1], permutation: results[2] })
}

/// `[batch, 1, 1]`: the first row from `at` on that has the largest magnitude, by LAPACK's measure of complex numbers.
fn largest_below(b: &mut Builder, column: Value, at: Value) -> Result<Value> {
    let dims = extents(b, column);
    let rows = positions(b, &dims, 1)?;
    let magnitude = if b.elem(column).is_complex() {
        let (re, im) = (b.real(column)?, b.imag(column)?);
        formula(b, [re, im], |[re, im]| re.abs() + im.abs())?
    } else {
        b.abs(column)?
    };
    let [at] = expand(b, [at], &dims)?;
    // A NaN counts as the largest, so that it spreads.
    let magnitude = formula(b, [magnitude, rows, at], |[x, rows, at]| {
        let x = x.is_nan().select(x.splat(f64::INFINITY), x);
        rows.lt(at).select(x.splat(-1.0), x)
    })?;
    let largest = b.reduce_max(magnitude, &[1])?;
    let largest = b.broadcast_in_dim(largest, &dims, &[0, 2])?;
    let found = formula(b, [magnitude, largest, rows], |[magnitude, largest, rows]| {
        magnitude.eq(largest).select(rows, rows.splat_int(dims[1] - 1))
    })?;
    let first = b.reduce_min(found, &[1])?;
    Ok(b.reshape(first, &[dims[0], 1, 1])?)
}

/// Rows `at` and `other` (`[batch, 1, 1]`) exchanged, and the one that comes to `at`.
fn swap_rows(b: &mut Builder, x: Value, at: Value, other: Value) -> Result<(Value, Value)> {
    let dims = extents(b, x);
    let (present, incoming) = (row(b, x, at)?, take_rows(b, x, other)?);
    let rows = positions(b, &dims, 1)?;
    let [down, up, at, other] = expand(b, [present, incoming, at, other], &dims)?;
    let swapped = formula(b, [x, down, up, rows, at, other], |[x, down, up, rows, at, other]| {
        rows.eq(at).select(up, rows.eq(other).select(down, x))
    })?;
    Ok((swapped, incoming))
}

/// The permutation that `pivots` (`[batch, k, 1]`) stand for: see [`Factors::permutation`].
pub fn permutation(b: &mut Builder, pivots: Value, rows: i64) -> Result<Value> {
    let [batch, k, _] = extents(b, pivots);
    let identity = positions(b, &[batch, rows, 1], 1)?;
    if batch * k == 0 {
        return Ok(identity);
    }
    let results = repeat(b, k, &[identity], |b, step, state| {
        let other = row(b, pivots, step)?;
        let other = formula(b, [other], |[other]| other - other.splat_int(1))?;
        Ok(vec![swap_rows(b, state[0], step, other)?.0])
    })?;
    Ok(results[0])
}

/// The permutation that takes every row back.
pub fn inverse_permutation(b: &mut Builder, permutation: Value) -> Result<Value> {
    let [batch, n, _] = extents(b, permutation);
    let dims = [batch, n, n];
    let (from, to) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
    let [permutation] = expand(b, [permutation], &dims)?;
    let selected = formula(b, [permutation, from, to], |[permutation, from, to]| {
        permutation.eq(to).select(from, from.splat_int(0))
    })?;
    let inverse = b.reduce_add(selected, &[1])?;
    Ok(b.reshape(inverse, &[batch, n, 1])?)
}

/// `x` with `a x = rhs`, or with `a^H x = rhs`.
pub fn solve(b: &mut Builder, lu: Value, permutation: Value, rhs: Value, adjoint: bool) -> Result<Value> {
    let unit_lower = Coefficients { triangle: Triangle::Lower, unit: true };
    let upper = Coefficients { triangle: Triangle::Upper, unit: false };
    if !adjoint {
        let rhs = take_rows(b, rhs, permutation)?;
        let y = triangular::solve(b, lu, rhs, unit_lower)?;
        return triangular::solve(b, lu, y, upper);
    }
    let lu = super::adjoint(b, lu)?;
    let y = triangular::solve(b, lu, rhs, Coefficients { triangle: Triangle::Lower, unit: false })?;
    let x = triangular::solve(b, lu, y, Coefficients { triangle: Triangle::Upper, unit: true })?;
    let back = inverse_permutation(b, permutation)?;
    take_rows(b, x, back)
}

/// LAPACK's info, `[batch]`: the first zero on the diagonal of U, counted from 1; 0 if there is none.
pub fn info(b: &mut Builder, lu: Value) -> Result<Value> {
    let diagonal = diagonal(b, lu)?;
    let dims = Dims::from_slice(b.dims(diagonal));
    let at = positions(b, &dims, 1)?;
    let beyond = dims[1] + 1;
    let found = formula(b, [diagonal, at], |[x, at]| {
        x.eq(x.splat(0.0)).select(at + at.splat_int(1), at.splat_int(beyond))
    })?;
    let first = b.reduce_min(found, &[1])?;
    formula(b, [first], |[first]| first.eq(first.splat_int(beyond)).select(first.splat_int(0), first))
}

/// The determinant of P: 1 or -1, `[batch]` in `dtype`.
pub fn parity(b: &mut Builder, pivots: Value, dtype: DType) -> Result<Value> {
    let dims = extents(b, pivots);
    let at = positions(b, &dims, 1)?;
    let signs = formula(b, [pivots, at], |[pivots, at]| {
        pivots.eq(at + at.splat_int(1)).select(at.splat_int(1), at.splat_int(-1))
    })?;
    let sign = b.reduce_mul(signs, &[1, 2])?;
    convert::convert(b, sign, dtype)
}
