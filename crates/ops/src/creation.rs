//! Tensors made from numbers. Sizes and dtypes come from the output's metadata.

use stablehlo::{TensorType, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert::broadcast_to;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::Number;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    // The numbers decide how many elements there are.
    OpDef::new("aten::arange", |c| arange(c, None, None)).attributes(&[0]),
    OpDef::new("aten::arange.start", |c| arange(c, Some(0), None)).attributes(&[0, 1]),
    OpDef::new("aten::arange.start_out", |c| arange(c, Some(0), Some(2)))
        .attributes(&[0, 1, 2])
        .keeps_shape(),
    OpDef::new("aten::arange.start_step", |c| arange(c, Some(0), Some(2))).attributes(&[0, 1, 2]),
    OpDef::new("aten::_efficientzerotensor", |c| filled(c, 0)),
    OpDef::new("aten::eye", eye),
    OpDef::new("aten::eye.m", eye),
    OpDef::new("aten::eye.m_out", eye),
    OpDef::new("aten::eye.out", eye),
    OpDef::new("aten::fill.Scalar", |c| fill(c, 1)),
    OpDef::new("aten::fill.Tensor", |c| fill(c, 1)),
    OpDef::new("aten::fill_.Scalar", |c| fill(c, 1)),
    OpDef::new("aten::fill_.Tensor", |c| fill(c, 1)),
    OpDef::new("aten::full", |c| fill(c, 1)),
    OpDef::new("aten::full_like", |c| fill(c, 1)).composite(),
    OpDef::new("aten::linspace", linspace),
    OpDef::new("aten::linspace.Scalar_Tensor", linspace),
    OpDef::new("aten::linspace.Tensor_Scalar", linspace),
    OpDef::new("aten::linspace.Tensor_Tensor", linspace),
    OpDef::new("aten::linspace.out", linspace).keeps_shape(),
    OpDef::new("aten::logspace", logspace),
    OpDef::new("aten::logspace.out", logspace).keeps_shape(),
    OpDef::new("aten::new_full", |c| fill(c, 2)).composite(),
    OpDef::new("aten::new_ones", |c| filled(c, 1)).composite(),
    OpDef::new("aten::new_zeros", |c| filled(c, 0)).composite(),
    OpDef::new("aten::ones", |c| filled(c, 1)),
    OpDef::new("aten::ones_like", |c| filled(c, 1)).composite(),
    OpDef::new("aten::range.out", |c| arange(c, Some(0), Some(2))).attributes(&[0, 1, 2]).keeps_shape(),
    OpDef::new("aten::range.out_", |c| arange(c, Some(0), None)).attributes(&[0, 1]).keeps_shape(),
    OpDef::new("aten::scalar_tensor", |c| fill(c, 0)),
    OpDef::new("aten::tril", |c| triangle(c, true)),
    OpDef::new("aten::tril_indices", |c| triangle_indices(c, true)),
    OpDef::new("aten::triu", |c| triangle(c, false)),
    OpDef::new("aten::triu_indices", |c| triangle_indices(c, false)),
    OpDef::new("aten::zero", |c| filled(c, 0)),
    OpDef::new("aten::zero_", |c| filled(c, 0)),
    OpDef::new("aten::zeros", |c| filled(c, 0)),
    OpDef::new("aten::zeros_like", |c| filled(c, 0)).composite(),
    OpDef::new("prims::full", |c| fill(c, 1)).composite(),
    OpDef::new("prims::full_like", |c| fill(c, 1)).composite(),
    OpDef::new("prims::iota", iota).composite(),
    OpDef::new("prims::scalar_tensor", |c| fill(c, 0)).composite(),
];

fn filled(c: &mut Call<'_>, number: i64) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    Ok(c.full(Number::Int(number), out.dtype, &out.sizes)?.into())
}

fn fill(c: &mut Call<'_>, value: usize) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let value = c.tensor(value)?;
    Ok(c.broadcast(&value, out.dtype, &out.sizes)?.into())
}

/// 0, 1, 2, ... in `dtype`, one for each element of output 0. A tensor given for it keeps its shape when it has the right
/// number of elements.
fn positions(c: &mut Call<'_>, dtype: DType) -> Result<Value> {
    let sizes = c.out(0)?.sizes.clone();
    let numbers = TensorType::new(dtype.element_type(), &[sizes.iter().product()]);
    let numbers = c.b.iota(numbers, 0)?;
    Ok(c.b.reshape(numbers, &sizes)?)
}

/// The type in which CPU steps through a range (`at::acc_type` on CPU).
fn range_type(dtype: DType) -> DType {
    match dtype {
        DType::Float32 | DType::Float64 => DType::Float64,
        DType::Float16 | DType::BFloat16 => DType::Float32,
        DType::Bool => DType::Int64,
        other if other.is_integral(false) => DType::Int64,
        other => other,
    }
}

