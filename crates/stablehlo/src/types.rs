use smallvec::SmallVec;
use std::fmt;

/// Dimension sizes or dimension numbers; six fit without an allocation.
pub type Dims = SmallVec<[i64; 6]>;

/// Element types of StableHLO that XLA accepts in program text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum ElementType {
    Pred,
    S4,
    S8,
    S16,
    S32,
    S64,
    U4,
    U8,
    U16,
    U32,
    U64,
    F8E5M2,
    F8E4M3FN,
    F8E5M2FNUZ,
    F8E4M3FNUZ,
    F16,
    BF16,
    F32,
    F64,
    C64,
    C128,
}

use ElementType::*;

impl ElementType {
    pub const ALL: [ElementType; 21] = [
        Pred, S4, S8, S16, S32, S64, U4, U8, U16, U32, U64, F8E5M2, F8E4M3FN, F8E5M2FNUZ, F8E4M3FNUZ, F16,
        BF16, F32, F64, C64, C128,
    ];

    /// The name in MLIR text, for example `i1`, `ui8` or `complex<f32>`.
    pub const fn mlir(self) -> &'static str {
        match self {
            Pred => "i1",
            S4 => "i4",
            S8 => "i8",
            S16 => "i16",
            S32 => "i32",
            S64 => "i64",
            U4 => "ui4",
            U8 => "ui8",
            U16 => "ui16",
            U32 => "ui32",
            U64 => "ui64",
            F8E5M2 => "f8E5M2",
            F8E4M3FN => "f8E4M3FN",
            F8E5M2FNUZ => "f8E5M2FNUZ",
            F8E4M3FNUZ => "f8E4M3FNUZ",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
            F64 => "f64",
            C64 => "complex<f32>",
            C128 => "complex<f64>",
        }
    }

    /// Width in bits as the StableHLO specification counts it: `Pred` has 1, `C64` has 64.
    pub const fn size_bits(self) -> u32 {
        match self {
            Pred => 1,
            S4 | U4 => 4,
            S8 | U8 | F8E5M2 | F8E4M3FN | F8E5M2FNUZ | F8E4M3FNUZ => 8,
            S16 | U16 | F16 | BF16 => 16,
            S32 | U32 | F32 => 32,
            S64 | U64 | F64 | C64 => 64,
            C128 => 128,
        }
    }

    /// Bytes per element in host memory; 4-bit integers and `Pred` take one byte each.
    pub const fn size_bytes(self) -> usize {
        (self.size_bits() as usize).div_ceil(8)
    }

    pub const fn is_float(self) -> bool {
        matches!(self, F8E5M2 | F8E4M3FN | F8E5M2FNUZ | F8E4M3FNUZ | F16 | BF16 | F32 | F64)
    }

    /// Signed or unsigned integers; `Pred` is not one.
    pub const fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }

    pub const fn is_signed_int(self) -> bool {
        matches!(self, S4 | S8 | S16 | S32 | S64)
    }

    pub const fn is_unsigned_int(self) -> bool {
        matches!(self, U4 | U8 | U16 | U32 | U64)
    }

    /// True for every type with negative values: signed integers, floats and complex numbers.
    pub const fn is_signed(self) -> bool {
        self.is_signed_int() || self.is_float() || self.is_complex()
    }

    pub const fn is_complex(self) -> bool {
        matches!(self, C64 | C128)
    }

    pub const fn is_pred(self) -> bool {
        matches!(self, Pred)
    }

    /// The type of the real and imaginary parts of a complex type; any other type is its own part.
    pub const fn real_part(self) -> ElementType {
        match self {
            C64 => F32,
            C128 => F64,
            other => other,
        }
    }

    /// The complex type whose parts are `self`, which must be `F32` or `F64`.
    pub const fn to_complex(self) -> Option<ElementType> {
        match self {
            F32 => Some(C64),
            F64 => Some(C128),
            _ => None,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mlir())
    }
}

/// A ranked tensor type with static dimensions. `Display` gives the MLIR form, `tensor<2x3xf32>`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    pub dims: Dims,
    pub elem: ElementType,
}

impl TensorType {
    pub fn new(elem: ElementType, dims: &[i64]) -> Self {
        TensorType { dims: Dims::from_slice(dims), elem }
    }

    pub fn scalar(elem: ElementType) -> Self {
        TensorType { dims: Dims::new(), elem }
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Product of the dimensions, or `None` if a dimension is negative or the product exceeds `i64`.
    pub fn element_count(&self) -> Option<i64> {
        // A zero dimension makes the tensor empty however large the others are.
        if self.dims.iter().any(|&d| d < 0) {
            return None;
        }
        if self.dims.contains(&0) {
            return Some(0);
        }
        self.dims.iter().try_fold(1i64, |n, &d| n.checked_mul(d))
    }

    /// The same dimensions with another element type.
    pub fn with_elem(&self, elem: ElementType) -> Self {
        TensorType { dims: self.dims.clone(), elem }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for d in &self.dims {
            write!(f, "{d}x")?;
        }
        write!(f, "{}>", self.elem)
    }
}
