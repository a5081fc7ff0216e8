//! Operators that rest on LU factors: systems of equations, inverses, determinants.

use stablehlo::{Builder, Direction, Value};

use super::lu::{self, Factors};
use super::{
    Failure, INDEX, SINGULAR, Triangle, adjoint, as_output, broadcast_batch, check_info, crop, diagonal,
    expand, extents, eye, matrices, merge_batch, positions, transposed, triangle, zeros,
};
use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::{formula, formulas};
use crate::graph::{Dims, Number};
use crate::indices::any;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::linalg_lu_factor_ex", linalg_lu_factor_ex),
    OpDef::new("aten::linalg_lu", linalg_lu),
    OpDef::new("aten::lu_unpack", lu_unpack),
    OpDef::new("aten::linalg_lu_solve", linalg_lu_solve),
    OpDef::new("aten::_linalg_solve_ex", linalg_solve_ex),
    OpDef::new("aten::linalg_inv_ex", linalg_inv_ex),
    OpDef::new("aten::_linalg_det", linalg_det),
    OpDef::new("aten::_linalg_slogdet", linalg_slogdet),
];

const ZERO_DIVISOR: Failure = Failure {
    kind: CheckKind::Runtime,
    message: "U[{number},{number}] is zero and using it on lu_solve would result in a division by zero. If you still \
              want to perform the factorization, consider calling linalg.lu(A, pivot) or linalg.lu_factor_ex(A, pivot)",
};

const UNSOLVABLE: Failure =
    Failure { kind: CheckKind::LinAlg, message: "The solver failed because the input matrix is singular." };

const NOT_IN_FACTORS: &str = "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive.\
                              Did you properly pass the result of lu_factor?";

const NOT_TO_SOLVE: [&str; 2] = [
    "Pivots given to lu_solve must all be greater or equal to 1. Did you properly pass the result of lu_factor?",
    "Pivots given to lu_solve must all be smaller or equal to LU.size(-2). Did you properly pass the result of lu_factor?",
];

/// Every output filled with `numbers`, for matrices without elements.
fn filled<const N: usize>(c: &mut Call<'_>, numbers: [i64; N]) -> Result<Outputs> {
    let mut outputs = Vec::with_capacity(N);
    for (k, number) in numbers.into_iter().enumerate() {
        let out = c.out(k)?.clone();
        outputs.push(c.full(Number::Int(number), out.dtype, &out.sizes)?);
    }
    Ok(outputs.into())
}

/// linalg_lu_factor_ex(A, *, pivot, check_errors) -> LU, pivots, info
fn linalg_lu_factor_ex(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    if a.numel() == 0 {
        return filled(c, [0; 3]);
    }
    let matrix = matrices(c, &a)?;
    let pivot = c.opt_bool(1)?.unwrap_or(true);
    let factors = lu::factor(c.b, matrix, pivot)?;
    let info = lu::info(c.b, factors.lu)?;
    if c.opt_bool(2)?.unwrap_or(false) {
        check_info(c, info, &a, "torch.linalg.lu_factor_ex", ZERO_DIVISOR)?;
    }
    Ok([as_output(c, 0, factors.lu)?, as_output(c, 1, factors.pivots)?, as_output(c, 2, info)?].into())
}

/// P with A = P L U, `[batch, rows, rows]`.
fn permutation_matrix(b: &mut Builder, permutation: Value, dtype: DType) -> Result<Value> {
    let [batch, rows, _] = extents(b, permutation);
    let dims = [batch, rows, rows];
    let along = transposed(b, permutation)?;
    let [along] = expand(b, [along], &dims)?;
    let at = positions(b, &dims, 1)?;
    let equal = b.compare(at, along, Direction::Eq)?;
    convert::convert(b, equal, dtype)
}

/// L and U of their common matrix.
fn unpack(b: &mut Builder, lu: Value) -> Result<(Value, Value)> {
    let [_, m, n] = extents(b, lu);
    let k = m.min(n);
    let (l, u) = (crop(b, lu, m, k)?, crop(b, lu, k, n)?);
    let dims = extents(b, l);
    let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
    let l = formula(b, [l, rows, columns], |[l, rows, columns]| {
        rows.eq(columns).select(l.splat(1.0), rows.gt(columns).select(l, l.splat(0.0)))
    })?;
    Ok((l, triangle(b, u, Triangle::Upper)?))
}

/// linalg_lu(A, *, pivot) -> P, L, U
fn linalg_lu(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    let pivot = c.opt_bool(1)?.unwrap_or(true);
    let matrix = matrices(c, &a)?;
    let [batch, m, _] = extents(c.b, matrix);
    let factors = if a.numel() == 0 {
        Factors {
            lu: matrix,
            pivots: zeros(c.b, INDEX, &[batch, 0, 1])?,
            permutation: positions(c.b, &[batch, m, 1], 1)?,
        }
    } else {
        lu::factor(c.b, matrix, pivot)?
    };
    let (l, u) = unpack(c.b, factors.lu)?;
    let p = if pivot {
        let p = permutation_matrix(c.b, factors.permutation, a.dtype)?;
        as_output(c, 0, p)?
    } else {
        empty(c, 0)?
    };
    Ok([p, as_output(c, 1, l)?, as_output(c, 2, u)?].into())
}

