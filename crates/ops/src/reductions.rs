//! Sums, products, extremes and their positions, and what is made of them.

use stablehlo::{TensorType, Value};

use crate::call::{Call, Outputs, Tensor, wrap_dim};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::{Dims, Number};
use crate::registry::OpDef;
use crate::statistics::spread;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::all", |c| all(c, None)),
    OpDef::new("aten::all.dim", |c| all(c, Some(1))),
    OpDef::new("aten::all.dims", |c| if no_dims(c) { truth(c) } else { all(c, Some(1)) }),
    OpDef::new("aten::amax", |c| extreme(c, true, Some(1))),
    OpDef::new("aten::amin", |c| extreme(c, false, Some(1))),
    OpDef::new("aten::aminmax", aminmax),
    OpDef::new("aten::any", |c| any(c, None)),
    OpDef::new("aten::any.dim", |c| any(c, Some(1))),
    OpDef::new("aten::any.dims", |c| if no_dims(c) { truth(c) } else { any(c, Some(1)) }),
    OpDef::new("aten::argmax", |c| arg_extreme(c, true)),
    OpDef::new("aten::argmin", |c| arg_extreme(c, false)),
    OpDef::new("aten::count_nonzero", |c| count_nonzero(c, Some(1))),
    OpDef::new("aten::count_nonzero.dim_IntList", |c| count_nonzero(c, Some(1))),
    OpDef::new("aten::_is_all_true", |c| all(c, None)),
    OpDef::new("aten::_is_any_true", |c| any(c, None)),
    OpDef::new("aten::logsumexp", logsumexp),
    OpDef::new("aten::max", |c| extreme(c, true, None)),
    OpDef::new("aten::max.dim", |c| extreme_with_index(c, true)),
    OpDef::new("aten::mean", |c| mean(c, None)).computes_in_out(),
    OpDef::new("aten::mean.dim", |c| mean(c, Some(1))).computes_in_out(),
    OpDef::new("aten::min", |c| extreme(c, false, None)),
    OpDef::new("aten::min.dim", |c| extreme_with_index(c, false)),
    OpDef::new("aten::nansum", nansum).computes_in_out(),
    OpDef::new("aten::prod", |c| prod(c, None)).computes_in_out(),
    OpDef::new("aten::prod.dim_int", |c| prod(c, Some(1))).computes_in_out(),
    OpDef::new("aten::sum", |c| sum(c, None)).computes_in_out(),
    OpDef::new("aten::sum.dim_IntList", |c| sum(c, Some(1))).computes_in_out(),
    OpDef::new("prims::amax", |c| extreme(c, true, Some(1))).composite(),
    OpDef::new("prims::amin", |c| extreme(c, false, Some(1))).composite(),
    OpDef::new("prims::prod", |c| prod(c, Some(1))).composite(),
    OpDef::new("prims::sum", |c| sum(c, Some(1))).composite(),
];

/// The dimensions that a reduction removes: an int or a list at position `index`; `None` and, for lists, `[]` mean all.
pub fn reduced_dims(c: &Call<'_>, index: Option<usize>, rank: usize) -> Result<Vec<i64>> {
    let dims = match index {
        Some(index) => c.opt_ints(index)?.unwrap_or_default(),
        None => Vec::new(),
    };
    if rank == 0 {
        return Ok(Vec::new());
    }
    if dims.is_empty() {
        return Ok((0..rank as i64).collect());
    }
    let mut wrapped =
        dims.into_iter().map(|dim| Ok(wrap_dim(dim, rank)? as i64)).collect::<Result<Vec<_>>>()?;
    wrapped.sort_unstable();
    wrapped.dedup();
    Ok(wrapped)
}

/// Number of elements that go into one result.
pub fn reduced_count(sizes: &[i64], dims: &[i64]) -> i64 {
    dims.iter().map(|dim| sizes[*dim as usize]).product()
}

/// Gives a reduced value the sizes of output `k` (which may keep the reduced dimensions as 1) and its dtype.
pub fn finish(c: &mut Call<'_>, value: Value, k: usize) -> Result<Value> {
    let out = c.out(k)?.clone();
    let value = c.convert(value, out.dtype)?;
    Ok(c.b.reshape(value, &out.sizes)?)
}

