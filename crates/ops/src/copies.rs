//! Copies and casts: values pass unchanged but for their dtype.

use crate::call::{Call, Outputs};
use crate::error::LoweringError;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::clone", cast).composite(),
    OpDef::new("aten::copy", copy).composite(),
    OpDef::new("aten::copy_", copy).composite(),
    OpDef::new("aten::lift_fresh", cast).composite(),
    OpDef::new("aten::_to_copy", cast).composite(),
    OpDef::new("prims::clone", cast).composite(),
    OpDef::new("prims::convert_element_type", cast).composite(),
    OpDef::new("prims::copy_to", copy).composite(),
    OpDef::new("prims::device_put", cast).composite(),
];

fn cast(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dtype = c.out(0)?.dtype;
    Ok(c.value(&x, dtype)?.into())
}

/// aten::copy(self, src, non_blocking): src in self's dtype and sizes.
fn copy(c: &mut Call<'_>) -> Result<Outputs> {
    let source = c.tensor(1)?;
    let out = c.out(0)?.clone();
    Ok(c.broadcast(&source, out.dtype, &out.sizes)?.into())
}
