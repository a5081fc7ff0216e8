//! QR by Householder reflections H = I - tau v v^H, several at a time in the compact form I - V T V^H.

use stablehlo::{Builder, Value};

use super::triangular::{self, Coefficients};
use super::{
    Triangle, adjoint, as_output, block, column, conjugate, count_loop, crop, expand, extents, eye, matmul,
    matrices, merge_batch, pad_to, part, position, positions, put_part, repeat, triangle, zeros,
};
use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::error::LoweringError;
use crate::formula::{formula, formulas};
use crate::graph::Dims;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::geqrf", geqrf),
    OpDef::new("aten::linalg_householder_product", linalg_householder_product),
    OpDef::new("aten::ormqr", ormqr),
    OpDef::new("aten::linalg_qr", linalg_qr),
];

/// What LAPACK's geqrf gives.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// R on and above the diagonal, the vectors below it without their leading ones.
    pub packed: Value,
    /// `[batch, min(rows, columns), 1]`
    pub tau: Value,
}

pub fn factor(b: &mut Builder, a: Value) -> Result<Factors> {
    let [batch, m, n] = extents(b, a);
    let k = m.min(n);
    let size = block(k);
    if size == k {
        let (first, steps) = (position(b, 0)?, position(b, k)?);
        return factor_panel(b, a, first, steps, k);
    }
    let blocks = (k + size - 1) / size;
    // Blocks never reach over the end, where slices would be moved.
    let (rows, columns) = (m.max(blocks * size), n.max(blocks * size));
    let a = pad_to(b, a, rows, columns)?;
    let dtype = convert::dtype_of(b, a)?;
    let tau = zeros(b, dtype, &[batch, blocks * size, 1])?;
    let results = repeat(b, blocks, &[a, tau], |b, step, state| {
        let &[a, tau] = state else { return Ok(state.to_vec()) };
        let (zero, size_value, end) = (position(b, 0)?, position(b, size)?, position(b, k)?);
        let first = b.multiply(step, size_value)?;
        let left = b.subtract(end, first)?;
        let steps = b.minimum(left, size_value)?;
        let panel = part(b, a, zero, first, rows, size)?;
        let panel = factor_panel(b, panel, first, steps, size)?;
        let tau = put_part(b, tau, panel.tau, first, zero)?;
        let a = put_part(b, a, panel.packed, zero, first)?;
        let vectors = vectors(b, panel.packed, first)?;
        let updated = reflect(b, vectors, panel.tau, a, true)?;
        let next = b.add(first, size_value)?;
        let dims = Dims::from_slice(b.dims(a));
        let columns = positions(b, &dims, 2)?;
        let [next] = expand(b, [next], &dims)?;
        let a = formula(b, [a, updated, columns, next], |[a, updated, columns, next]| {
            columns.ge(next).select(updated, a)
        })?;
        Ok(vec![a, tau])
    })?;
    Ok(Factors { packed: crop(b, results[0], m, n)?, tau: crop(b, results[1], k, 1)? })
}

/// Factors the columns of `a`, whose diagonal begins in row `first`, in `steps` steps of at most `limit`.
fn factor_panel(b: &mut Builder, a: Value, first: Value, steps: Value, limit: i64) -> Result<Factors> {
    let dims = extents(b, a);
    let dtype = convert::dtype_of(b, a)?;
    let tau = zeros(b, dtype, &[dims[0], limit, 1])?;
    let start = position(b, 0)?;
    let results = count_loop(b, start, steps, &[a, tau], |b, step, state| {
        let &[a, tau] = state else { return Ok(state.to_vec()) };
        let zero = position(b, 0)?;
        let at = b.add(first, step)?;
        let present = column(b, a, step)?;
        let Reflection { vector, beta, tau: scale } = reflection(b, present, at)?;
        let tau = put_part(b, tau, scale, step, zero)?;
        let across = adjoint(b, vector)?;
        let across = matmul(b, across, a)?;
        let scale = conjugate(b, scale)?;
        let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
        let [vector, across, scale, beta, at, step] =
            expand(b, [vector, across, scale, beta, at, step], &dims)?;
        let a = formula(
            b,
            [a, vector, across, scale, beta, rows, columns, at, step],
            |[a, vector, across, scale, beta, rows, columns, at, step]| {
                let below = rows.gt(at).select(vector, rows.eq(at).select(beta, a));
                let updated = columns.gt(step).select(a - scale * vector * across, a);
                columns.eq(step).select(below, updated)
            },
        )?;
        Ok(vec![a, tau])
    })?;
    Ok(Factors { packed: results[0], tau: results[1] })
}

/// H^H x = beta e, with v = `vector` (1 in its own row, zeros above).
struct Reflection {
    vector: Value,
    /// `[batch, 1, 1]`, as is tau.
    beta: Value,
    tau: Value,
}

