//! Numbers on the host as bytes of a dtype, converted as PyTorch converts scalars.

use half::{bf16, f16};
use ops::{DType, Number};
use smallvec::SmallVec;

pub type Bytes = SmallVec<[u8; 16]>;

/// The element's bytes. Integers wrap as C casts do; floats round to nearest even.
pub fn encode(number: Number, dtype: DType) -> Bytes {
    let int = || match number {
        Number::Bool(b) => i64::from(b),
        Number::Int(i) => i,
        // Truncation toward zero; out-of-range values saturate and NaN is 0.
        Number::Float(f) | Number::Complex(f, _) => f as i64,
    };
    let float = || match number {
        Number::Bool(b) => f64::from(u8::from(b)),
        Number::Int(i) => i as f64,
        Number::Float(f) | Number::Complex(f, _) => f,
    };
    // An integer goes to float32 in one rounding, not through float64.
    let float32 = || match number {
        Number::Int(i) => i as f32,
        _ => float() as f32,
    };
    let imaginary = match number {
        Number::Complex(_, im) => im,
        _ => 0.0,
    };
    let truth = match number {
        Number::Bool(b) => b,
        Number::Int(i) => i != 0,
        Number::Float(f) => f != 0.0,
        Number::Complex(re, im) => re != 0.0 || im != 0.0,
    };
    match dtype {
        DType::UInt8 | DType::Int8 => Bytes::from_slice(&[int() as u8]),
        DType::Int16 | DType::UInt16 => Bytes::from_slice(&(int() as u16).to_le_bytes()),
        DType::Int32 | DType::UInt32 => Bytes::from_slice(&(int() as u32).to_le_bytes()),
        DType::Int64 => Bytes::from_slice(&int().to_le_bytes()),
        DType::UInt64 => {
            let bits = match number {
                Number::Float(f) if f >= 0.0 => f as u64,
                _ => int() as u64,
            };
            Bytes::from_slice(&bits.to_le_bytes())
        }
        DType::Float16 => Bytes::from_slice(&f16::from_f32(float32()).to_le_bytes()),
        DType::BFloat16 => Bytes::from_slice(&bf16::from_f32(float32()).to_le_bytes()),
        DType::Float32 => Bytes::from_slice(&float32().to_le_bytes()),
        DType::Float64 => Bytes::from_slice(&float().to_le_bytes()),
        DType::Complex64 => {
            let mut bytes = Bytes::from_slice(&float32().to_le_bytes());
            bytes.extend_from_slice(&(imaginary as f32).to_le_bytes());
            bytes
        }
        DType::Complex128 => {
            let mut bytes = Bytes::from_slice(&float().to_le_bytes());
            bytes.extend_from_slice(&imaginary.to_le_bytes());
            bytes
        }
        DType::Bool => Bytes::from_slice(&[u8::from(truth)]),
        // Scalars never reach these dtypes as operands: lowerings compute in float32 and convert on the device.
        DType::Float8E5M2 | DType::Float8E4M3FN | DType::Float8E5M2FNUZ | DType::Float8E4M3FNUZ => {
            Bytes::from_slice(&[0])
        }
    }
}

/// Bits of an element of at most 8 bytes.
pub fn cache_key(bytes: &[u8]) -> Option<u64> {
    let mut bits = [0; 8];
    bits.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_follow_pytorch() {
        assert_eq!(encode(Number::Float(1.5), DType::Float32)[..], 1.5f32.to_le_bytes());
        assert_eq!(encode(Number::Int(-1), DType::UInt8)[..], [255]);
        assert_eq!(encode(Number::Float(-1.9), DType::Int64)[..], (-1i64).to_le_bytes());
        assert_eq!(encode(Number::Int(16_777_217), DType::Float32)[..], 16_777_216f32.to_le_bytes());
        assert_eq!(encode(Number::Bool(true), DType::BFloat16)[..], bf16::ONE.to_le_bytes());
        assert_eq!(encode(Number::Complex(1.0, 2.0), DType::Complex64).len(), 8);
        assert_eq!(encode(Number::Float(f64::NAN), DType::Bool)[..], [1]);
    }
}
