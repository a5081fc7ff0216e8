//! Matrix products. Sums of products are kept in the opmath type and rounded once.

use stablehlo::{DotDimensionNumbers, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::lowering::Precision;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::mm", |c| product(c, &MATRICES)),
    OpDef::new("aten::bmm", |c| product(c, &BATCHES)),
    OpDef::new("aten::mv", |c| product(c, &MATRIX_VECTOR)),
    OpDef::new("aten::dot", |c| product(c, &VECTORS)),
    OpDef::new("aten::vdot", vdot),
    OpDef::new("aten::_int_mm", |c| product(c, &MATRICES)),
    OpDef::new("aten::addmm", |c| add_product(c, &MATRICES)).ones(&[3, 4]),
    OpDef::new("aten::baddbmm", |c| add_product(c, &BATCHES)).ones(&[3, 4]),
    OpDef::new("aten::addr", add_outer_product).ones(&[3, 4]),
    OpDef::new("aten::addmv", |c| add_product(c, &MATRIX_VECTOR)).ones(&[3, 4]),
    OpDef::new("aten::addbmm", |c| add_product(c, &SUMMED_BATCHES)).ones(&[3, 4]),
    OpDef::new("aten::_addmm_activation", addmm_activation).ones(&[3, 4]),
];

/// Which dimensions of the two operands are matched: batch dimensions, then summed ones.
pub struct Contraction {
    pub batch: &'static [i64],
    pub lhs: &'static [i64],
    pub rhs: &'static [i64],
}

pub const MATRICES: Contraction = Contraction { batch: &[], lhs: &[1], rhs: &[0] };
pub const BATCHES: Contraction = Contraction { batch: &[0], lhs: &[2], rhs: &[1] };
const MATRIX_VECTOR: Contraction = Contraction { batch: &[], lhs: &[1], rhs: &[0] };
const VECTORS: Contraction = Contraction { batch: &[], lhs: &[0], rhs: &[0] };
/// `sum_b lhs[b, i, k] * rhs[b, k, j]`
const SUMMED_BATCHES: Contraction = Contraction { batch: &[], lhs: &[0, 2], rhs: &[0, 1] };

/// The precision of products of f32 operands; other types have only one.
pub fn precision(c: &Call<'_>, dtype: DType) -> stablehlo::Precision {
    match (dtype, c.modes().matmul_precision) {
        (DType::Float32 | DType::Complex64, Precision::Highest) => stablehlo::Precision::Highest,
        (DType::Float32 | DType::Complex64, Precision::High) => stablehlo::Precision::High,
        _ => stablehlo::Precision::Default,
    }
}

/// `lhs @ rhs` of operands in `dtype`, with the result in `result`.
pub fn contract(c: &mut Call<'_>, lhs: Value, rhs: Value, how: &Contraction, result: DType) -> Result<Value> {
    let dtype = DType::from_element_type(c.b.elem(lhs)).unwrap_or(result);
    let precision = precision(c, dtype);
    let dims = DotDimensionNumbers::new(how.batch, how.batch, how.lhs, how.rhs);
    Ok(c.b.dot_general(lhs, rhs, &dims, precision, result.element_type())?)
}

/// CPU PyTorch has no product of booleans or of the barebones unsigned types. bfloat16 holds every float8 number.
fn operands(c: &mut Call<'_>, x: &Tensor, y: &Tensor) -> Result<(Value, Value)> {
    if x.dtype.is_bool() || x.dtype.is_barebones_unsigned() {
        return Err(LoweringError::unsupported(format!("matrix product of {}", x.dtype)));
    }
    if x.dtype != y.dtype {
        return Err(LoweringError::invalid(format!(
            "expected m1 and m2 to have the same dtype, but got: {} != {}",
            x.dtype, y.dtype
        )));
    }
    let dtype = if x.dtype.is_float8() { DType::BFloat16 } else { x.dtype };
    Ok((c.value(x, dtype)?, c.value(y, dtype)?))
}

