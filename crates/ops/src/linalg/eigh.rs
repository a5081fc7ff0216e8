//! Eigenvalues and eigenvectors of Hermitian matrices: the singular vectors of the matrix plus a multiple of the identity
//! that makes it positive definite.

use stablehlo::{Builder, Value};

use super::jacobi::{orthogonalise, squared_lengths};
use super::spectral::{Scaled, check_converged, scale_columns, scaled, sorted, take_columns, unscaled};
use super::{
    Triangle, adjoint, as_output, conjugate, expand, extents, eye, matmul, matrices, positions, zeros,
};
use crate::call::{Call, Outputs};
use crate::convert;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_linalg_eigh", linalg_eigh),
    OpDef::new("aten::linalg_matrix_sqrth", linalg_matrix_sqrth),
];

const NO_CONVERGENCE: &str = "linalg.eigh: The algorithm failed to converge because the input matrix is \
                              ill-conditioned or has too many repeated eigenvalues (error code: 1).";

/// _linalg_eigh(A, UPLO, compute_v) -> eigenvalues, ascending, and eigenvectors
fn linalg_eigh(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    let which = match c.opt_str(1)?.unwrap_or("L") {
        "U" | "u" => Triangle::Upper,
        _ => Triangle::Lower,
    };
    let (values_meta, vectors_meta) = (c.out(0)?.clone(), c.out(1)?.clone());
    let no_vectors = zeros(c.b, vectors_meta.dtype, &vectors_meta.sizes)?;
    if a.numel() == 0 {
        return Ok([zeros(c.b, values_meta.dtype, &values_meta.sizes)?, no_vectors].into());
    }
    let a = matrices(c, &a)?;
    let a = hermitian(c.b, a, which)?;
    let Scaled { matrix, scale } = scaled(c.b, a)?;
    let Eigen { values, vectors, converged } = eigen(c.b, matrix)?;
    check_converged(c, converged, NO_CONVERGENCE)?;
    let (values, order) = sorted(c.b, values, false)?;
    let values = unscaled(c.b, values, scale)?;
    let values = c.b.reshape(values, &values_meta.sizes)?;
    let vectors = if c.opt_bool(2)?.unwrap_or(true) {
        let vectors = take_columns(c.b, vectors, order)?;
        as_output(c, 1, vectors)?
    } else {
        no_vectors
    };
    Ok([values, vectors].into())
}

/// linalg_matrix_sqrth(A): the square root of the Hermitian matrix that has A's lower triangle; negative eigenvalues, which
/// rounding makes of zeros, count as zero.
fn linalg_matrix_sqrth(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    if a.numel() == 0 {
        let out = c.out(0)?.clone();
        return Ok(zeros(c.b, out.dtype, &out.sizes)?.into());
    }
    let a = matrices(c, &a)?;
    let a = hermitian(c.b, a, Triangle::Lower)?;
    let Scaled { matrix, scale } = scaled(c.b, a)?;
    // A matrix that is not finite has the root NaN.
    let Eigen { values, vectors, .. } = eigen(c.b, matrix)?;
    let values = unscaled(c.b, values, scale)?;
    let roots = formula(c.b, [values], |[value]| value.max(value.splat(0.0)).sqrt())?;
    let scaled = scale_columns(c.b, vectors, roots)?;
    let rows = adjoint(c.b, vectors)?;
    let root = matmul(c.b, scaled, rows)?;
    Ok(as_output(c, 0, root)?.into())
}

/// The Hermitian matrix that has this triangle; the other one is not read, nor the imaginary part of the diagonal.
fn hermitian(b: &mut Builder, a: Value, which: Triangle) -> Result<Value> {
    let dims = extents(b, a);
    let dtype = convert::dtype_of(b, a)?;
    let other = adjoint(b, a)?;
    let real = b.real(a)?;
    let real = convert::convert(b, real, dtype)?;
    let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
    formula(b, [a, other, real, rows, columns], |[a, other, real, rows, columns]| {
        let inside = if which == Triangle::Lower { columns.lt(rows) } else { rows.lt(columns) };
        rows.eq(columns).select(real, inside.select(a, other))
    })
}

/// Unsorted.
pub struct Eigen {
    /// `[batch, n]`
    pub values: Value,
    pub vectors: Value,
    /// 0-d bool.
    pub converged: Value,
}

/// Of Hermitian matrices whose largest elements are near 1.
pub fn eigen(b: &mut Builder, a: Value) -> Result<Eigen> {
    let dims = extents(b, a);
    let [batch, n, _] = dims;
    let dtype = convert::dtype_of(b, a)?;
    let shift = shift(b, a)?;
    let shift = convert::convert(b, shift, dtype)?;
    let shift = b.reshape(shift, &[batch, 1, 1])?;
    let [shift] = expand(b, [shift], &dims)?;
    let identity = eye(b, dtype, &dims)?;
    let definite = formula(b, [a, shift, identity], |[a, shift, identity]| a + shift * identity)?;
    let rotated = orthogonalise(b, definite, n)?;
    // The columns are the eigenvectors, as long as their eigenvalues plus the shift are large.
    let lengths = squared_lengths(b, rotated.matrix)?;
    let lengths = b.sqrt(lengths)?;
    let lengths = convert::convert(b, lengths, dtype)?;
    let lengths = b.reshape(lengths, &[batch, 1, n])?;
    let [lengths] = expand(b, [lengths], &dims)?;
    let vectors = b.divide(rotated.matrix, lengths)?;
    // Rayleigh quotients do not know of the shift.
    let images = matmul(b, a, vectors)?;
    let conjugates = conjugate(b, vectors)?;
    let products = b.multiply(conjugates, images)?;
    let products = b.real(products)?;
    let values = b.reduce_add(products, &[1])?;
    Ok(Eigen { values, vectors, converged: rotated.converged })
}

/// Half as large again as a bound of every eigenvalue, `[batch]`: the condition number is then at most 5. The bound is
/// the Frobenius norm of the fourth power, which is closer to the largest eigenvalue than that of the matrix.
fn shift(b: &mut Builder, a: Value) -> Result<Value> {
    let square = matmul(b, a, a)?;
    let fourth = matmul(b, square, square)?;
    let squares = squared_lengths(b, fourth)?;
    let sum = b.reduce_add(squares, &[1])?;
    formula(b, [sum], |[sum]| {
        let bound = sum.sqrt().sqrt().sqrt();
        bound.eq(bound.splat(0.0)).select(bound.splat(1.0), bound * 1.5)
    })
}