/// LAPACK's larfg for the elements of a column from row `at` on.
fn reflection(b: &mut Builder, column: Value, at: Value) -> Result<Reflection> {
    let dims = extents(b, column);
    let [batch, ..] = dims;
    let one = [batch, 1, 1];
    let dtype = convert::dtype_of(b, column)?;
    let zero = position(b, 0)?;
    let alpha = part(b, column, at, zero, 1, 1)?;
    let rows = positions(b, &dims, 1)?;
    let [at] = expand(b, [at], &dims)?;
    let magnitude = b.abs(column)?;
    let tail = formula(b, [magnitude, rows, at], |[x, rows, at]| rows.gt(at).select(x, x.splat(0.0)))?;
    let largest = b.reduce_max(tail, &[1])?;
    let largest = b.reshape(largest, &one)?;
    let alpha_magnitude = b.abs(alpha)?;
    // Scaled, so that squares neither overflow nor vanish.
    let scale = formula(b, [largest, alpha_magnitude], |[largest, alpha]| {
        let scale = largest.max(alpha);
        scale.eq(scale.splat(0.0)).select(scale.splat(1.0), scale)
    })?;
    let [scale_each] = expand(b, [scale], &dims)?;
    let squares = formula(b, [tail, scale_each], |[x, scale]| {
        let x = x / scale;
        x * x
    })?;
    let sum = b.reduce_add(squares, &[1])?;
    let sum = b.reshape(sum, &one)?;
    let re = b.real(alpha)?;
    let im = if dtype.is_complex() { b.imag(alpha)? } else { zeros(b, dtype, &one)? };
    let [is_zero, beta, tau_re, tau_im] = formulas(
        b,
        [sum, scale, alpha_magnitude, largest, re, im],
        |[sum, scale, alpha, largest, re, im]| {
            let zero = re.splat(0.0);
            let is_zero = largest.eq(zero) & im.eq(zero);
            let ratio = alpha / scale;
            let norm = scale * (sum + ratio * ratio).sqrt();
            let beta = is_zero.select(re, re.lt(zero).select(norm, -norm));
            let tau = is_zero.select(zero, (beta - re) / beta);
            [is_zero, beta, tau, is_zero.select(zero, -im / beta)]
        },
    )?;
    let tau = if dtype.is_complex() { b.complex(tau_re, tau_im)? } else { tau_re };
    let beta = convert::convert(b, beta, dtype)?;
    let divisor = formula(b, [alpha, beta, is_zero], |[alpha, beta, is_zero]| {
        is_zero.select(alpha.splat(1.0), alpha - beta)
    })?;
    let [divisor] = expand(b, [divisor], &dims)?;
    let vector = formula(b, [column, divisor, rows, at], |[x, divisor, rows, at]| {
        rows.gt(at).select(x / divisor, rows.eq(at).select(x.splat(1.0), x.splat(0.0)))
    })?;
    Ok(Reflection { vector, beta, tau })
}

/// V of packed columns whose diagonal begins in row `first`: ones on it, zeros above.
fn vectors(b: &mut Builder, packed: Value, first: Value) -> Result<Value> {
    let dims = extents(b, packed);
    let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
    let [first] = expand(b, [first], &dims)?;
    formula(b, [packed, rows, columns, first], |[packed, rows, columns, first]| {
        let diagonal = columns + first;
        let below = rows.gt(diagonal).select(packed, packed.splat(0.0));
        rows.eq(diagonal).select(packed.splat(1.0), below)
    })
}

/// H1 H2 ... x, or the adjoint of that product times x.
fn reflect(b: &mut Builder, vectors: Value, tau: Value, x: Value, is_adjoint: bool) -> Result<Value> {
    let across = adjoint(b, vectors)?;
    let gram = matmul(b, across, vectors)?;
    let dims = extents(b, gram);
    // T is the inverse of diag(1 / tau) + the strict upper triangle of V^H V.
    let dtype = convert::dtype_of(b, x)?;
    let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
    let identity = eye(b, dtype, &dims)?;
    let [scale] = expand(b, [tau], &dims)?;
    let [coefficients, scale] =
        formulas(b, [gram, scale, identity, rows, columns], |[gram, scale, identity, rows, columns]| {
            [rows.lt(columns).select(scale * gram, gram.splat(0.0)), scale * identity]
        })?;
    let unit_upper = Coefficients { triangle: Triangle::Upper, unit: true };
    let mut t = triangular::solve(b, coefficients, scale, unit_upper)?;
    if is_adjoint {
        t = adjoint(b, t)?;
    }
    let projected = matmul(b, across, x)?;
    let weighted = matmul(b, t, projected)?;
    let change = matmul(b, vectors, weighted)?;
    Ok(b.subtract(x, change)?)
}

