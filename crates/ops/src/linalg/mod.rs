//! Linear algebra over batches of matrices. Inside this module a matrix is a value `[batch, rows, columns]`, whatever
//! batch dimensions the tensor has; positions are 32-bit integers. Algorithms are loops over rows, columns or blocks of
//! them, so that programs do not grow with the matrices.

pub mod cholesky;
pub mod eigh;
pub mod jacobi;
pub mod lu;
pub mod matrix_exp;
pub mod qr;
pub mod solve;
pub mod spectral;
pub mod svd;
pub mod triangular;

use stablehlo::{Builder, Direction, GatherDimensionNumbers, Precision, TensorType, Value};

use crate::call::{Call, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::formula;
use crate::graph::{Dims, Number};

type Result<T> = std::result::Result<T, LoweringError>;

/// Element type of positions.
pub const INDEX: DType = DType::Int32;

/// Batch, rows, columns.
pub fn extents(b: &Builder, x: Value) -> [i64; 3] {
    match *b.dims(x) {
        [batch, rows, columns] => [batch, rows, columns],
        _ => [0; 3],
    }
}

/// The tensor as matrices: its batch dimensions merged.
pub fn matrices(c: &mut Call<'_>, tensor: &Tensor) -> Result<Value> {
    let value = c.value(tensor, tensor.dtype)?;
    merge_batch(c.b, value)
}

/// Merges the dimensions before the last two.
pub fn merge_batch(b: &mut Builder, x: Value) -> Result<Value> {
    let &[ref batch @ .., rows, columns] = b.dims(x) else {
        return Err(LoweringError::invalid("The input tensor must have at least 2 dimensions."));
    };
    let dims = [batch.iter().product(), rows, columns];
    Ok(b.reshape(x, &dims)?)
}

/// A value with the batch merged into one dimension, in the sizes of output `k`.
pub fn as_output(c: &mut Call<'_>, k: usize, x: Value) -> Result<Value> {
    let out = c.out(k)?.clone();
    let x = c.convert(x, out.dtype)?;
    Ok(c.b.reshape(x, &out.sizes)?)
}

/// Expands the batch dimensions of a tensor, or only its matrices if `batch` are its own, and merges them.
pub fn broadcast_batch(c: &mut Call<'_>, tensor: &Tensor, batch: &[i64]) -> Result<Value> {
    let value = c.value(tensor, tensor.dtype)?;
    let mut dims = Dims::from_slice(batch);
    dims.extend_from_slice(&tensor.sizes[tensor.rank() - 2..]);
    let value = convert::broadcast_to(c.b, value, &dims)?;
    merge_batch(c.b, value)
}

pub fn position(b: &mut Builder, at: i64) -> Result<Value> {
    convert::constant(b, Number::Int(at), INDEX)
}

/// Runs `body` for the counts `from, from + 1, ...` below `to` (0-d values) over the state that it returns.
pub fn count_loop(
    b: &mut Builder,
    from: Value,
    to: Value,
    inits: &[Value],
    body: impl FnOnce(&mut Builder, Value, &[Value]) -> Result<Vec<Value>>,
) -> Result<Vec<Value>> {
    let mut state = vec![from];
    state.extend_from_slice(inits);
    let results = b.while_loop(
        &state,
        |b, state| b.compare(state[0], to, Direction::Lt),
        |b, state| {
            let mut next = body(b, state[0], &state[1..]).map_err(stablehlo::Error::body)?;
            let one = position(b, 1).map_err(stablehlo::Error::body)?;
            next.insert(0, b.add(state[0], one)?);
            Ok(next)
        },
    )?;
    Ok(results[1..].to_vec())
}

/// Runs `body` for the counts from 0 below `n`.
pub fn repeat(
    b: &mut Builder,
    n: i64,
    inits: &[Value],
    body: impl FnOnce(&mut Builder, Value, &[Value]) -> Result<Vec<Value>>,
) -> Result<Vec<Value>> {
    let (from, to) = (position(b, 0)?, position(b, n)?);
    count_loop(b, from, to, inits, body)
}

/// Each element's row (`dim` 1) or column (`dim` 2) in matrices of the given extents.
pub fn positions(b: &mut Builder, dims: &[i64], dim: i64) -> Result<Value> {
    Ok(b.iota(TensorType::new(INDEX.element_type(), dims), dim)?)
}

/// Expands dimensions of size 1, and 0-d values.
pub fn expand<const N: usize>(b: &mut Builder, values: [Value; N], dims: &[i64]) -> Result<[Value; N]> {
    let mut expanded = values;
    for value in &mut expanded {
        *value = convert::broadcast_to(b, *value, dims)?;
    }
    Ok(expanded)
}

/// A part of the given extents that begins at run-time positions.
pub fn part(b: &mut Builder, x: Value, row: Value, column: Value, rows: i64, columns: i64) -> Result<Value> {
    let batch = b.dims(x)[0];
    let zero = position(b, 0)?;
    Ok(b.dynamic_slice(x, &[zero, row, column], &[batch, rows, columns])?)
}

/// Column `at`, `[batch, rows, 1]`.
pub fn column(b: &mut Builder, x: Value, at: Value) -> Result<Value> {
    let (zero, rows) = (position(b, 0)?, b.dims(x)[1]);
    part(b, x, zero, at, rows, 1)
}

/// Row `at`, `[batch, 1, columns]`.
pub fn row(b: &mut Builder, x: Value, at: Value) -> Result<Value> {
    let (zero, columns) = (position(b, 0)?, b.dims(x)[2]);
    part(b, x, at, zero, 1, columns)
}

/// `x` with `update` written at run-time positions.
pub fn put_part(b: &mut Builder, x: Value, update: Value, row: Value, column: Value) -> Result<Value> {
    let zero = position(b, 0)?;
    Ok(b.dynamic_update_slice(x, update, &[zero, row, column])?)
}

/// Rows `at[batch, i, 0]` of each matrix.
pub fn take_rows(b: &mut Builder, x: Value, at: Value) -> Result<Value> {
    let numbers = GatherDimensionNumbers {
        offset_dims: Dims::from_slice(&[2]),
        collapsed_slice_dims: Dims::from_slice(&[1]),
        operand_batching_dims: Dims::from_slice(&[0]),
        start_indices_batching_dims: Dims::from_slice(&[0]),
        start_index_map: Dims::from_slice(&[1]),
        index_vector_dim: 2,
    };
    let columns = b.dims(x)[2];
    Ok(b.gather(x, at, &numbers, &[1, 1, columns], false)?)
}

/// Matrix product in full precision: a factorisation in rounded products is not one.
pub fn matmul(b: &mut Builder, x: Value, y: Value) -> Result<Value> {
    Ok(b.matmul(x, y, Precision::Highest)?)
}

pub fn transposed(b: &mut Builder, x: Value) -> Result<Value> {
    Ok(b.transpose(x, &[0, 2, 1])?)
}

pub fn conjugate(b: &mut Builder, x: Value) -> Result<Value> {
    if !b.elem(x).is_complex() {
        return Ok(x);
    }
    let (re, im) = (b.real(x)?, b.imag(x)?);
    let im = b.negate(im)?;
    Ok(b.complex(re, im)?)
}

pub fn adjoint(b: &mut Builder, x: Value) -> Result<Value> {
    let x = conjugate(b, x)?;
    transposed(b, x)
}

/// Adds zeros after the last rows and columns.
pub fn pad_to(b: &mut Builder, x: Value, rows: i64, columns: i64) -> Result<Value> {
    let [_, m, n] = extents(b, x);
    if (m, n) == (rows, columns) {
        return Ok(x);
    }
    let zero = b.zero(b.elem(x))?;
    Ok(b.pad(x, zero, &[0, 0, 0], &[0, rows - m, columns - n], &[0, 0, 0])?)
}

/// The first rows and columns.
pub fn crop(b: &mut Builder, x: Value, rows: i64, columns: i64) -> Result<Value> {
    let batch = b.dims(x)[0];
    Ok(b.slice(x, &[0, 0, 0], &[batch, rows, columns], &[1, 1, 1])?)
}

pub fn zeros(b: &mut Builder, dtype: DType, dims: &[i64]) -> Result<Value> {
    Ok(b.splat(dtype.element_type(), dims, 0i64)?)
}

/// Ones where row and column are equal.
pub fn eye(b: &mut Builder, dtype: DType, dims: &[i64]) -> Result<Value> {
    let (rows, columns) = (positions(b, dims, 1)?, positions(b, dims, 2)?);
    let on_diagonal = b.compare(rows, columns, Direction::Eq)?;
    convert::convert(b, on_diagonal, dtype)
}

/// Which half of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Triangle {
    Lower,
    Upper,
}

