//! Elementwise functions of one tensor.

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::elementwise::{pointwise, unary};
use crate::error::LoweringError;
use crate::formula::Expr;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::abs", abs),
    OpDef::new("aten::exp", |c| unary(c, Expr::exp)),
    OpDef::new("aten::neg", |c| unary(c, |x| -x)),
];

fn abs(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    if x.dtype.is_unsigned() {
        return Ok(c.value(&x, x.dtype)?.into());
    }
    pointwise(c, x.dtype, [&x], |[x]| x.abs())
}
