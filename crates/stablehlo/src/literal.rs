//! Scalar literals and their exact MLIR spelling.

use crate::{ElementType, Error, Result};

/// A scalar value before it is given an element type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Literal {
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Complex(f64, f64),
}

macro_rules! literal_from {
    ($($ty:ty => $variant:ident),+) => {
        $(impl From<$ty> for Literal {
            fn from(v: $ty) -> Self { Literal::$variant(v.into()) }
        })+
    };
}
literal_from!(bool => Bool, i32 => I64, i64 => I64, u32 => U64, u64 => U64, f32 => F64, f64 => F64);

impl From<(f64, f64)> for Literal {
    fn from((re, im): (f64, f64)) -> Self {
        Literal::Complex(re, im)
    }
}

/// What an exponent of all ones means in a float format.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// Infinities and NaNs, as IEEE 754 has them.
    Ieee,
    /// No infinity; only the all-ones pattern is NaN (the FN formats).
    NanOnly,
    /// No infinity and no negative zero, whose pattern is the only NaN (the FNUZ formats).
    NegativeZeroNan,
}

#[derive(Clone, Copy)]
struct Format {
    bits: u32,
    mantissa: u32,
    bias: i32,
    special: Special,
}

const fn format(elem: ElementType) -> Option<Format> {
    use ElementType::*;
    let (bits, mantissa, bias, special) = match elem {
        F8E5M2 => (8, 2, 15, Special::Ieee),
        F8E4M3FN => (8, 3, 7, Special::NanOnly),
        F8E5M2FNUZ => (8, 2, 16, Special::NegativeZeroNan),
        F8E4M3FNUZ => (8, 3, 8, Special::NegativeZeroNan),
        F16 => (16, 10, 15, Special::Ieee),
        BF16 => (16, 7, 127, Special::Ieee),
        F32 => (32, 23, 127, Special::Ieee),
        F64 => (64, 52, 1023, Special::Ieee),
        _ => return None,
    };
    Some(Format { bits, mantissa, bias, special })
}

/// The bits of `v` rounded to nearest, ties to even. Values beyond the largest finite one become
/// infinity, or NaN in formats without infinity. `None` if `elem` is not a float type.
pub(crate) fn float_bits(elem: ElementType, v: f64) -> Option<u64> {
    let f = format(elem)?;
    if elem == ElementType::F64 {
        return Some(v.to_bits());
    }
    let sign = (v.is_sign_negative() as u64) << (f.bits - 1);
    let exponent_max = (1u64 << (f.bits - 1 - f.mantissa)) - 1;
    let nan = match f.special {
        Special::Ieee => sign | exponent_max << f.mantissa | 1 << (f.mantissa - 1),
        Special::NanOnly => sign | ((1 << (f.bits - 1)) - 1),
        Special::NegativeZeroNan => 1 << (f.bits - 1),
    };
    if v.is_nan() {
        return Some(nan);
    }
    let overflow = if f.special == Special::Ieee { sign | exponent_max << f.mantissa } else { nan };
    // The largest finite magnitude, as bits.
    let largest = match f.special {
        Special::Ieee => (exponent_max << f.mantissa) - 1,
        Special::NanOnly => (1 << (f.bits - 1)) - 2,
        Special::NegativeZeroNan => (1 << (f.bits - 1)) - 1,
    };
    if v.is_infinite() {
        return Some(overflow);
    }
    if v == 0.0 {
        return Some(if f.special == Special::NegativeZeroNan { 0 } else { sign });
    }
    let raw = v.abs().to_bits();
    // f64 subnormals are far below half of the smallest value of every narrower format.
    let exponent = (raw >> 52) as i32 - 1023;
    let significand = (raw & ((1 << 52) - 1)) | 1 << 52;
    let minimum = 1 - f.bias;
    // Bits to drop so that what is left counts units of the format's last place.
    let drop = 52 - f.mantissa as i32 + (minimum - exponent).max(0);
    let rounded = if drop > 60 {
        0
    } else {
        let (kept, rest, half) = (significand >> drop, significand & ((1 << drop) - 1), 1u64 << (drop - 1));
        kept + (rest > half || (rest == half && kept & 1 == 1)) as u64
    };
    // For a normal number the leading bit adds one to the exponent field, and so does a carry.
    let field = (exponent.max(minimum) + f.bias - 1) as u64;
    let magnitude = (field << f.mantissa) + rounded;
    Some(if magnitude > largest {
        overflow
    } else if magnitude == 0 && f.special == Special::NegativeZeroNan {
        0
    } else {
        sign | magnitude
    })
}

