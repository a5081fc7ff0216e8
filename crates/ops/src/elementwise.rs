//! What elementwise families share: operands in one dtype, expanded to the output's sizes.

use stablehlo::Value;

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::{Expr, formula};

type Result<T> = std::result::Result<T, LoweringError>;

/// Applies a formula to operands converted to `dtype` and expanded to output 0, and casts to output 0's dtype.
pub fn pointwise<const N: usize>(
    c: &mut Call<'_>,
    dtype: DType,
    operands: [&Tensor; N],
    build: impl for<'f> FnOnce([Expr<'f>; N]) -> Expr<'f>,
) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let values = broadcast(c, dtype, operands, &out.sizes)?;
    let value = formula(c.b, values, build)?;
    Ok(c.convert(value, out.dtype)?.into())
}

pub fn broadcast<const N: usize>(
    c: &mut Call<'_>,
    dtype: DType,
    operands: [&Tensor; N],
    dims: &[i64],
) -> Result<[Value; N]> {
    let mut values = Vec::with_capacity(N);
    for operand in operands {
        values.push(c.broadcast(operand, dtype, dims)?);
    }
    values.try_into().map_err(|_| LoweringError::unsupported("operand count"))
}

/// A function of argument 0 computed in the opmath type of the output, as CPU kernels do.
pub fn unary(c: &mut Call<'_>, build: impl for<'f> FnOnce(Expr<'f>) -> Expr<'f>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&x], |[x]| build(x))
}

/// A function of arguments 0 and 1 computed in the opmath type of the output.
pub fn binary(
    c: &mut Call<'_>,
    build: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>,
) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype.opmath();
    pointwise(c, dtype, [&x, &y], |[x, y]| build(x, y))
}

/// [`binary`], but operands first take the output's dtype: for kernels where CPU casts host scalars to the common
/// dtype before it computes.
pub fn binary_rounded(
    c: &mut Call<'_>,
    build: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>,
) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let values = broadcast(c, out.dtype, [&x, &y], &out.sizes)?;
    let value = formula(c.b, values, |[x, y]| {
        build(x.to(out.dtype.opmath()), y.to(out.dtype.opmath())).to(out.dtype)
    })?;
    Ok(value.into())
}
