//! Metadata of results whose sizes depend on values: what they are at their largest, from the arguments' metadata.

use crate::arguments::Arguments;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, TensorMeta};

type Result<T> = std::result::Result<T, LoweringError>;

/// An output of such an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounded {
    /// With the extent at its largest.
    pub meta: TensorMeta,
    /// The dimension whose extent is the number that the program counts, if this output has one. No dimension's stride
    /// but those beyond it in memory may depend on its extent.
    pub dim: Option<usize>,
}

pub type Bound = fn(&Arguments<'_>) -> Result<Vec<Bounded>>;
impl Bounded {
    /// Of `sizes`, row-major; the extent of the first dimension is counted.
    pub fn rows(dtype: DType, sizes: &[i64]) -> Self {
        Self { meta: row_major(dtype, sizes), dim: Some(0) }
    }

    pub fn fixed(dtype: DType, sizes: &[i64]) -> Self {
        Self { meta: row_major(dtype, sizes), dim: None }
    }
}

pub fn row_major(dtype: DType, sizes: &[i64]) -> TensorMeta {
    let mut strides = Dims::from_elem(1, sizes.len());
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    TensorMeta { dtype, sizes: Dims::from_slice(sizes), strides }
}
