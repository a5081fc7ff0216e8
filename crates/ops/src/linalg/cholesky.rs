//! Cholesky factors A = L L^H, and solutions and inverses from them.

use stablehlo::{Builder, Value};

use super::triangular::{self, Coefficients, pad_with_ones};
use super::{
    Failure, INDEX, SINGULAR, Triangle, adjoint, as_output, block, broadcast_batch, check_info, column, crop,
    expand, extents, eye, lu, matmul, matrices, part, position, positions, put_part, repeat, triangle, zeros,
};
use crate::call::{Call, Outputs};
use crate::convert;
use crate::error::{CheckKind, LoweringError};
use crate::formula::formula;
use crate::graph::Dims;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::linalg_cholesky_ex", linalg_cholesky_ex),
    OpDef::new("aten::cholesky_inverse", cholesky_inverse),
    OpDef::new("aten::_cholesky_solve_helper", cholesky_solve_helper),
];

const INDEFINITE: Failure = Failure {
    kind: CheckKind::LinAlg,
    message: "The factorization could not be completed because the input is not positive-definite (the leading minor \
              of order {number} is not positive-definite).",
};

/// L, and LAPACK's info `[batch, 1, 1]`: the order of the first leading minor that is not positive, 0 if all are.
/// Only the lower triangle of `a` is read.
fn factor(b: &mut Builder, a: Value) -> Result<(Value, Value)> {
    let [batch, n, _] = extents(b, a);
    let size = block(n);
    let blocks = (n + size - 1) / size;
    let padded = blocks * size;
    let a = pad_with_ones(b, a, padded)?;
    let info = zeros(b, INDEX, &[batch, 1, 1])?;
    let results = repeat(b, blocks, &[a, info], |b, step, state| {
        let &[a, info] = state else { return Ok(state.to_vec()) };
        let (zero, size_value) = (position(b, 0)?, position(b, size)?);
        let first = b.multiply(step, size_value)?;
        let panel = part(b, a, zero, first, padded, size)?;
        let (panel, info) = factor_panel(b, panel, info, first)?;
        let a = put_part(b, a, panel, zero, first)?;
        let transposed = adjoint(b, panel)?;
        let product = matmul(b, panel, transposed)?;
        let next = b.add(first, size_value)?;
        let dims = Dims::from_slice(b.dims(a));
        let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
        let [next] = expand(b, [next], &dims)?;
        let a = formula(b, [a, product, rows, columns, next], |[a, product, rows, columns, next]| {
            (rows.ge(next) & columns.ge(next)).select(a - product, a)
        })?;
        Ok(vec![a, info])
    })?;
    let l = crop(b, results[0], n, n)?;
    Ok((triangle(b, l, Triangle::Lower)?, results[1]))
}

/// Factors the columns of `a`, whose diagonal begins in row `first`. A matrix that has failed stays as it is.
fn factor_panel(b: &mut Builder, a: Value, info: Value, first: Value) -> Result<(Value, Value)> {
    let dims = extents(b, a);
    let [batch, m, size] = dims;
    let results = repeat(b, size, &[a, info], |b, step, state| {
        let &[a, info] = state else { return Ok(state.to_vec()) };
        let zero = position(b, 0)?;
        let at = b.add(first, step)?;
        let pivot = part(b, a, at, step, 1, 1)?;
        let pivot = b.real(pivot)?;
        let [at_each] = expand(b, [at], &[batch, 1, 1])?;
        let info = formula(b, [info, pivot, at_each], |[info, pivot, at]| {
            let none = info.splat_int(0);
            let failed = info.eq(none) & !pivot.gt(pivot.splat(0.0));
            failed.select(at + at.splat_int(1), info)
        })?;
        let dtype = convert::dtype_of(b, a)?;
        let root = b.sqrt(pivot)?;
        let root = convert::convert(b, root, dtype)?;
        let rows = positions(b, &[batch, m, 1], 1)?;
        let present = column(b, a, step)?;
        let [root, at_rows] = expand(b, [root, at], &[batch, m, 1])?;
        let factor = formula(b, [present, root, rows, at_rows], |[present, root, rows, at]| {
            rows.eq(at).select(root, present / root)
        })?;
        // The entries of the factor beside the panel's own rows.
        let across = part(b, factor, first, zero, size, 1)?;
        let across = adjoint(b, across)?;
        let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
        let [factor, across, at, step, failed] = expand(b, [factor, across, at, step, info], &dims)?;
        let next = formula(
            b,
            [a, factor, across, rows, columns, at, step, failed],
            |[a, factor, across, rows, columns, at, step, failed]| {
                let updated = columns.gt(step).select(a - factor * across, a);
                let updated = columns.eq(step).select(factor, updated);
                (rows.ge(at) & failed.eq(failed.splat_int(0))).select(updated, a)
            },
        )?;
        Ok(vec![next, info])
    })?;
    Ok((results[0], results[1]))
}

