//! Division, floor division and remainders: rounding modes, sign rules, and integer division by zero, which raises.

use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::elementwise::{binary, pointwise};
use crate::error::{CheckKind, LoweringError};
use crate::formula::Expr;
use crate::registry::OpDef;
use crate::unary::trunc;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::div.Scalar", |c| binary(c, |x, y| x / y)),
    OpDef::new("aten::div.Scalar_mode", div_mode),
    OpDef::new("aten::div.Tensor", |c| binary(c, |x, y| x / y)),
    OpDef::new("aten::div.Tensor_mode", div_mode),
    OpDef::new("aten::floor_divide", floor_divide),
    OpDef::new("aten::floor_divide.Scalar", floor_divide),
    OpDef::new("aten::fmod.Scalar", fmod),
    OpDef::new("aten::fmod.Tensor", fmod),
    OpDef::new("aten::remainder.Scalar", remainder),
    OpDef::new("aten::remainder.Scalar_Tensor", remainder),
    OpDef::new("aten::remainder.Tensor", remainder),
    // Same dtype in and out; integers truncate.
    OpDef::new("prims::div", |c| match c.out(0)?.dtype.is_integral(true) {
        true => trunc_divide(c),
        false => binary(c, |x, y| x / y),
    })
    .composite(),
];

/// aten::div(self, other, *, rounding_mode)
fn div_mode(c: &mut Call<'_>) -> Result<Outputs> {
    match c.opt_str(2)? {
        None => binary(c, |x, y| x / y),
        Some("trunc") => trunc_divide(c),
        Some("floor") => floor_divide(c),
        Some(mode) => Err(LoweringError::invalid(format!(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{mode}'"
        ))),
    }
}

/// Raises as CPU does when an integer divisor has a zero and there is anything to divide.
fn check_divisor(c: &mut Call<'_>, divisor: &Tensor, dtype: DType) -> Result<()> {
    if c.out(0)?.sizes.contains(&0) {
        return Ok(());
    }
    c.check_nonzero(divisor, dtype, CheckKind::ZeroDivision, "ZeroDivisionError")
}

/// The quotient as CPU has it before it is rounded to an integer: in the output's own precision, except that a host
/// operand keeps the precision of opmath.
fn quotient<'f>(x: Expr<'f>, y: Expr<'f>, dtype: DType, host: bool) -> Expr<'f> {
    if host { x / y } else { (x / y).round_to(dtype) }
}

fn trunc_divide(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype;
    if dtype.is_integral(true) {
        check_divisor(c, &y, dtype)?;
        return pointwise(c, dtype, [&x, &y], |[x, y]| x / y);
    }
    let host = y.is_host();
    pointwise(c, dtype.opmath(), [&x, &y], |[x, y]| trunc(quotient(x, y, dtype, host)))
}

fn floor_divide(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype;
    if dtype.is_unsigned() {
        return trunc_divide(c);
    }
    if dtype.is_integral(false) {
        check_divisor(c, &y, dtype)?;
        return pointwise(c, dtype, [&x, &y], |[x, y]| {
            let (zero, one) = (x.splat_int(0), x.splat_int(1));
            let (quotient, rest) = (x / y, x % y);
            (rest.ne(zero) & opposite(rest, y)).select(quotient - one, quotient)
        });
    }
    let host = y.is_host();
    pointwise(c, dtype.opmath(), [&x, &y], |[x, y]| floor_divide_float(x, y, dtype, host))
}

/// Python's floor division (`c10::div_floor_floating`): exact where x / y rounds up to an integer.
fn floor_divide_float<'f>(x: Expr<'f>, y: Expr<'f>, dtype: DType, host: bool) -> Expr<'f> {
    let round = |value: Expr<'f>| if host { value } else { value.round_to(dtype) };
    let zero = x.splat(0.0);
    let rest = x % y;
    let plain = round(x / y);
    let quotient = round(round(x - rest) / y);
    let quotient = (rest.ne(zero) & opposite(rest, y)).select(round(quotient - 1.0), quotient);
    let floor = quotient.floor();
    let floor = (quotient - floor).gt(x.splat(0.5)).select(floor + 1.0, floor);
    let signed_zero = plain.lt(zero).select(-zero, zero);
    let result = quotient.eq(zero).select(signed_zero, floor);
    y.eq(zero).select(plain, result)
}

fn opposite<'f>(x: Expr<'f>, y: Expr<'f>) -> Expr<'f> {
    let zero = x.splat_int(0);
    x.lt(zero) ^ y.lt(zero)
}

/// The sign of the dividend, as C has it.
fn fmod(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype;
    if dtype.is_integral(true) {
        check_divisor(c, &y, dtype)?;
    }
    rounded(c, &x, &y, dtype, |x, y| x % y)
}

/// The sign of the divisor, as Python has it.
fn remainder(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype;
    if dtype.is_integral(true) {
        check_divisor(c, &y, dtype)?;
    }
    if dtype.is_unsigned() {
        return rounded(c, &x, &y, dtype, |x, y| x % y);
    }
    rounded(c, &x, &y, dtype, |x, y| {
        let rest = x % y;
        (rest.ne(x.splat_int(0)) & opposite(rest, y)).select(rest + y, rest)
    })
}

fn rounded(
    c: &mut Call<'_>,
    x: &Tensor,
    y: &Tensor,
    dtype: DType,
    build: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>,
) -> Result<Outputs> {
    pointwise(c, dtype, [x, y], |[x, y]| build(x.to(dtype.opmath()), y.to(dtype.opmath())))
}