impl Triangle {
    pub fn other(self) -> Self {
        match self {
            Triangle::Lower => Triangle::Upper,
            Triangle::Upper => Triangle::Lower,
        }
    }
}

/// The triangle with its diagonal, zeros elsewhere.
pub fn triangle(b: &mut Builder, x: Value, which: Triangle) -> Result<Value> {
    let dims = extents(b, x);
    let (rows, columns) = (positions(b, &dims, 1)?, positions(b, &dims, 2)?);
    formula(b, [x, rows, columns], |[x, rows, columns]| {
        let inside = if which == Triangle::Lower { columns.le(rows) } else { rows.le(columns) };
        inside.select(x, x.splat(0.0))
    })
}

/// The diagonal, `[batch, min(rows, columns)]`.
pub fn diagonal(b: &mut Builder, x: Value) -> Result<Value> {
    crate::views::take_diagonal(b, x, 0, 1, 2)
}

/// Extent of a block of rows or columns in a blocked algorithm over `n` of them: all of them in small matrices.
pub fn block(n: i64) -> i64 {
    const BLOCK: i64 = 32;
    if n <= 2 * BLOCK { n } else { BLOCK }
}

/// What info tells about a matrix, as PyTorch words it.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub kind: CheckKind,
    /// `{number}` stands for info.
    pub message: &'static str,
}

