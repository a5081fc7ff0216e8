//! Counts of elements in bins of equal width.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::{Expr, formula, formulas};
use crate::graph::Number;
use crate::indices::{Combine, put};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[OpDef::new("aten::histc", histc)];

/// aten::histc(self, bins=100, min=0, max=0); integers as on CUDA, the CPU has none.
fn histc(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, bins) = (c.tensor(0)?, c.int(1)?);
    let out = c.out(0)?.clone();
    if x.dtype.is_bool() || x.dtype.is_complex() {
        return Err(LoweringError::unsupported(format!("histc of {}", x.dtype)));
    }
    // Integers are scaled as int64; half types round after each operation.
    let dtype = if x.dtype.is_float() { x.dtype.opmath() } else { DType::Int64 };
    let own = if x.dtype.is_float() { x.dtype } else { dtype };
    let (low, high) = (c.scalar(2, own)?, c.scalar(3, own)?);
    let (low, high) = (c.convert(low, dtype)?, c.convert(high, dtype)?);
    let reversed = formula(c.b, [low, high], |[low, high]| high.lt(low))?;
    c.check(reversed, CheckKind::Runtime, "torch.histc: max must be larger than min");
    let count = x.numel();
    let value = c.value(&x, dtype)?;
    let value = c.b.reshape(value, &[count])?;
    let (low, high) = range(c.b, value, low, high)?;
    if x.dtype.is_float() {
        let infinite = formula(c.b, [low, high], |[low, high]| {
            low.is_nan() | low.is_inf() | high.is_nan() | high.is_inf()
        })?;
        c.check(infinite, CheckKind::Runtime, "torch.histc: range of [min, max] is not finite");
    }
    let low = c.b.broadcast_scalar(low, &[count])?;
    let high = c.b.broadcast_scalar(high, &[count])?;
    let [position, inside] = formulas(c.b, [value, low, high], |[value, low, high]| {
        let round = |value| Expr::round_to(value, x.dtype);
        let scaled = round(round(value - low) * round(value.splat_int(bins)));
        [round(scaled / round(high - low)), value.ge(low) & value.le(high)]
    })?;
    let index = c.convert(position, DType::Int32)?;
    let index = formula(c.b, [index], |[i]| i.max(i.splat_int(0)).min(i.splat_int(bins - 1)))?;
    let ones = c.convert(inside, DType::Int32)?;
    let zeros = c.full(Number::Int(0), DType::Int32, &[bins])?;
    let counts = put(c.b, zeros, 0, index, ones, Combine::Add)?;
    Ok(c.convert(counts, out.dtype)?.into())
}

/// The limits as given; those of the data where they are equal; one apart where those are equal, too.
fn range(b: &mut Builder, x: Value, low: Value, high: Value) -> Result<(Value, Value)> {
    let (mut least, mut greatest) = (low, high);
    if b.dims(x)[0] > 0 {
        (least, greatest) = (b.reduce_min(x, &[0])?, b.reduce_max(x, &[0])?);
    }
    let one = convert::splat(b, low, Number::Int(1))?;
    let [low, high] = formulas(b, [low, high, least, greatest, one], |[low, high, least, greatest, one]| {
        let given = low.ne(high);
        let (low, high) = (given.select(low, least), given.select(high, greatest));
        let apart = low.ne(high);
        [apart.select(low, low - one), apart.select(high, high + one)]
    })?;
    Ok((low, high))
}
