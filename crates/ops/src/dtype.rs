//! PyTorch's scalar types and their StableHLO element types.

use std::fmt;

use serde::{Deserialize, Serialize};
use stablehlo::ElementType;

/// `c10::ScalarType`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(i8)]
pub enum DType {
    UInt8 = 0,
    Int8 = 1,
    Int16 = 2,
    Int32 = 3,
    Int64 = 4,
    Float16 = 5,
    Float32 = 6,
    Float64 = 7,
    Complex64 = 9,
    Complex128 = 10,
    Bool = 11,
    BFloat16 = 15,
    Float8E5M2 = 23,
    Float8E4M3FN = 24,
    Float8E5M2FNUZ = 25,
    Float8E4M3FNUZ = 26,
    UInt16 = 27,
    UInt32 = 28,
    UInt64 = 29,
}

use DType::*;

/// What type promotion orders first: any float beats any integer, whatever their widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    Bool,
    Int,
    Float,
    Complex,
}

impl DType {
    pub const ALL: [DType; 19] = [
        UInt8,
        Int8,
        Int16,
        Int32,
        Int64,
        Float16,
        Float32,
        Float64,
        Complex64,
        Complex128,
        Bool,
        BFloat16,
        Float8E5M2,
        Float8E4M3FN,
        Float8E5M2FNUZ,
        Float8E4M3FNUZ,
        UInt16,
        UInt32,
        UInt64,
    ];

    /// From a `c10::ScalarType` number; `None` for types that no device program handles (quantized, bits, ...).
    pub fn from_c10(number: i8) -> Option<DType> {
        Self::ALL.into_iter().find(|dtype| dtype.to_c10() == number)
    }

    pub const fn to_c10(self) -> i8 {
        self as i8
    }

    /// PyTorch's name without the `torch.` prefix.
    pub const fn name(self) -> &'static str {
        match self {
            UInt8 => "uint8",
            Int8 => "int8",
            Int16 => "int16",
            Int32 => "int32",
            Int64 => "int64",
            Float16 => "float16",
            Float32 => "float32",
            Float64 => "float64",
            Complex64 => "complex64",
            Complex128 => "complex128",
            Bool => "bool",
            BFloat16 => "bfloat16",
            Float8E5M2 => "float8_e5m2",
            Float8E4M3FN => "float8_e4m3fn",
            Float8E5M2FNUZ => "float8_e5m2fnuz",
            Float8E4M3FNUZ => "float8_e4m3fnuz",
            UInt16 => "uint16",
            UInt32 => "uint32",
            UInt64 => "uint64",
        }
    }

    /// The name that messages of PyTorch's C++ have.
    pub const fn name_in_cpp(self) -> &'static str {
        match self {
            UInt8 => "Byte",
            Int8 => "Char",
            Int16 => "Short",
            Int32 => "Int",
            Int64 => "Long",
            Float16 => "Half",
            Float32 => "Float",
            Float64 => "Double",
            Complex64 => "ComplexFloat",
            Complex128 => "ComplexDouble",
            Bool => "Bool",
            BFloat16 => "BFloat16",
            Float8E5M2 => "Float8_e5m2",
            Float8E4M3FN => "Float8_e4m3fn",
            Float8E5M2FNUZ => "Float8_e5m2fnuz",
            Float8E4M3FNUZ => "Float8_e4m3fnuz",
            UInt16 => "UInt16",
            UInt32 => "UInt32",
            UInt64 => "UInt64",
        }
    }

    /// Bytes of one element in host memory.
    pub const fn size(self) -> usize {
        match self {
            UInt8 | Int8 | Bool | Float8E5M2 | Float8E4M3FN | Float8E5M2FNUZ | Float8E4M3FNUZ => 1,
            Int16 | Float16 | BFloat16 | UInt16 => 2,
            Int32 | Float32 | UInt32 => 4,
            Int64 | Float64 | Complex64 | UInt64 => 8,
            Complex128 => 16,
        }
    }

    pub const fn element_type(self) -> ElementType {
        match self {
            UInt8 => ElementType::U8,
            Int8 => ElementType::S8,
            Int16 => ElementType::S16,
            Int32 => ElementType::S32,
            Int64 => ElementType::S64,
            Float16 => ElementType::F16,
            Float32 => ElementType::F32,
            Float64 => ElementType::F64,
            Complex64 => ElementType::C64,
            Complex128 => ElementType::C128,
            Bool => ElementType::Pred,
            BFloat16 => ElementType::BF16,
            Float8E5M2 => ElementType::F8E5M2,
            Float8E4M3FN => ElementType::F8E4M3FN,
            Float8E5M2FNUZ => ElementType::F8E5M2FNUZ,
            Float8E4M3FNUZ => ElementType::F8E4M3FNUZ,
            UInt16 => ElementType::U16,
            UInt32 => ElementType::U32,
            UInt64 => ElementType::U64,
        }
    }

    pub fn from_element_type(elem: ElementType) -> Option<DType> {
        Self::ALL.into_iter().find(|dtype| dtype.element_type() == elem)
    }

    pub const fn category(self) -> Category {
        match self {
            Bool => Category::Bool,
            UInt8 | Int8 | Int16 | Int32 | Int64 | UInt16 | UInt32 | UInt64 => Category::Int,
            Complex64 | Complex128 => Category::Complex,
            _ => Category::Float,
        }
    }

    pub const fn is_bool(self) -> bool {
        matches!(self, Bool)
    }

    pub const fn is_float(self) -> bool {
        matches!(self.category(), Category::Float)
    }

    pub const fn is_complex(self) -> bool {
        matches!(self.category(), Category::Complex)
    }

    /// `c10::isIntegralType(dtype, includeBool)`
    pub const fn is_integral(self, include_bool: bool) -> bool {
        match self.category() {
            Category::Int => true,
            Category::Bool => include_bool,
            _ => false,
        }
    }

    pub const fn is_unsigned(self) -> bool {
        matches!(self, UInt8 | UInt16 | UInt32 | UInt64 | Bool)
    }

    /// `c10::isBarebonesUnsignedType`: types without full arithmetic in PyTorch.
    pub const fn is_barebones_unsigned(self) -> bool {
        matches!(self, UInt16 | UInt32 | UInt64)
    }

    pub const fn is_float8(self) -> bool {
        matches!(self, Float8E5M2 | Float8E4M3FN | Float8E5M2FNUZ | Float8E4M3FNUZ)
    }

    pub const fn is_reduced_float(self) -> bool {
        matches!(self, Float16 | BFloat16) || self.is_float8()
    }

    /// The type in which CPU kernels compute on elements of this type (`at::opmath_type`).
    pub const fn opmath(self) -> DType {
        if self.is_reduced_float() { Float32 } else { self }
    }

    /// The real type of a complex type's parts (`c10::toRealValueType`); other types unchanged.
    pub const fn real(self) -> DType {
        match self {
            Complex64 => Float32,
            Complex128 => Float64,
            other => other,
        }
    }

    /// `c10::toComplexType` for the float types that have one among ours.
    pub const fn complex(self) -> Option<DType> {
        match self {
            Float32 | Complex64 => Some(Complex64),
            Float64 | Complex128 => Some(Complex128),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_element_types_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_c10(dtype.to_c10()), Some(dtype));
            assert_eq!(DType::from_element_type(dtype.element_type()), Some(dtype));
        }
        assert_eq!(DType::from_c10(8), None);
        assert_eq!(DType::from_c10(-1), None);
    }
}
