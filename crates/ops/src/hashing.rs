//! A hash of elements: their bits as 64-bit numbers, combined by exclusive or.

use stablehlo::ElementType;

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::reductions::reduced_dims;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[OpDef::new("aten::hash_tensor", hash_tensor)];

/// aten::hash_tensor(self, dim=[], *, keepdim=False, mode=0): floats are widened to float64, integers to int64.
fn hash_tensor(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.clone();
    if x.dtype.is_complex() {
        return Err(LoweringError::unsupported(format!("hash_tensor of {}", x.dtype)));
    }
    if c.int(3)? != 0 {
        return Err(LoweringError::invalid(format!("Unknown hash_tensor mode: {}", c.int(3)?)));
    }
    let dims = reduced_dims(c, Some(1), x.rank())?;
    let value = c.value(&x, if x.dtype.is_float() { DType::Float64 } else { DType::Int64 })?;
    let bits = c.b.bitcast_convert(value, ElementType::U64)?;
    let zero = c.b.zero(ElementType::U64)?;
    let hash = c.b.reduce(&[bits], &[zero], &dims, |b, args| Ok(vec![b.xor(args[0], args[1])?]))?;
    Ok(c.b.reshape(hash[0], &out.sizes)?.into())
}