/// Q x, or Q^H x, where Q is the product of the reflections.
pub fn apply(b: &mut Builder, factors: Factors, x: Value, is_adjoint: bool) -> Result<Value> {
    let [_, m, columns] = extents(b, x);
    let k = extents(b, factors.tau)[1];
    let size = block(k);
    let blocks = (k + size - 1) / size;
    let rows = m.max(blocks * size);
    let packed = crop(b, factors.packed, m, k)?;
    let packed = pad_to(b, packed, rows, blocks * size)?;
    // Reflections with tau 0 change nothing.
    let tau = pad_to(b, factors.tau, blocks * size, 1)?;
    let x = pad_to(b, x, rows, columns)?;
    let results = repeat(b, blocks, &[x], |b, step, state| {
        let (zero, size_value) = (position(b, 0)?, position(b, size)?);
        let block = if is_adjoint {
            step
        } else {
            let last = position(b, blocks - 1)?;
            b.subtract(last, step)?
        };
        let first = b.multiply(block, size_value)?;
        let packed = part(b, packed, zero, first, rows, size)?;
        let tau = part(b, tau, first, zero, size, 1)?;
        let vectors = vectors(b, packed, first)?;
        Ok(vec![reflect(b, vectors, tau, state[0], is_adjoint)?])
    })?;
    crop(b, results[0], m, columns)
}

/// Tau of a call, `[batch, k, 1]`.
fn scales(c: &mut Call<'_>, tensor: &Tensor) -> Result<Value> {
    let value = c.value(tensor, tensor.dtype)?;
    let mut dims = tensor.sizes.clone();
    dims.push(1);
    let value = c.b.reshape(value, &dims)?;
    merge_batch(c.b, value)
}

fn empty(c: &mut Call<'_>, k: usize) -> Result<Value> {
    let out = c.out(k)?.clone();
    zeros(c.b, out.dtype, &out.sizes)
}

/// geqrf(A) -> packed, tau
fn geqrf(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    if a.numel() == 0 {
        return Ok([empty(c, 0)?, empty(c, 1)?].into());
    }
    let matrix = matrices(c, &a)?;
    let factors = factor(c.b, matrix)?;
    Ok([as_output(c, 0, factors.packed)?, as_output(c, 1, factors.tau)?].into())
}

/// linalg_householder_product(packed, tau): the first columns of Q
fn linalg_householder_product(c: &mut Call<'_>) -> Result<Outputs> {
    let (packed, tau) = (c.tensor(0)?, c.tensor(1)?);
    if packed.numel() == 0 {
        return Ok(empty(c, 0)?.into());
    }
    let factors = Factors { packed: matrices(c, &packed)?, tau: scales(c, &tau)? };
    let dims = extents(c.b, factors.packed);
    let identity = eye(c.b, packed.dtype, &dims)?;
    let q = if tau.numel() == 0 { identity } else { apply(c.b, factors, identity, false)? };
    Ok(as_output(c, 0, q)?.into())
}

/// ormqr(packed, tau, other, left, transpose): the product of Q or Q^H and another matrix
fn ormqr(c: &mut Call<'_>) -> Result<Outputs> {
    let (packed, tau, other) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (left, transpose) = (c.opt_bool(3)?.unwrap_or(true), c.opt_bool(4)?.unwrap_or(false));
    if other.numel() == 0 {
        return Ok(empty(c, 0)?.into());
    }
    let x = matrices(c, &other)?;
    if tau.numel() == 0 {
        return Ok(as_output(c, 0, x)?.into());
    }
    let factors = Factors { packed: matrices(c, &packed)?, tau: scales(c, &tau)? };
    let product = if left {
        apply(c.b, factors, x, transpose)?
    } else {
        let x = adjoint(c.b, x)?;
        let product = apply(c.b, factors, x, !transpose)?;
        adjoint(c.b, product)?
    };
    Ok(as_output(c, 0, product)?.into())
}

/// linalg_qr(A, mode) -> Q, R
fn linalg_qr(c: &mut Call<'_>) -> Result<Outputs> {
    let a = c.tensor(0)?;
    let mode = c.opt_str(1)?.unwrap_or("reduced").to_owned();
    let [.., m, n] = a.sizes[..] else {
        return Err(LoweringError::invalid("linalg.qr: The input tensor A must have at least 2 dimensions."));
    };
    let batch: i64 = a.sizes[..a.rank() - 2].iter().product();
    let (q_columns, r_rows) = if mode == "complete" { (m, m) } else { (m.min(n), m.min(n)) };
    if a.numel() == 0 {
        let q = if mode == "r" {
            empty(c, 0)?
        } else {
            let q = eye(c.b, a.dtype, &[batch, m, q_columns])?;
            as_output(c, 0, q)?
        };
        return Ok([q, empty(c, 1)?].into());
    }
    let matrix = matrices(c, &a)?;
    let factors = factor(c.b, matrix)?;
    let q = if mode == "r" {
        empty(c, 0)?
    } else {
        let identity = eye(c.b, a.dtype, &[batch, m, q_columns])?;
        let q = apply(c.b, factors, identity, false)?;
        as_output(c, 0, q)?
    };
    let r = crop(c.b, factors.packed, r_rows, n)?;
    let r = triangle(c.b, r, Triangle::Upper)?;
    Ok([q, as_output(c, 1, r)?].into())
}