/// The value of a bit pattern of float type `elem`, exact in f64.
pub(crate) fn float_value(elem: ElementType, bits: u64) -> Option<f64> {
    let f = format(elem)?;
    if elem == ElementType::F64 {
        return Some(f64::from_bits(bits));
    }
    let negative = bits >> (f.bits - 1) & 1 == 1;
    let magnitude = bits & ((1 << (f.bits - 1)) - 1);
    let exponent_max = (1u64 << (f.bits - 1 - f.mantissa)) - 1;
    let (field, fraction) = (magnitude >> f.mantissa, magnitude & ((1 << f.mantissa) - 1));
    let special = match f.special {
        Special::Ieee if field == exponent_max => Some(if fraction == 0 { f64::INFINITY } else { f64::NAN }),
        Special::NanOnly if magnitude == (1 << (f.bits - 1)) - 1 => Some(f64::NAN),
        Special::NegativeZeroNan if negative && magnitude == 0 => return Some(f64::NAN),
        _ => None,
    };
    let absolute = special.unwrap_or_else(|| {
        let (significand, exponent) = match field {
            0 => (fraction, 1 - f.bias),
            _ => (fraction | 1 << f.mantissa, field as i32 - f.bias),
        };
        significand as f64 * 2f64.powi(exponent - f.mantissa as i32)
    });
    Some(if negative { -absolute } else { absolute })
}

/// `v` as f64 rounded to odd, so that a second rounding to fewer than 52 bits is correct.
fn round_to_odd(v: i128) -> f64 {
    let nearest = v as f64;
    let exact = nearest as i128;
    if exact == v || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    // The odd neighbour on the side of the true value.
    let away = (exact < v) == (nearest > 0.0);
    f64::from_bits(if away { nearest.to_bits() + 1 } else { nearest.to_bits() - 1 })
}

/// MLIR text of a float given by its bits: decimal where that is exact, else the bit pattern.
pub(crate) fn float_text(elem: ElementType, bits: u64) -> String {
    let width = elem.size_bits() as usize / 4;
    match float_value(elem, bits) {
        // MLIR reads decimals as f64 and rounds, which is exact for a value of the format; -0.0 and
        // f64 subnormals are left to the hexadecimal form.
        Some(v) if v.is_normal() || bits == 0 => {
            let text = format!("{v:?}");
            match text.split_once('e') {
                Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
                _ => text,
            }
        }
        _ => format!("0x{bits:0width$X}"),
    }
}

/// The range of an integer type.
pub(crate) fn integer_range(elem: ElementType) -> Option<(i128, i128)> {
    let bits = elem.size_bits();
    match elem {
        e if e.is_signed_int() => Some((-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)),
        e if e.is_unsigned_int() => Some((0, (1i128 << bits) - 1)),
        ElementType::Pred => Some((0, 1)),
        _ => None,
    }
}

