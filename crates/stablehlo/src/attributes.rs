//! Attribute types of the structured operations. Field names follow the StableHLO specification.

use crate::Dims;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    Eq,
    Ne,
    Ge,
    Gt,
    Le,
    Lt,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Precision {
    #[default]
    Default,
    High,
    Highest,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FftType {
    Fft,
    Ifft,
    Rfft,
    Irfft,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transpose {
    NoTranspose,
    Transpose,
    Adjoint,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RngAlgorithm {
    Default,
    ThreeFry,
    Philox,
}

/// How XLA calls the target of a `custom_call`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ApiVersion {
    /// The original C signature (1).
    Original,
    /// A status-returning C signature with an opaque string (2, 3).
    StatusReturning,
    StatusReturningUnified,
    /// XLA FFI (4); `backend_config` is then a dictionary attribute.
    TypedFfi,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct DotDimensionNumbers {
    pub lhs_batching: Dims,
    pub rhs_batching: Dims,
    pub lhs_contracting: Dims,
    pub rhs_contracting: Dims,
}

impl DotDimensionNumbers {
    pub fn new(
        lhs_batching: &[i64],
        rhs_batching: &[i64],
        lhs_contracting: &[i64],
        rhs_contracting: &[i64],
    ) -> Self {
        DotDimensionNumbers {
            lhs_batching: Dims::from_slice(lhs_batching),
            rhs_batching: Dims::from_slice(rhs_batching),
            lhs_contracting: Dims::from_slice(lhs_contracting),
            rhs_contracting: Dims::from_slice(rhs_contracting),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvDimensionNumbers {
    pub input_batch: i64,
    pub input_feature: i64,
    pub input_spatial: Dims,
    pub kernel_input_feature: i64,
    pub kernel_output_feature: i64,
    pub kernel_spatial: Dims,
    pub output_batch: i64,
    pub output_feature: i64,
    pub output_spatial: Dims,
}

impl ConvDimensionNumbers {
    /// PyTorch's order: input and output `[b, f, spatial...]`, kernel `[o, i, spatial...]`.
    pub fn nchw(spatial_rank: usize) -> Self {
        let spatial: Dims = (2..2 + spatial_rank as i64).collect();
        ConvDimensionNumbers {
            input_batch: 0,
            input_feature: 1,
            input_spatial: spatial.clone(),
            kernel_input_feature: 1,
            kernel_output_feature: 0,
            kernel_spatial: spatial.clone(),
            output_batch: 0,
            output_feature: 1,
            output_spatial: spatial,
        }
    }
}

/// Window attributes of `convolution`, one entry per spatial dimension.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvWindow {
    pub strides: Dims,
    /// (low, high); may be negative, which crops.
    pub padding: Vec<(i64, i64)>,
    pub lhs_dilation: Dims,
    pub rhs_dilation: Dims,
    pub reversal: Vec<bool>,
}

impl ConvWindow {
    /// Stride and dilation 1, no padding, no reversal.
    pub fn unit(spatial_rank: usize) -> Self {
        ConvWindow {
            strides: Dims::from_elem(1, spatial_rank),
            padding: vec![(0, 0); spatial_rank],
            lhs_dilation: Dims::from_elem(1, spatial_rank),
            rhs_dilation: Dims::from_elem(1, spatial_rank),
            reversal: vec![false; spatial_rank],
        }
    }
}

/// Window of `reduce_window` and `select_and_scatter`, one entry per operand dimension.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WindowDims {
    pub dims: Dims,
    pub strides: Dims,
    pub base_dilations: Dims,
    pub window_dilations: Dims,
    pub padding: Vec<(i64, i64)>,
}

impl WindowDims {
    /// A window of `dims` with stride and dilation 1 and no padding.
    pub fn new(dims: &[i64]) -> Self {
        let one = Dims::from_elem(1, dims.len());
        WindowDims {
            dims: Dims::from_slice(dims),
            strides: one.clone(),
            base_dilations: one.clone(),
            window_dilations: one,
            padding: vec![(0, 0); dims.len()],
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct GatherDimensionNumbers {
    pub offset_dims: Dims,
    pub collapsed_slice_dims: Dims,
    pub operand_batching_dims: Dims,
    pub start_indices_batching_dims: Dims,
    pub start_index_map: Dims,
    pub index_vector_dim: i64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ScatterDimensionNumbers {
    pub update_window_dims: Dims,
    pub inserted_window_dims: Dims,
    pub input_batching_dims: Dims,
    pub scatter_indices_batching_dims: Dims,
    pub scatter_dims_to_operand_dims: Dims,
    pub index_vector_dim: i64,
}

/// Promises about the indices of a `scatter`; a broken promise gives undefined values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ScatterFlags {
    pub indices_are_sorted: bool,
    pub unique_indices: bool,
}

macro_rules! spelled {
    ($ty:ident: $($variant:ident $text:literal),+) => {
        impl $ty {
            pub(crate) const fn spelling(self) -> &'static str {
                match self { $($ty::$variant => $text),+ }
            }
        }
    };
}

spelled!(Direction: Eq "EQ", Ne "NE", Ge "GE", Gt "GT", Le "LE", Lt "LT");
spelled!(Precision: Default "DEFAULT", High "HIGH", Highest "HIGHEST");
spelled!(FftType: Fft "FFT", Ifft "IFFT", Rfft "RFFT", Irfft "IRFFT");
spelled!(Transpose: NoTranspose "NO_TRANSPOSE", Transpose "TRANSPOSE", Adjoint "ADJOINT");
spelled!(RngAlgorithm: Default "DEFAULT", ThreeFry "THREE_FRY", Philox "PHILOX");

impl ApiVersion {
    pub(crate) const fn number(self) -> i32 {
        match self {
            ApiVersion::Original => 1,
            ApiVersion::StatusReturning => 2,
            ApiVersion::StatusReturningUnified => 3,
            ApiVersion::TypedFfi => 4,
        }
    }
}