/// linalg_cholesky_ex(A, *, upper, check_errors) -> L, info
fn linalg_cholesky_ex(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    let upper = c.opt_bool(1)?.unwrap_or(false);
    let (out, info_out) = (c.out(0)?.clone(), c.out(1)?.clone());
    if a.numel() == 0 {
        let info = zeros(c.b, info_out.dtype, &info_out.sizes)?;
        return Ok([zeros(c.b, out.dtype, &out.sizes)?, info].into());
    }
    let mut matrix = matrices(c, &a)?;
    if upper {
        matrix = adjoint(c.b, matrix)?;
    }
    let (mut l, info) = factor(c.b, matrix)?;
    if c.opt_bool(2)?.unwrap_or(false) {
        check_info(c, info, &a, "linalg.cholesky_ex", INDEFINITE)?;
    }
    if upper {
        l = adjoint(c.b, l)?;
    }
    Ok([as_output(c, 0, l)?, as_output(c, 1, info)?].into())
}

/// `x` with A x = rhs, A by its factor: L L^H, or U^H U if `upper`.
fn solve(b: &mut Builder, factor: Value, rhs: Value, upper: bool) -> Result<Value> {
    let other = adjoint(b, factor)?;
    let (l, u) = if upper { (other, factor) } else { (factor, other) };
    let y = triangular::solve(b, l, rhs, Coefficients { triangle: Triangle::Lower, unit: false })?;
    triangular::solve(b, u, y, Coefficients { triangle: Triangle::Upper, unit: false })
}

/// _cholesky_solve_helper(B, factor, upper)
fn cholesky_solve_helper(c: &mut Call<'_>) -> Result<Outputs> {
    let (rhs, factor) = (c.tensor(0)?, c.tensor(1)?);
    let upper = c.bool(2)?;
    let out = c.out(0)?.clone();
    if out.sizes.contains(&0) {
        return Ok(zeros(c.b, out.dtype, &out.sizes)?.into());
    }
    let batch = &out.sizes[..out.sizes.len() - 2];
    let (factor, rhs) = (broadcast_batch(c, &factor, batch)?, broadcast_batch(c, &rhs, batch)?);
    let x = solve(c.b, factor, rhs, upper)?;
    Ok(as_output(c, 0, x)?.into())
}

/// cholesky_inverse(factor, upper)
fn cholesky_inverse(c: &mut Call<'_>) -> Result<Outputs> {
    let factor = c.tensor(0)?;
    let upper = c.opt_bool(1)?.unwrap_or(false);
    let out = c.out(0)?.clone();
    if factor.numel() == 0 {
        return Ok(zeros(c.b, out.dtype, &out.sizes)?.into());
    }
    let matrix = matrices(c, &factor)?;
    let info = lu::info(c.b, matrix)?;
    check_info(c, info, &factor, "cholesky_inverse", SINGULAR)?;
    let dims = extents(c.b, matrix);
    let identity = eye(c.b, factor.dtype, &dims)?;
    let l = if upper { adjoint(c.b, matrix)? } else { matrix };
    let root = triangular::solve(c.b, l, identity, Coefficients { triangle: Triangle::Lower, unit: false })?;
    let root_adjoint = adjoint(c.b, root)?;
    let x = matmul(c.b, root_adjoint, root)?;
    // One triangle decides both, so that the result is exactly Hermitian.
    let mirrored = adjoint(c.b, x)?;
    let (rows, columns) = (positions(c.b, &dims, 1)?, positions(c.b, &dims, 2)?);
    let x = formula(c.b, [x, mirrored, rows, columns], |[x, mirrored, rows, columns]| {
        rows.ge(columns).select(x, mirrored)
    })?;
    Ok(as_output(c, 0, x)?.into())
}