/// An output that PyTorch leaves without elements.
fn empty(c: &mut Call<'_>, k: usize) -> Result<Value> {
    let out = c.out(k)?.clone();
    zeros(c.b, out.dtype, &out.sizes)
}

/// Pivots of a call, `[batch, k, 1]`.
fn pivots(c: &mut Call<'_>, tensor: &Tensor) -> Result<Value> {
    let value = c.value(tensor, INDEX)?;
    let mut dims = tensor.sizes.clone();
    dims.push(1);
    let value = c.b.reshape(value, &dims)?;
    merge_batch(c.b, value)
}

/// Pivots are rows, counted from 1: the program reports those below, and those beyond `most`.
fn check_pivots(c: &mut Call<'_>, pivots: Value, most: i64, messages: [&str; 2]) -> Result<()> {
    let [below, beyond] =
        formulas(c.b, [pivots], |[pivot]| [pivot.lt(pivot.splat_int(1)), pivot.gt(pivot.splat_int(most))])?;
    for (wrong, message) in [below, beyond].into_iter().zip(messages) {
        let wrong = any(c.b, wrong)?;
        c.check(wrong, CheckKind::Runtime, message);
    }
    Ok(())
}

/// lu_unpack(LU, pivots, unpack_data, unpack_pivots) -> P, L, U
fn lu_unpack(c: &mut Call<'_>) -> Result<Outputs> {
    let (a, pivot) = (c.tensor(0)?, c.tensor(1)?);
    let (data, pivoted) = (c.opt_bool(2)?.unwrap_or(true), c.opt_bool(3)?.unwrap_or(true));
    let p = if pivoted {
        let out = c.out(0)?.clone();
        let rows = a.sizes[a.rank() - 2];
        let pivots = pivots(c, &pivot)?;
        check_pivots(c, pivots, rows, [NOT_IN_FACTORS; 2])?;
        let permutation = lu::permutation(c.b, pivots, rows)?;
        let p = permutation_matrix(c.b, permutation, out.dtype)?;
        as_output(c, 0, p)?
    } else {
        empty(c, 0)?
    };
    if !data {
        return Ok([p, empty(c, 1)?, empty(c, 2)?].into());
    }
    let matrix = matrices(c, &a)?;
    let (l, u) = unpack(c.b, matrix)?;
    Ok([p, as_output(c, 1, l)?, as_output(c, 2, u)?].into())
}

/// linalg_lu_solve(LU, pivots, B, *, left, adjoint)
fn linalg_lu_solve(c: &mut Call<'_>) -> Result<Outputs> {
    let (factors, pivot, rhs) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (left, conjugated) = (c.opt_bool(3)?.unwrap_or(true), c.opt_bool(4)?.unwrap_or(false));
    let out = c.out(0)?.clone();
    if out.sizes.contains(&0) {
        return filled(c, [0]);
    }
    let batch = &out.sizes[..out.sizes.len() - 2];
    let lu = broadcast_batch(c, &factors, batch)?;
    let rhs = broadcast_batch(c, &rhs, batch)?;
    let n = extents(c.b, lu)[1];
    let mut sizes = Dims::from_slice(batch);
    sizes.push(n);
    let pivot = c.broadcast(&pivot, INDEX, &sizes)?;
    sizes.push(1);
    let pivot = c.b.reshape(pivot, &sizes)?;
    let pivot = merge_batch(c.b, pivot)?;
    check_pivots(c, pivot, n, NOT_TO_SOLVE)?;
    let permutation = lu::permutation(c.b, pivot, n)?;
    let x = solve_factored(c.b, lu, permutation, rhs, left, conjugated)?;
    Ok(as_output(c, 0, x)?.into())
}

/// `op(a) x = rhs` or, where not `left`, `x op(a) = rhs`.
fn solve_factored(
    b: &mut Builder,
    lu: Value,
    permutation: Value,
    rhs: Value,
    left: bool,
    conjugated: bool,
) -> Result<Value> {
    if left {
        return lu::solve(b, lu, permutation, rhs, conjugated);
    }
    let rhs = adjoint(b, rhs)?;
    let x = lu::solve(b, lu, permutation, rhs, !conjugated)?;
    adjoint(b, x)
}

/// What PyTorch factors for the determinant of argument 0: the transpose of a contiguous matrix. Its gradient formulas
/// count on it.
fn determined(c: &mut Call<'_>, a: &Tensor) -> Result<Value> {
    let matrix = matrices(c, a)?;
    let flipped = !a.dtype.is_complex() && c.is_contiguous(0);
    if flipped { transposed(c.b, matrix) } else { Ok(matrix) }
}