/// Operand in `dtype`, and the dimensions to reduce.
fn operand(c: &mut Call<'_>, dtype: DType, dims: Option<usize>) -> Result<(Value, Tensor, Vec<i64>)> {
    let x = c.tensor(0)?;
    let dims = reduced_dims(c, dims, x.rank())?;
    Ok((c.value(&x, dtype)?, x, dims))
}

fn sum(c: &mut Call<'_>, dims: Option<usize>) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    // A sum of bools with dtype=bool is "any".
    let (value, _, dims) = operand(c, dtype.opmath(), dims)?;
    let value = c.b.reduce_add(value, &dims)?;
    Ok(finish(c, value, 0)?.into())
}

/// aten::nansum(self, dim, keepdim, *, dtype)
fn nansum(c: &mut Call<'_>) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    let (value, x, dims) = operand(c, dtype.opmath(), Some(1))?;
    let value = match x.dtype.is_float() {
        true => formula(c.b, [value], |[x]| x.is_nan().select(x.splat(0.0), x))?,
        false => value,
    };
    let value = c.b.reduce_add(value, &dims)?;
    Ok(finish(c, value, 0)?.into())
}

fn mean(c: &mut Call<'_>, dims: Option<usize>) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    let (value, x, dims) = operand(c, dtype.opmath(), dims)?;
    let value = c.b.reduce_add(value, &dims)?;
    let count = reduced_count(&x.sizes, &dims) as f64;
    let value = formula(c.b, [value], |[x]| x / count)?;
    Ok(finish(c, value, 0)?.into())
}

fn prod(c: &mut Call<'_>, dims: Option<usize>) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    let (value, _, dims) = operand(c, dtype.opmath(), dims)?;
    let value = c.b.reduce_mul(value, &dims)?;
    Ok(finish(c, value, 0)?.into())
}

fn any(c: &mut Call<'_>, dims: Option<usize>) -> Result<Outputs> {
    let (value, _, dims) = operand(c, DType::Bool, dims)?;
    let value = c.b.reduce_or(value, &dims)?;
    Ok(finish(c, value, 0)?.into())
}

fn all(c: &mut Call<'_>, dims: Option<usize>) -> Result<Outputs> {
    let (value, _, dims) = operand(c, DType::Bool, dims)?;
    let value = c.b.reduce_and(value, &dims)?;
    Ok(finish(c, value, 0)?.into())
}

/// `any` and `all` over the dimensions `[]` reduce nothing, unlike the other reductions.
fn no_dims(c: &Call<'_>) -> bool {
    c.opt_ints(1).is_ok_and(|dims| dims.is_some_and(|dims| dims.is_empty()))
}

fn truth(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let value = c.value(&x, DType::Bool)?;
    Ok(finish(c, value, 0)?.into())
}

fn count_nonzero(c: &mut Call<'_>, dims: Option<usize>) -> Result<Outputs> {
    let (value, _, dims) = operand(c, DType::Bool, dims)?;
    let value = c.convert(value, DType::Int64)?;
    let value = c.b.reduce_add(value, &dims)?;
    Ok(finish(c, value, 0)?.into())
}

fn reduce_extreme(c: &mut Call<'_>, value: Value, dims: &[i64], max: bool) -> Result<Value> {
    if c.b.elem(value).is_complex() {
        return Err(LoweringError::unsupported("an order of complex numbers"));
    }
    Ok(if max { c.b.reduce_max(value, dims)? } else { c.b.reduce_min(value, dims)? })
}

fn refuse_empty(c: &Call<'_>, sizes: &[i64], dims: &[i64]) -> Result<()> {
    match reduced_count(sizes, dims) {
        0 if !c.out(0)?.sizes.contains(&0) => Err(LoweringError::invalid(format!(
            "{}: cannot reduce over a dimension without elements: it has no identity",
            c.op()
        ))),
        _ => Ok(()),
    }
}

fn extreme(c: &mut Call<'_>, max: bool, dims: Option<usize>) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    let (value, x, dims) = operand(c, dtype, dims)?;
    refuse_empty(c, &x.sizes, &dims)?;
    let value = reduce_extreme(c, value, &dims, max)?;
    Ok(finish(c, value, 0)?.into())
}