/// start + i * step
fn arange(c: &mut Call<'_>, start: Option<usize>, step: Option<usize>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let dtype = range_type(out.dtype);
    let mut value = positions(c, dtype)?;
    if let Some(step) = step.filter(|step| !c.is_one(*step)) {
        let step = c.scalar(step, dtype)?;
        let step = c.b.broadcast_scalar(step, &out.sizes)?;
        value = c.b.multiply(value, step)?;
    }
    if let Some(start) = start {
        let start = c.scalar(start, dtype)?;
        let start = c.b.broadcast_scalar(start, &out.sizes)?;
        value = c.b.add(start, value)?;
    }
    Ok(c.convert(value, out.dtype)?.into())
}

/// prims::iota(length, *, start, step, dtype, ...)
fn iota(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let (start, step) = (c.int(1)?, c.int(2)?);
    let dtype = DType::Int64;
    let value = positions(c, dtype)?;
    let value = formula(c.b, [value], |[i]| i.splat_int(start) + i * i.splat_int(step))?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// Equal steps from argument 0 to argument 1, `steps` numbers (argument 2) computed in `dtype`: from both ends towards
/// the middle, so that both ends are exact. For one number there is no step.
fn steps_between(c: &mut Call<'_>, dtype: DType) -> Result<Value> {
    let out = c.out(0)?.clone();
    let steps = c.int(2)?;
    let (start, end) = (c.tensor(0)?, c.tensor(1)?);
    let bound = |c: &mut Call<'_>, tensor: &Tensor| {
        let value = c.value(tensor, out.dtype)?;
        let value = c.convert(value, dtype)?;
        broadcast_to(c.b, value, &out.sizes)
    };
    let start = bound(c, &start)?;
    if steps <= 1 {
        return Ok(start);
    }
    let end = bound(c, &end)?;
    let index = positions(c, DType::Int64)?;
    formula(c.b, [start, end, index], |[start, end, index]| {
        let step = (end - start) / (steps - 1) as f64;
        let low = start + step * index.to(dtype);
        let high = end - step * (index.splat_int(steps - 1) - index).to(dtype);
        index.lt(index.splat_int(steps / 2)).select(low, high)
    })
}

/// Integers step in double, in the type itself otherwise.
fn linspace(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let dtype = if out.dtype.is_integral(true) { DType::Float64 } else { out.dtype.opmath() };
    let value = steps_between(c, dtype)?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// aten::logspace(start, end, steps, base=10): powers of the base. For integers the CPU's exponents are float32, its
/// powers float64.
fn logspace(c: &mut Call<'_>) -> Result<Outputs> {
    let (out, base) = (c.out(0)?.clone(), c.float(3)?);
    if out.dtype.is_bool() {
        return Err(LoweringError::unsupported("logspace of bool"));
    }
    let is_integral = out.dtype.is_integral(false);
    let exponents = steps_between(c, if is_integral { DType::Float32 } else { out.dtype.opmath() })?;
    let exponents = if is_integral { c.convert(exponents, DType::Float64)? } else { exponents };
    let value = formula(c.b, [exponents], |[x]| x.splat(base).pow(x))?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// Row and column numbers of the last two dimensions.
fn row_and_column(c: &mut Call<'_>, dims: &[i64]) -> Result<[Value; 2]> {
    let ty = TensorType::new(DType::Int64.element_type(), dims);
    let rank = dims.len() as i64;
    Ok([c.b.iota(ty.clone(), rank - 2)?, c.b.iota(ty, rank - 1)?])
}

fn eye(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let values = row_and_column(c, &out.sizes)?;
    let diagonal = formula(c.b, values, |[row, column]| row.eq(column))?;
    Ok(c.convert(diagonal, out.dtype)?.into())
}

/// aten::tril(self, diagonal=0), aten::triu(self, diagonal=0)
fn triangle(c: &mut Call<'_>, lower: bool) -> Result<Outputs> {
    let (x, diagonal) = (c.tensor(0)?, c.int(1)?);
    let out = c.out(0)?.clone();
    let value = c.value(&x, out.dtype)?;
    // Beyond the matrix every diagonal is the same.
    let limit = out.sizes.iter().sum::<i64>() + 1;
    let diagonal = diagonal.clamp(-limit, limit);
    let [row, column] = row_and_column(c, &out.sizes)?;
    let value = formula(c.b, [row, column, value], |[row, column, x]| {
        let edge = row + row.splat_int(diagonal);
        let keep = if lower { column.le(edge) } else { column.ge(edge) };
        keep.select(x, x.splat_int(0))
    })?;
    Ok(value.into())
}

/// aten::tril_indices(row, col, offset=0): computed here, as the count depends on all three.
fn triangle_indices(c: &mut Call<'_>, lower: bool) -> Result<Outputs> {
    let (rows, columns, offset) = (c.int(0)?, c.int(1)?, c.int(2)?);
    let out = c.out(0)?.clone();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let edge = row.saturating_add(offset);
        let range = match lower {
            true => 0..edge.saturating_add(1).clamp(0, columns),
            false => edge.clamp(0, columns)..columns,
        };
        for column in range {
            first.push(row);
            second.push(column);
        }
    }
    first.append(&mut second);
    let bytes: Vec<u8> = first.iter().flat_map(|index| index.to_le_bytes()).collect();
    let ty = TensorType::new(DType::Int64.element_type(), &out.sizes);
    let value = c.b.constant_dense(ty, &bytes)?;
    Ok(c.convert(value, out.dtype)?.into())
}