pub const SINGULAR: Failure = Failure {
    kind: CheckKind::LinAlg,
    message: "The diagonal element {number} is zero, the inversion could not be completed because the input matrix is \
              singular.",
};

/// Raises for the first matrix whose info (`[batch]` in any form) is not 0. `operand` is what the user gave.
pub fn check_info(
    c: &mut Call<'_>,
    info: Value,
    operand: &Tensor,
    name: &str,
    failure: Failure,
) -> Result<()> {
    let batch: i64 = c.b.dims(info).iter().product();
    let info = c.b.reshape(info, &[batch])?;
    let info = c.convert(info, DType::Int64)?;
    let at = c.b.iota(TensorType::new(DType::Int64.element_type(), &[batch]), 0)?;
    let failed = formula(c.b, [info, at], |[info, at]| {
        let place = at * at.splat_int(1 << 32) + info;
        info.eq(info.splat_int(0)).select(at.splat_int(i64::MAX), place)
    })?;
    let first = c.b.reduce_min(failed, &[0])?;
    let first = formula(c.b, [first], |[first]| {
        first.eq(first.splat_int(i64::MAX)).select(first.splat_int(0), first)
    })?;
    let batch = if operand.rank() > 2 { "(Batch element {batch}): " } else { "" };
    let message = format!("{name}: {batch}{}", failure.message);
    if message.contains('{') {
        c.check_number(first, failure.kind, message);
    } else {
        let failed = c.convert(first, DType::Bool)?;
        c.check(failed, failure.kind, message);
    }
    Ok(())
}