fn product(c: &mut Call<'_>, how: &Contraction) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.dtype;
    let (lhs, rhs) = operands(c, &x, &y)?;
    let value = contract(c, lhs, rhs, how, out.opmath())?;
    Ok(c.convert(value, out)?.into())
}

fn vdot(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.dtype;
    let (mut lhs, rhs) = operands(c, &x, &y)?;
    if x.dtype.is_complex() {
        let (re, im) = (c.b.real(lhs)?, c.b.imag(lhs)?);
        let im = c.b.negate(im)?;
        lhs = c.b.complex(re, im)?;
    }
    let value = contract(c, lhs, rhs, &VECTORS, out.opmath())?;
    Ok(c.convert(value, out)?.into())
}

/// `beta * self + alpha * (lhs @ rhs)`; arguments are self, lhs, rhs, beta, alpha.
fn add_product(c: &mut Call<'_>, how: &Contraction) -> Result<Outputs> {
    let value = scaled_sum(c, how)?;
    let out = c.out(0)?.dtype;
    Ok(c.convert(value, out)?.into())
}

/// addr(self, vec1, vec2, beta, alpha), rounded once.
fn add_outer_product(c: &mut Call<'_>) -> Result<Outputs> {
    let (base, x, y) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let out = c.out(0)?.clone();
    let dtype = if out.dtype == DType::Bool { DType::Int32 } else { out.dtype.opmath() };
    let (x, y) = (c.value(&x, dtype)?, c.value(&y, dtype)?);
    let rows = c.b.broadcast_in_dim(x, &out.sizes, &[0])?;
    let columns = c.b.broadcast_in_dim(y, &out.sizes, &[1])?;
    let product = c.b.multiply(rows, columns)?;
    let value = add_scaled(c, &base, product, dtype)?;
    Ok(c.convert(value, out.dtype)?.into())
}

fn scaled_sum(c: &mut Call<'_>, how: &Contraction) -> Result<Value> {
    let (base, x, y) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let out = c.out(0)?.clone();
    let dtype = out.dtype.opmath();
    let (lhs, rhs) = operands(c, &x, &y)?;
    let product = contract(c, lhs, rhs, how, dtype)?;
    add_scaled(c, &base, product, dtype)
}

/// beta * base + alpha * product; beta and alpha are arguments 3 and 4.
fn add_scaled(c: &mut Call<'_>, base: &Tensor, mut product: Value, dtype: DType) -> Result<Value> {
    let sizes = c.out(0)?.sizes.clone();
    if !c.is_one(4) {
        let alpha = c.scalar(4, dtype)?;
        let alpha = c.b.broadcast_scalar(alpha, &sizes)?;
        product = c.b.multiply(product, alpha)?;
    }
    let base = c.broadcast(base, dtype, &sizes)?;
    if c.is_one(3) {
        return Ok(c.b.add(product, base)?);
    }
    let beta = c.scalar(3, dtype)?;
    let beta = c.b.broadcast_scalar(beta, &sizes)?;
    // A beta of 0 means that self is not read: its NaN and infinities do not count.
    formula(c.b, [product, base, beta], |[product, base, beta]| {
        let scaled = beta.eq(beta.splat_int(0)).select(beta.splat_int(0), beta * base);
        product + scaled
    })
}

fn addmm_activation(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.dtype;
    let sum = scaled_sum(c, &MATRICES)?;
    let use_gelu = c.bool(5)?;
    // CPU rounds the product to the output's dtype before the activation.
    let value = formula(c.b, [sum], |[sum]| {
        let x = sum.round_to(out);
        if use_gelu {
            0.5 * x * (1.0 + (x * std::f64::consts::FRAC_1_SQRT_2).erf())
        } else {
            x.max(x.splat(0.0))
        }
    })?;
    Ok(c.convert(value, out)?.into())
}
