//! Scaled dot product attention as one program, and its gradient.
//!
//! The operators are those of CPU's flash attention, whose two results are all that a gradient needs; the shim routes
//! the device's attention to them. Several query heads may share one key and value head.

use stablehlo::{Direction, DotDimensionNumbers, Value};

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::{Dims, Number};
use crate::indices::iota;
use crate::matmul::precision;
use crate::normalization::{as_output, masked};
use crate::registry::OpDef;
use crate::statistics::spread;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_scaled_dot_product_flash_attention_for_cpu", attention),
    OpDef::new("aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward),
];

/// Sizes of queries `[batch, heads, queries, width]`, keys `[batch, shared, keys, width]` and values.
struct Sizes {
    batch: i64,
    /// Heads of keys and values.
    shared: i64,
    /// Query heads per key head.
    group: i64,
    queries: i64,
    keys: i64,
    width: i64,
}

impl Sizes {
    fn parse(c: &Call<'_>, first: usize) -> Result<Self> {
        let (q, k, v) = (c.tensor(first)?, c.tensor(first + 1)?, c.tensor(first + 2)?);
        let (&[batch, heads, queries, width], &[_, shared, keys, _]) = (&q.sizes[..], &k.sizes[..]) else {
            return Err(LoweringError::unsupported("attention of tensors that are not 4-d"));
        };
        if k.sizes[..3] != v.sizes[..3] || k.sizes[0] != batch || k.sizes[3] != width {
            return Err(LoweringError::unsupported("attention whose keys and values differ in size"));
        }
        if shared == 0 || heads % shared != 0 {
            return Err(LoweringError::unsupported(format!("{heads} query heads over {shared} key heads")));
        }
        if !q.dtype.is_float() || k.dtype != q.dtype || v.dtype != q.dtype {
            return Err(LoweringError::unsupported(format!("attention of {} and {}", q.dtype, k.dtype)));
        }
        Ok(Self { batch, shared, group: heads / shared, queries, keys, width })
    }

    fn heads(&self) -> i64 {
        self.shared * self.group
    }

    fn grouped(&self, width: i64) -> [i64; 5] {
        [self.batch, self.shared, self.group, self.queries, width]
    }
}

/// Contracts dimensions of `lhs` and `rhs`, whose first two are batch and key head, in the opmath type.
fn contract(c: &mut Call<'_>, lhs: Value, rhs: Value, over: [&[i64]; 2], dtype: DType) -> Result<Value> {
    let dims = DotDimensionNumbers::new(&[0, 1], &[0, 1], over[0], over[1]);
    let precision = precision(c, dtype);
    Ok(c.b.dot_general(lhs, rhs, &dims, precision, dtype.opmath().element_type())?)
}

/// The value of argument `index` with queries grouped by key head.
fn grouped(c: &mut Call<'_>, index: usize, sizes: &Sizes, dtype: DType) -> Result<Value> {
    let x = c.tensor(index)?;
    let width = x.sizes.last().copied().unwrap_or(0);
    let value = c.value(&x, dtype)?;
    Ok(c.b.reshape(value, &sizes.grouped(width))?)
}

fn scale(c: &mut Call<'_>, index: usize, sizes: &Sizes, dtype: DType) -> Result<Value> {
    match c.opt_scalar(index, dtype)? {
        Some(scale) => Ok(scale),
        None => c.full(Number::Float(1.0 / (sizes.width as f64).sqrt()), dtype, &[]),
    }
}

/// Which arguments say how scores are masked and scaled.
struct Options {
    dropout: usize,
    causal: usize,
    mask: usize,
    scale: usize,
}

/// `scale * q @ k^T` with -inf where masked, `[batch, shared, group, queries, keys]`.
fn scores(c: &mut Call<'_>, q: Value, k: Value, sizes: &Sizes, at: &Options, dtype: DType) -> Result<Value> {
    if c.float(at.dropout)? != 0.0 {
        return Err(LoweringError::unsupported("dropout inside attention"));
    }
    let math = dtype.opmath();
    let product = contract(c, q, k, [&[4], &[3]], dtype)?;
    let dims = sizes.grouped(sizes.keys);
    let scale = scale(c, at.scale, sizes, math)?;
    let scale = c.b.broadcast_scalar(scale, &dims)?;
    let mut scores = c.b.multiply(product, scale)?;
    let hidden = c.full(Number::Float(f64::NEG_INFINITY), math, &dims)?;
    if let Some(mask) = c.opt_tensor(at.mask)? {
        let full = [sizes.batch, sizes.heads(), sizes.queries, sizes.keys];
        let to = if mask.dtype.is_bool() { DType::Bool } else { math };
        let value = c.broadcast(&mask, to, &full)?;
        let value = c.b.reshape(value, &dims)?;
        scores = match mask.dtype.is_bool() {
            true => c.b.select(value, scores, hidden)?,
            false => c.b.add(scores, value)?,
        };
    }
    if c.bool(at.causal)? {
        let row = iota(c.b, DType::Int32, &dims, 3)?;
        let column = iota(c.b, DType::Int32, &dims, 4)?;
        let visible = c.b.compare(row, column, Direction::Ge)?;
        scores = c.b.select(visible, scores, hidden)?;
    }
    Ok(scores)
}

