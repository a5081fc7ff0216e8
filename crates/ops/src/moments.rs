//! Variances and norms.

use stablehlo::Value;

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;
use crate::graph::Number;
use crate::reductions::{finish, reduced_count, reduced_dims};
use crate::registry::OpDef;
use crate::statistics::spread;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::linalg_vector_norm", |c| norm(c, Some(2))).attributes(&[1]),
    OpDef::new("aten::norm.Scalar", |c| norm(c, None)).attributes(&[1]),
    OpDef::new("aten::norm.ScalarOpt_dim", |c| norm(c, Some(2))).attributes(&[1]),
    OpDef::new("aten::norm.ScalarOpt_dim_dtype", |c| norm(c, Some(2))).attributes(&[1]),
    OpDef::new("aten::norm.ScalarOpt_dtype", |c| norm(c, None)).attributes(&[1]),
    OpDef::new("aten::std.correction", |c| variance(c, &[Moment::Deviation])).attributes(&[2]),
    OpDef::new("aten::std_mean.correction", |c| variance(c, &[Moment::Deviation, Moment::Mean]))
        .attributes(&[2]),
    OpDef::new("aten::var.correction", |c| variance(c, &[Moment::Variance])).attributes(&[2]),
    OpDef::new("aten::var_mean.correction", |c| variance(c, &[Moment::Variance, Moment::Mean]))
        .attributes(&[2]),
    OpDef::new("prims::var", |c| variance(c, &[Moment::Variance])).attributes(&[2]).composite(),
];

#[derive(Clone, Copy)]
enum Moment {
    Mean,
    Variance,
    Deviation,
}

/// aten::var(self, dim=None, *, correction=1, keepdim=False): two passes, which in f32 is as exact as CPU's one pass in
/// f64. The correction may leave nothing to divide by: NaN or infinity.
fn variance(c: &mut Call<'_>, moments: &[Moment]) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dims = reduced_dims(c, Some(1), x.rank())?;
    let correction = c.opt_float(2)?.unwrap_or(1.0);
    let value = c.value(&x, x.dtype.opmath())?;
    let count = reduced_count(&x.sizes, &dims) as f64;
    let sum = c.b.reduce_add(value, &dims)?;
    let mean = formula(c.b, [sum], |[sum]| sum / count)?;
    let mean_everywhere = spread(c.b, mean, &x.sizes, &dims)?;
    let complex = x.dtype.is_complex();
    let squares = formula(c.b, [value, mean_everywhere], |[x, mean]| {
        let distance = x - mean;
        match complex {
            true => distance.real() * distance.real() + distance.imag() * distance.imag(),
            false => distance * distance,
        }
    })?;
    let squares = c.b.reduce_add(squares, &dims)?;
    let divisor = (count - correction).max(0.0);
    let variance = formula(c.b, [squares], |[squares]| squares / divisor)?;
    let mut outputs = Vec::with_capacity(moments.len());
    for (k, moment) in moments.iter().enumerate() {
        let value = match moment {
            Moment::Mean => mean,
            Moment::Variance => variance,
            Moment::Deviation => c.b.sqrt(variance)?,
        };
        outputs.push(finish(c, value, k)?);
    }
    Ok(outputs.into())
}

/// Vector norm of the order at position 1, over the dimensions at position `dims`.
fn norm(c: &mut Call<'_>, dims: Option<usize>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dims = reduced_dims(c, dims, x.rank())?;
    let order = c.opt_float(1)?.unwrap_or(2.0);
    let out = c.out(0)?.dtype;
    let real = out.real().opmath();
    // A dtype argument converts the elements first.
    let dtype = if x.dtype.is_complex() { real.complex().unwrap_or(DType::Complex64) } else { real };
    let value = c.value(&x, dtype)?;
    let value = vector_norm(c, value, order, &dims)?;
    Ok(finish(c, value, 0)?.into())
}

/// The norm of order `order` of real or complex numbers over `dims`; the result is real.
pub fn vector_norm(c: &mut Call<'_>, value: Value, order: f64, dims: &[i64]) -> Result<Value> {
    let sizes = c.b.ty(value).dims.clone();
    let count = reduced_count(&sizes, dims);
    if c.b.elem(value).is_complex() && order == 2.0 {
        let squares = formula(c.b, [value], |[x]| x.real() * x.real() + x.imag() * x.imag())?;
        let sum = c.b.reduce_add(squares, dims)?;
        return Ok(c.b.sqrt(sum)?);
    }
    let magnitude = c.b.abs(value)?;
    let real = crate::convert::dtype_of(c.b, magnitude)?;
    if order.is_infinite() {
        if count == 0 && !order.is_sign_positive() {
            return Err(LoweringError::invalid(
                "linalg.vector_norm cannot compute the -inf norm on an empty tensor",
            ));
        }
        return Ok(match order > 0.0 {
            // Magnitudes are at least 0, which is the answer for nothing.
            true if count == 0 => {
                let kept: Vec<i64> =
                    (0..sizes.len()).filter(|d| !dims.contains(&(*d as i64))).map(|d| sizes[d]).collect();
                c.full(Number::Int(0), real, &kept)?
            }
            true => c.b.reduce_max(magnitude, dims)?,
            false => c.b.reduce_min(magnitude, dims)?,
        });
    }
    if order == 0.0 {
        let nonzero = formula(c.b, [magnitude], |[x]| x.ne(x.splat(0.0)).to(real))?;
        return Ok(c.b.reduce_add(nonzero, dims)?);
    }
    if order == 1.0 {
        return Ok(c.b.reduce_add(magnitude, dims)?);
    }
    if order == 2.0 {
        let squares = c.b.multiply(magnitude, magnitude)?;
        let sum = c.b.reduce_add(squares, dims)?;
        return Ok(c.b.sqrt(sum)?);
    }
    let powers = formula(c.b, [magnitude], |[x]| x.pow(x.splat(order)))?;
    let sum = c.b.reduce_add(powers, dims)?;
    formula(c.b, [sum], |[sum]| sum.pow(sum.splat(1.0 / order)))
}