/// aten::aminmax(self, *, dim=None, keepdim=False) -> (min, max)
fn aminmax(c: &mut Call<'_>) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    let (value, x, dims) = operand(c, dtype, Some(1))?;
    refuse_empty(c, &x.sizes, &dims)?;
    let low = reduce_extreme(c, value, &dims, false)?;
    let high = reduce_extreme(c, value, &dims, true)?;
    Ok([finish(c, low, 0)?, finish(c, high, 1)?].into())
}

/// The extreme along one dimension and the first position that has it; NaN is beyond every number.
fn extreme_and_index(c: &mut Call<'_>, value: Value, dim: usize, max: bool) -> Result<(Value, Value)> {
    let sizes = Dims::from_slice(c.b.dims(value));
    let dims = [dim as i64];
    let best = reduce_extreme(c, value, &dims, max)?;
    let best_everywhere = spread(c.b, best, &sizes, &dims)?;
    // 32-bit positions are cheaper everywhere and enough below 2^31.
    let position = if sizes[dim] <= i64::from(i32::MAX) { DType::Int32 } else { DType::Int64 };
    let index = c.b.iota(TensorType::new(position.element_type(), &sizes), dim as i64)?;
    let is_float = crate::convert::dtype_of(c.b, value)?.is_float();
    let candidates = formula(c.b, [value, best_everywhere, index], |[x, best, index]| {
        let hit = x.eq(best);
        let hit = if is_float { hit | x.is_nan() } else { hit };
        hit.select(index, index.splat_int(sizes[dim]))
    })?;
    let index = c.b.reduce_min(candidates, &dims)?;
    Ok((best, index))
}

/// (values, indices) of aten::max.dim(self, dim, keepdim) and aten::min.dim
fn extreme_with_index(c: &mut Call<'_>, max: bool) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dim = c.dim(1, x.rank())?;
    let value = c.value(&x, x.dtype)?;
    if x.rank() == 0 {
        return Ok([value, c.full(Number::Int(0), DType::Int64, &[])?].into());
    }
    refuse_empty(c, &x.sizes, &[dim as i64])?;
    let (best, index) = extreme_and_index(c, value, dim, max)?;
    Ok([finish(c, best, 0)?, finish(c, index, 1)?].into())
}

/// aten::argmax(self, dim=None, keepdim=False); without a dimension over the flattened tensor.
fn arg_extreme(c: &mut Call<'_>, max: bool) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let value = c.value(&x, x.dtype)?;
    if x.rank() == 0 {
        let sizes = c.out(0)?.sizes.clone();
        return Ok(c.full(Number::Int(0), DType::Int64, &sizes)?.into());
    }
    let (value, dim) = match c.is_none(1) {
        true => (c.b.reshape(value, &[x.numel()])?, 0),
        false => (value, c.dim(1, x.rank())?),
    };
    let sizes = Dims::from_slice(c.b.dims(value));
    refuse_empty(c, &sizes, &[dim as i64])?;
    let (_, index) = extreme_and_index(c, value, dim, max)?;
    Ok(finish(c, index, 0)?.into())
}

/// aten::logsumexp(self, dim, keepdim): shifted by the maximum (of the real parts), unless that is infinite.
fn logsumexp(c: &mut Call<'_>) -> Result<Outputs> {
    let dtype = c.out(0)?.dtype;
    let (value, x, dims) = operand(c, dtype.opmath(), Some(1))?;
    let magnitude = if dtype.is_complex() { c.b.real(value)? } else { value };
    let largest = c.b.reduce_max(magnitude, &dims)?;
    let shift = formula(c.b, [largest], |[m]| m.is_inf().select(m.splat(0.0), m).to(dtype.opmath()))?;
    let shift_everywhere = spread(c.b, shift, &x.sizes, &dims)?;
    let exp = formula(c.b, [value, shift_everywhere], |[x, shift]| (x - shift).exp())?;
    let sum = c.b.reduce_add(exp, &dims)?;
    let value = formula(c.b, [sum, shift], |[sum, shift]| sum.log() + shift)?;
    Ok(finish(c, value, 0)?.into())
}