/// Arguments: queries, keys, values, dropout_p, is_causal, mask, scale. Outputs: the attention, and the logarithm of
/// the sum of exponentials of each row of scores.
fn attention(c: &mut Call<'_>) -> Result<Outputs> {
    let sizes = Sizes::parse(c, 0)?;
    let (k, v) = (c.tensor(1)?, c.tensor(2)?);
    let dtype = k.dtype;
    let q = grouped(c, 0, &sizes, dtype)?;
    let k = c.value(&k, dtype)?;
    let v = c.value(&v, dtype)?;
    let scores = scores(c, q, k, &sizes, &Options { dropout: 3, causal: 4, mask: 5, scale: 6 }, dtype)?;
    let dims = sizes.grouped(sizes.keys);
    let max = c.b.reduce_max(scores, &[4])?;
    // A row that is masked out has only exponentials of 0, and its attention and its logarithm are 0.
    let max = formula(c.b, [max], |[max]| max.eq(max.splat(f64::NEG_INFINITY)).select(max.splat(0.0), max))?;
    let shift = spread(c.b, max, &dims, &[4])?;
    let exp = formula(c.b, [scores, shift], |[scores, shift]| (scores - shift).exp())?;
    let sum = c.b.reduce_add(exp, &[4])?;
    let logarithm = formula(c.b, [sum, max], |[sum, max]| {
        sum.eq(sum.splat(0.0)).select(sum.splat(0.0), max + sum.log())
    })?;
    let sum = formula(c.b, [sum], |[sum]| sum.eq(sum.splat(0.0)).select(sum.splat(1.0), sum))?;
    let sum = spread(c.b, sum, &dims, &[4])?;
    let probabilities = c.b.divide(exp, sum)?;
    let probabilities = c.convert(probabilities, dtype)?;
    let mixed = contract(c, probabilities, v, [&[4], &[2]], dtype)?;
    Ok([as_output(c, 0, mixed)?, as_output(c, 1, logarithm)?].into())
}

/// Arguments: gradient, queries, keys, values, attention, logarithms, dropout_p, is_causal, mask, scale.
fn attention_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let sizes = Sizes::parse(c, 1)?;
    let (k, v, logarithm) = (c.tensor(2)?, c.tensor(3)?, c.tensor(5)?);
    let dtype = k.dtype;
    let math = dtype.opmath();
    let grad = grouped(c, 0, &sizes, dtype)?;
    let q = grouped(c, 1, &sizes, dtype)?;
    let k = c.value(&k, dtype)?;
    let v = c.value(&v, dtype)?;
    let at = Options { dropout: 6, causal: 7, mask: 8, scale: 9 };
    let scores = scores(c, q, k, &sizes, &at, dtype)?;
    let dims: Dims = sizes.grouped(sizes.keys).into_iter().collect();
    let logarithm = c.value(&logarithm, math)?;
    let logarithm = c.b.reshape(logarithm, &dims[..4])?;
    let logarithm = spread(c.b, logarithm, &dims, &[4])?;
    let p = formula(c.b, [scores, logarithm], |[scores, log]| (scores - log).exp())?;
    // sum(p * dp) over keys is sum(grad * attention) over the width.
    let attention = grouped(c, 4, &sizes, math)?;
    let wide = c.convert(grad, math)?;
    let along = c.b.multiply(wide, attention)?;
    let along = c.b.reduce_add(along, &[4])?;
    let along = spread(c.b, along, &dims, &[4])?;
    let dp = contract(c, grad, v, [&[4], &[3]], dtype)?;
    let scale = scale(c, at.scale, &sizes, math)?;
    let scale = c.b.broadcast_scalar(scale, &dims)?;
    let ds = formula(c.b, [p, dp, along, scale], |[p, dp, along, scale]| p * (dp - along) * scale)?;
    let (p, ds) = (c.convert(p, dtype)?, c.convert(ds, dtype)?);
    let dq = contract(c, ds, k, [&[4], &[2]], dtype)?;
    let dk = contract(c, ds, q, [&[2, 3], &[2, 3]], dtype)?;
    let dv = contract(c, p, grad, [&[2, 3], &[2, 3]], dtype)?;
    masked(c, [dq, dk, dv])
}