/// The text of `literal` as an element of type `elem`. Floats are rounded to nearest even; integers
/// and booleans must be exact.
pub(crate) fn literal_text(elem: ElementType, literal: Literal) -> Result<String> {
    let refuse = |rule| Err(Error::Constant { elem, value: format!("{literal:?}"), rule });
    if elem.is_complex() {
        let (re, im) = match literal {
            Literal::Complex(re, im) => (Literal::F64(re), Literal::F64(im)),
            real => (real, Literal::F64(0.0)),
        };
        let part = elem.real_part();
        return Ok(format!("({}, {})", literal_text(part, re)?, literal_text(part, im)?));
    }
    let integer = match literal {
        Literal::Bool(b) => b as i128,
        Literal::I64(n) => n as i128,
        Literal::U64(n) => n as i128,
        Literal::F64(v) => {
            if let Some(bits) = float_bits(elem, v) {
                return Ok(float_text(elem, bits));
            }
            if v.fract() != 0.0 || v.abs() >= 2f64.powi(100) {
                return refuse("it is not an integer in range");
            }
            v as i128
        }
        Literal::Complex(..) => return refuse("it is complex"),
    };
    if elem == ElementType::F64 {
        return Ok(float_text(elem, (integer as f64).to_bits()));
    }
    if let Some(bits) = float_bits(elem, round_to_odd(integer)) {
        return Ok(float_text(elem, bits));
    }
    match integer_range(elem) {
        Some((low, high)) if (low..=high).contains(&integer) => Ok(match elem {
            ElementType::Pred => (integer == 1).to_string(),
            _ => integer.to_string(),
        }),
        _ => refuse("it is out of range"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ElementType::*;

    const NARROW: [ElementType; 6] = [F8E5M2, F8E4M3FN, F8E5M2FNUZ, F8E4M3FNUZ, F16, BF16];

    #[test]
    fn every_narrow_pattern_survives() {
        for elem in NARROW {
            for bits in 0..1u64 << elem.size_bits() {
                let value = float_value(elem, bits).unwrap();
                if !value.is_nan() {
                    assert_eq!(float_bits(elem, value), Some(bits), "{elem} {bits:#x} {value:e}");
                }
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_others_to_the_nearest() {
        for elem in NARROW {
            for bits in 0..(1u64 << (elem.size_bits() - 1)) - 1 {
                let (a, b) = (float_value(elem, bits).unwrap(), float_value(elem, bits + 1).unwrap());
                if !a.is_finite() || !b.is_finite() {
                    continue;
                }
                let middle = (a + b) / 2.0;
                assert_eq!(float_bits(elem, middle), Some(bits + (bits & 1)), "{elem} {middle:e}");
                assert_eq!(float_bits(elem, f64::from_bits(middle.to_bits() - 1)), Some(bits));
                assert_eq!(float_bits(elem, f64::from_bits(middle.to_bits() + 1)), Some(bits + 1));
            }
        }
    }

    #[test]
    fn f32_agrees_with_the_processor() {
        let mut state = 1u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Exponents around those of f32, its subnormals and overflow included.
            let v = f64::from_bits(state & !(0x7ff << 52) | (850 + state % 320) << 52);
            assert_eq!(float_bits(F32, v), Some((v as f32).to_bits() as u64), "{v:e}");
            let n = state as i64;
            assert_eq!(float_bits(F32, round_to_odd(n as i128)), Some((n as f32).to_bits() as u64), "{n}");
        }
    }

    #[test]
    fn overflow_and_nan_follow_the_format() {
        assert_eq!(float_bits(F8E4M3FN, 448.0), Some(0x7e));
        assert_eq!(float_bits(F8E4M3FN, 464.0), Some(0x7e)); // a tie with 480, which is NaN's place
        assert_eq!(float_bits(F8E4M3FN, 465.0), Some(0x7f));
        assert_eq!(float_bits(F8E4M3FNUZ, f64::NAN), Some(0x80));
        assert_eq!(float_bits(F8E4M3FNUZ, -0.0), Some(0));
        assert_eq!(float_bits(F8E5M2, 1e9), Some(0x7c));
        assert_eq!(float_bits(F16, 65520.0), Some(0x7c00));
        assert_eq!(float_bits(F16, 65519.0), Some(0x7bff));
        assert_eq!(float_bits(BF16, f64::NAN), Some(0x7fc0));
        assert_eq!(float_bits(F32, 1e-60), Some(0));
    }

    #[test]
    fn text_is_decimal_where_that_is_exact() {
        let text = |elem, v: f64| literal_text(elem, Literal::F64(v)).unwrap();
        assert_eq!(text(F32, 1.0), "1.0");
        assert_eq!(text(F32, 1e20), "1.0000000200408773e20");
        assert_eq!(text(F64, 1e300), "1.0e300");
        assert_eq!(text(F64, 5e-324), "0x0000000000000001");
        assert_eq!(text(F32, -0.0), "0x80000000");
        assert_eq!(text(F16, f64::NEG_INFINITY), "0xFC00");
        assert_eq!(text(C64, 2.0), "(2.0, 0.0)");
        assert_eq!(text(S32, 3.0), "3");
        assert_eq!(text(Pred, 1.0), "true");
    }
}
