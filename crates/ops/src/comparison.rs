//! Comparisons and logical connectives: bool results.

use stablehlo::Direction;

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::elementwise::{broadcast, pointwise};
use crate::error::LoweringError;
use crate::formula::Expr;
use crate::graph::{Dims, Number};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::eq.Scalar", |c| compare(c, Direction::Eq)),
    OpDef::new("aten::eq.Tensor", |c| compare(c, Direction::Eq)),
    OpDef::new("aten::equal", equal).answer(DType::Bool),
    OpDef::new("aten::ge.Scalar", |c| compare(c, Direction::Ge)),
    OpDef::new("aten::ge.Tensor", |c| compare(c, Direction::Ge)),
    OpDef::new("aten::gt.Scalar", |c| compare(c, Direction::Gt)),
    OpDef::new("aten::gt.Tensor", |c| compare(c, Direction::Gt)),
    OpDef::new("aten::le.Scalar", |c| compare(c, Direction::Le)),
    OpDef::new("aten::le.Tensor", |c| compare(c, Direction::Le)),
    OpDef::new("aten::logical_and", |c| logical(c, |x, y| x & y)),
    OpDef::new("aten::logical_or", |c| logical(c, |x, y| x | y)),
    OpDef::new("aten::logical_xor", |c| logical(c, |x, y| x ^ y)),
    OpDef::new("aten::lt.Scalar", |c| compare(c, Direction::Lt)),
    OpDef::new("aten::lt.Tensor", |c| compare(c, Direction::Lt)),
    OpDef::new("aten::ne.Scalar", |c| compare(c, Direction::Ne)),
    OpDef::new("aten::ne.Tensor", |c| compare(c, Direction::Ne)),
];

fn compare(c: &mut Call<'_>, direction: Direction) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.result_type(&[&x, &y])?;
    let sizes = c.out(0)?.sizes.clone();
    let [x, y] = broadcast(c, dtype, [&x, &y], &sizes)?;
    Ok(c.b.compare(x, y, direction)?.into())
}

/// Whether sizes and elements agree.
fn equal(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    if x.is_host() || y.is_host() {
        return Err(LoweringError::invalid(
            "Cannot compare two tensors on different devices. Got: tpu and cpu",
        ));
    }
    if x.sizes != y.sizes {
        return Ok(c.full(Number::Bool(false), DType::Bool, &[])?.into());
    }
    let dtype = c.result_type(&[&x, &y])?;
    let [left, right] = broadcast(c, dtype, [&x, &y], &x.sizes)?;
    let equal = c.b.compare(left, right, Direction::Eq)?;
    let dims: Dims = (0..x.rank() as i64).collect();
    Ok(c.b.reduce_and(equal, &dims)?.into())
}

fn logical(c: &mut Call<'_>, build: impl for<'f> FnOnce(Expr<'f>, Expr<'f>) -> Expr<'f>) -> Result<Outputs> {
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    pointwise(c, DType::Bool, [&x, &y], |[x, y]| build(x, y))
}
