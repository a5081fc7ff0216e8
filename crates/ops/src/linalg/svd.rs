//! Singular values and vectors: A = Q R, and one-sided Jacobi on the adjoint of R, which converges faster than on A.

use stablehlo::{Builder, Value};

use super::jacobi::{orthogonalise, squared_lengths};
use super::qr;
use super::spectral::{Scaled, check_converged, scale_columns, scaled, sorted, take_columns, unscaled};
use super::{
    Triangle, adjoint, as_output, crop, diagonal, extents, eye, matmul, matrices, pad_to, positions,
    triangle, zeros,
};
use crate::call::{Call, Outputs};
use crate::convert;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::TensorMeta;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] =
    &[OpDef::new("aten::_linalg_svd", linalg_svd), OpDef::new("aten::linalg_polar", linalg_polar)];

const NO_CONVERGENCE: &str = "linalg.svd: The algorithm failed to converge because the input matrix contained \
                              non-finite values.";

/// _linalg_svd(A, full_matrices, compute_uv, driver) -> U, S, Vh
fn linalg_svd(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    let (full, with_vectors) = (c.opt_bool(1)?.unwrap_or(false), c.opt_bool(2)?.unwrap_or(true));
    let [u_meta, s_meta, vh_meta] = [c.out(0)?.clone(), c.out(1)?.clone(), c.out(2)?.clone()];
    if a.numel() == 0 {
        let s = zeros(c.b, s_meta.dtype, &s_meta.sizes)?;
        return Ok([identity(c.b, &u_meta)?, s, identity(c.b, &vh_meta)?].into());
    }
    let a = matrices(c, &a)?;
    let [_, m, n] = extents(c.b, a);
    let tall = if m < n { adjoint(c.b, a)? } else { a };
    let Scaled { matrix, scale } = scaled(c.b, tall)?;
    let Singular { values, vectors, converged } = singular(c.b, matrix, with_vectors, full)?;
    check_converged(c, converged, NO_CONVERGENCE)?;
    let values = unscaled(c.b, values, scale)?;
    let values = c.b.reshape(values, &s_meta.sizes)?;
    let Some((left, right)) = vectors else {
        let u = zeros(c.b, u_meta.dtype, &u_meta.sizes)?;
        return Ok([u, values, zeros(c.b, vh_meta.dtype, &vh_meta.sizes)?].into());
    };
    let (u, v) = if m < n { (right, left) } else { (left, right) };
    let vh = adjoint(c.b, v)?;
    Ok([as_output(c, 0, u)?, values, as_output(c, 2, vh)?].into())
}

/// linalg_polar(A) -> U = W V^H with orthonormal columns, H = V S V^H, from A = W S V^H with m >= n
fn linalg_polar(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    if a.numel() == 0 {
        let (u, h) = (c.out(0)?.clone(), c.out(1)?.clone());
        return Ok([identity(c.b, &u)?, zeros(c.b, h.dtype, &h.sizes)?].into());
    }
    let a = matrices(c, &a)?;
    let Scaled { matrix, scale } = scaled(c.b, a)?;
    let Singular { values, vectors, converged } = singular(c.b, matrix, true, false)?;
    check_converged(c, converged, NO_CONVERGENCE)?;
    let Some((left, right)) = vectors else { return Err(LoweringError::unsupported("no vectors")) };
    let values = unscaled(c.b, values, scale)?;
    let rows = adjoint(c.b, right)?;
    let u = matmul(c.b, left, rows)?;
    let h = scale_columns(c.b, right, values)?;
    let h = matmul(c.b, h, rows)?;
    // Exactly Hermitian.
    let other = adjoint(c.b, h)?;
    let h = formula(c.b, [h, other], |[h, other]| (h + other) * 0.5)?;
    Ok([as_output(c, 0, u)?, as_output(c, 1, h)?].into())
}

/// The vectors of a matrix without elements: any basis.
fn identity(b: &mut Builder, meta: &TensorMeta) -> Result<Value> {
    let [batch @ .., rows, columns] = &meta.sizes[..] else {
        return zeros(b, meta.dtype, &meta.sizes);
    };
    let eye = eye(b, meta.dtype, &[batch.iter().product(), *rows, *columns])?;
    Ok(b.reshape(eye, &meta.sizes)?)
}

pub struct Singular {
    /// `[batch, n]`, descending.
    pub values: Value,
    /// Of the left and of the right, as columns.
    pub vectors: Option<(Value, Value)>,
    /// 0-d bool.
    pub converged: Value,
}

/// Of matrices with at least as many rows as columns whose largest elements are near 1.
pub fn singular(b: &mut Builder, a: Value, with_vectors: bool, full: bool) -> Result<Singular> {
    let [batch, m, n] = extents(b, a);
    let dtype = convert::dtype_of(b, a)?;
    let square = [batch, n, n];
    let factors = qr::factor(b, a)?;
    let r = crop(b, factors.packed, n, n)?;
    let r = triangle(b, r, Triangle::Upper)?;
    let lower = adjoint(b, r)?;
    // R^H W = V S, so that A = (Q W) S V^H. W is the product of the rotations: they are done to the identity below.
    let stacked = if with_vectors {
        let identity = eye(b, dtype, &square)?;
        b.concatenate(&[lower, identity], 1)?
    } else {
        lower
    };
    let rotated = orthogonalise(b, stacked, n)?;
    let images = crop(b, rotated.matrix, n, n)?;
    let lengths = squared_lengths(b, images)?;
    let lengths = b.sqrt(lengths)?;
    let (values, order) = sorted(b, lengths, true)?;
    if !with_vectors {
        return Ok(Singular { values, vectors: None, converged: rotated.converged });
    }
    let ordered = take_columns(b, rotated.matrix, order)?;
    let images = crop(b, ordered, n, n)?;
    let right = directions(b, images)?;
    let w = b.slice(ordered, &[0, n, 0], &[batch, 2 * n, n], &[1, 1, 1])?;
    let width = if full { m } else { n };
    let w = if width > n { complete(b, w, width)? } else { w };
    let w = pad_to(b, w, m, width)?;
    let left = qr::apply(b, factors, w, false)?;
    Ok(Singular { values, vectors: Some((left, right)), converged: rotated.converged })
}

/// A block-diagonal matrix: `w` and the identity.
fn complete(b: &mut Builder, w: Value, width: i64) -> Result<Value> {
    let [batch, n, _] = extents(b, w);
    let dims = [batch, width, width];
    let dtype = convert::dtype_of(b, w)?;
    let w = pad_to(b, w, width, width)?;
    let identity = eye(b, dtype, &dims)?;
    let rows = positions(b, &dims, 1)?;
    formula(b, [w, identity, rows], |[w, identity, rows]| rows.lt(rows.splat_int(n)).select(w, identity))
}

/// Unit vectors in the direction of orthogonal columns, and for columns of zeros any that complete the basis: Q of their
/// QR factors, whose R is diagonal.
fn directions(b: &mut Builder, x: Value) -> Result<Value> {
    let dims = extents(b, x);
    let dtype = convert::dtype_of(b, x)?;
    let factors = qr::factor(b, x)?;
    let r = diagonal(b, factors.packed)?;
    let r = b.real(r)?;
    let signs = formula(b, [r], |[r]| r.lt(r.splat(0.0)).select(r.splat(-1.0), r.splat(1.0)))?;
    let identity = eye(b, dtype, &dims)?;
    let signed = scale_columns(b, identity, signs)?;
    qr::apply(b, factors, signed, false)
}
