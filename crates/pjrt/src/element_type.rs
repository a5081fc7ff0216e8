//! Element types of PJRT buffers.

use crate::error::{Error, Result};

/// `PJRT_Buffer_Type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum ElementType {
    Pred = 1,
    S8 = 2,
    S16 = 3,
    S32 = 4,
    S64 = 5,
    U8 = 6,
    U16 = 7,
    U32 = 8,
    U64 = 9,
    F16 = 10,
    F32 = 11,
    F64 = 12,
    BF16 = 13,
    C64 = 14,
    C128 = 15,
    F8E5M2 = 16,
    F8E4M3FN = 17,
    F8E4M3B11FNUZ = 18,
    F8E5M2FNUZ = 19,
    F8E4M3FNUZ = 20,
    S4 = 21,
    U4 = 22,
    Token = 23,
    S2 = 24,
    U2 = 25,
    F8E4M3 = 26,
    F8E3M4 = 27,
    F8E8M0FNU = 28,
    F4E2M1FN = 29,
}

impl ElementType {
    pub const ALL: [ElementType; 29] = {
        use ElementType::*;
        [
            Pred,
            S8,
            S16,
            S32,
            S64,
            U8,
            U16,
            U32,
            U64,
            F16,
            F32,
            F64,
            BF16,
            C64,
            C128,
            F8E5M2,
            F8E4M3FN,
            F8E4M3B11FNUZ,
            F8E5M2FNUZ,
            F8E4M3FNUZ,
            S4,
            U4,
            Token,
            S2,
            U2,
            F8E4M3,
            F8E3M4,
            F8E8M0FNU,
            F4E2M1FN,
        ]
    };

    pub fn from_raw(raw: u32) -> Result<ElementType> {
        (raw as usize)
            .checked_sub(1)
            .and_then(|i| Self::ALL.get(i))
            .copied()
            .ok_or(Error::ElementType { raw })
    }

    /// Significant bits of one element. On the host an element of fewer than 8 bits fills a byte.
    pub fn size_bits(self) -> usize {
        use ElementType::*;
        match self {
            Token => 0,
            S2 | U2 => 2,
            S4 | U4 | F4E2M1FN => 4,
            Pred | S8 | U8 | F8E5M2 | F8E4M3FN | F8E4M3B11FNUZ | F8E5M2FNUZ | F8E4M3FNUZ | F8E4M3
            | F8E3M4 | F8E8M0FNU => 8,
            S16 | U16 | F16 | BF16 => 16,
            S32 | U32 | F32 => 32,
            S64 | U64 | F64 | C64 => 64,
            C128 => 128,
        }
    }

    /// Bytes that one element takes in host memory.
    pub fn host_bytes(self) -> usize {
        self.size_bits().div_ceil(8)
    }

    /// Bytes of a dense host array of these dimensions.
    pub fn dense_bytes(self, dims: &[i64]) -> Result<usize> {
        let mut bytes = self.host_bytes();
        let mut overflow = false;
        for &dim in dims {
            let Ok(dim) = usize::try_from(dim) else {
                return Err(Error::Dimensions { dims: dims.to_vec() });
            };
            match bytes.checked_mul(dim) {
                Some(product) => bytes = product,
                // A later zero makes the array empty all the same.
                None => (bytes, overflow) = (1, true),
            }
        }
        match (overflow, dims.contains(&0)) {
            (_, true) => Ok(0),
            (true, false) => Err(Error::Dimensions { dims: dims.to_vec() }),
            (false, false) => {
                isize::try_from(bytes).map(|_| bytes).map_err(|_| Error::Dimensions { dims: dims.to_vec() })
            }
        }
    }
}
