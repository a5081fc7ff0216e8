//! Assertions that the host does not wait for.

use crate::call::{Call, Outputs};
use crate::error::{CheckKind, LoweringError};
use crate::registry::OpDef;

pub const OPS: &[OpDef] =
    &[OpDef::new("aten::_assert_async", assert_async), OpDef::new("aten::_assert_async.msg", assert_async)];

/// aten::_assert_async(self[, assert_msg])
fn assert_async(c: &mut Call<'_>) -> Result<Outputs, LoweringError> {
    let x = c.tensor(0)?;
    if x.numel() != 1 {
        let values = if x.numel() == 0 { "no values" } else { "more than one value" };
        return Err(LoweringError::invalid(format!("Boolean value of Tensor with {values} is ambiguous")));
    }
    let message = if c.args().len() > 1 {
        c.str(1)?
    } else {
        "Expected Tensor with single nonzero value, but got zero"
    };
    let message = message.to_owned();
    c.check_nonzero(&x, x.dtype, CheckKind::Runtime, &message)?;
    Ok(Outputs::default())
}