/// _linalg_solve_ex(A, B, *, left, check_errors) -> result, LU, pivots, info
fn linalg_solve_ex(c: &mut Call<'_>) -> Result<Outputs> {
    let (a, mut rhs) = (c.tensor(0)?, c.tensor(1)?);
    let left = c.opt_bool(2)?.unwrap_or(true);
    let out = c.out(0)?.clone();
    if a.numel() == 0 {
        return filled(c, [0; 4]);
    }
    let matrix = matrices(c, &a)?;
    let factors = lu::factor(c.b, matrix, true)?;
    let info = lu::info(c.b, factors.lu)?;
    if c.opt_bool(3)?.unwrap_or(false) {
        check_info(c, info, &a, "torch.linalg.solve_ex", UNSOLVABLE)?;
    }
    let x = if out.sizes.contains(&0) {
        empty(c, 0)?
    } else {
        let is_vector =
            rhs.rank() == 1 || rhs.rank() + 1 == a.rank() && rhs.sizes[..] == a.sizes[..a.rank() - 1];
        let mut sizes = out.sizes.clone();
        if is_vector {
            sizes.push(1);
        }
        let batch = &sizes[..sizes.len() - 2];
        let rhs = if is_vector {
            rhs.sizes.push(1);
            let value = c.value(&c.tensor(1)?, rhs.dtype)?;
            let value = c.b.reshape(value, &rhs.sizes)?;
            let value = convert::broadcast_to(c.b, value, &sizes)?;
            merge_batch(c.b, value)?
        } else {
            broadcast_batch(c, &rhs, batch)?
        };
        let lu = expand_batch(c.b, factors.lu, &a, batch)?;
        let permutation = expand_batch(c.b, factors.permutation, &a, batch)?;
        let x = solve_factored(c.b, lu, permutation, rhs, left, false)?;
        as_output(c, 0, x)?
    };
    Ok([x, as_output(c, 1, factors.lu)?, as_output(c, 2, factors.pivots)?, as_output(c, 3, info)?].into())
}

/// Expands matrices that belong to the batch of `a` to `batch`.
fn expand_batch(b: &mut Builder, x: Value, a: &Tensor, batch: &[i64]) -> Result<Value> {
    let [_, rows, columns] = extents(b, x);
    let mut own = Dims::from_slice(&a.sizes[..a.rank() - 2]);
    own.extend([rows, columns]);
    let mut wanted = Dims::from_slice(batch);
    wanted.extend([rows, columns]);
    let x = b.reshape(x, &own)?;
    let x = convert::broadcast_to(b, x, &wanted)?;
    merge_batch(b, x)
}

/// linalg_inv_ex(A, *, check_errors) -> inverse, info
fn linalg_inv_ex(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    if a.numel() == 0 {
        return filled(c, [0; 2]);
    }
    let matrix = matrices(c, &a)?;
    let factors = lu::factor(c.b, matrix, true)?;
    let info = lu::info(c.b, factors.lu)?;
    if c.opt_bool(1)?.unwrap_or(false) {
        check_info(c, info, &a, "linalg.inv_ex", SINGULAR)?;
    }
    let dims = extents(c.b, matrix);
    let identity = eye(c.b, a.dtype, &dims)?;
    let x = lu::solve(c.b, factors.lu, factors.permutation, identity, false)?;
    Ok([as_output(c, 0, x)?, as_output(c, 1, info)?].into())
}

/// _linalg_det(A) -> result, LU, pivots
fn linalg_det(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    if a.numel() == 0 {
        return filled(c, [1, 0, 0]);
    }
    let matrix = determined(c, &a)?;
    let factors = lu::factor(c.b, matrix, true)?;
    let diagonal = diagonal(c.b, factors.lu)?;
    let product = c.b.reduce_mul(diagonal, &[1])?;
    let sign = lu::parity(c.b, factors.pivots, a.dtype)?;
    let det = c.b.multiply(sign, product)?;
    Ok([as_output(c, 0, det)?, as_output(c, 1, factors.lu)?, as_output(c, 2, factors.pivots)?].into())
}

/// _linalg_slogdet(A) -> sign, logabsdet, LU, pivots
fn linalg_slogdet(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    if a.numel() == 0 {
        return filled(c, [1, 0, 0, 0]);
    }
    let matrix = determined(c, &a)?;
    let factors = lu::factor(c.b, matrix, true)?;
    let diagonal = diagonal(c.b, factors.lu)?;
    let signs = c.b.sign(diagonal)?;
    let product = c.b.reduce_mul(signs, &[1])?;
    let parity = lu::parity(c.b, factors.pivots, a.dtype)?;
    let sign = c.b.multiply(parity, product)?;
    let logarithms = formula(c.b, [diagonal], |[x]| x.abs().log())?;
    let sum = c.b.reduce_add(logarithms, &[1])?;
    Ok([
        as_output(c, 0, sign)?,
        as_output(c, 1, sum)?,
        as_output(c, 2, factors.lu)?,
        as_output(c, 3, factors.pivots)?,
    ]
    .into())
}
