//! A number as mantissa and power of two.

use stablehlo::Builder;

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formulas;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[OpDef::new("aten::frexp.Tensor", frexp)];

/// (mantissa in [0.5, 1), exponent); zeros, infinities and NaN are their own mantissas. On bit patterns: arithmetic may
/// take subnormal numbers for zeros.
fn frexp(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    if !x.dtype.is_float() {
        return Err(LoweringError::invalid("torch.frexp() only supports floating-point dtypes"));
    }
    let (dtype, bits, fraction_bits, bias) = match x.dtype {
        DType::Float64 => (DType::Float64, DType::Int64, 52, 1022),
        _ => (DType::Float32, DType::Int32, 23, 126),
    };
    let width = 8 * bits.size() as i64;
    let fraction = (1i64 << fraction_bits) - 1;
    let largest = 2 * bias + 3;
    let value = c.value(&x, dtype)?;
    let value = c.b.bitcast_convert(value, bits.element_type())?;
    let [mantissa, exponent] = formulas(c.b, [value], |[x]| {
        let int = |number| x.splat_int(number);
        let magnitude = x & int(i64::MAX >> (64 - width));
        let sign = x - magnitude;
        let field = magnitude.apply2(int(fraction_bits), Builder::shift_right_logical);
        let own = magnitude & int(fraction);
        // A subnormal's leading one moves to where normal numbers have theirs, which is not stored.
        let shift = magnitude.apply(Builder::count_leading_zeros) - int(width - 1 - fraction_bits);
        let is_subnormal = field.eq(int(0));
        let safe = shift.max(int(0));
        let moved = magnitude.apply2(safe, Builder::shift_left) & int(fraction);
        let own = is_subnormal.select(moved, own);
        let exponent = is_subnormal.select(int(1 - bias) - shift, field - int(bias));
        let is_own = magnitude.eq(int(0)) | field.eq(int(largest));
        let mantissa = sign + int(bias << fraction_bits) + own;
        [is_own.select(x, mantissa), is_own.select(int(0), exponent)]
    })?;
    let mantissa = c.b.bitcast_convert(mantissa, dtype.element_type())?;
    Ok([c.convert(mantissa, x.dtype)?, c.convert(exponent, DType::Int32)?].into())
}
