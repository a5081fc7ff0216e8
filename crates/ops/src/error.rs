use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::Dims;

#[derive(Debug, thiserror::Error)]
pub enum LoweringError {
    /// The failing node of a graph and why.
    #[error("{op}: {source}")]
    Node { op: Arc<str>, source: Box<LoweringError> },
    #[error("no lowering for this operator")]
    UnknownOperator,
    /// A form of the operator that has no native lowering: the caller may take another way (decomposition, host).
    #[error("not supported: {reason}")]
    Unsupported { reason: String },
    /// The user's arguments are invalid; the message is the one that CPU PyTorch raises.
    #[error("{message}")]
    InvalidArgument { kind: CheckKind, message: String },
    /// The lowering and the operator's schema, or the graph, disagree: a defect in this crate or in the caller.
    #[error("argument {index}: expected {expected}, got {got}")]
    Argument { index: usize, expected: &'static str, got: String },
    #[error(
        "argument {index} is a run-time scalar but its value is asked for; declare it in the operator's attributes"
    )]
    UndeclaredAttribute { index: usize },
    #[error("no common dtype for {dtypes:?}")]
    Promotion { dtypes: Vec<DType> },
    #[error("{what} {index} of the graph does not exist")]
    BadReference { what: &'static str, index: usize },
    #[error("expected {expected} outputs, the lowering made {got}")]
    OutputCount { expected: usize, got: usize },
    #[error(
        "output {index}: expected {dtype} of sizes {sizes:?}, the lowering made {got_type} of sizes {got_sizes:?}"
    )]
    OutputMismatch { index: usize, dtype: DType, sizes: Dims, got_type: String, got_sizes: Vec<i64> },
    #[error("output {index} is undefined in one of the lowering and the operator's metadata")]
    OutputPresence { index: usize },
    #[error(transparent)]
    Builder(#[from] stablehlo::Error),
}

/// Which Python exception a failed check raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum CheckKind {
    /// RuntimeError
    Runtime,
    /// IndexError
    Index,
    /// ValueError
    Value,
    /// torch.linalg.LinAlgError
    LinAlg,
    /// ZeroDivisionError is a plain RuntimeError("ZeroDivisionError") in PyTorch.
    ZeroDivision,
}

impl LoweringError {
    pub fn unsupported(reason: impl Into<String>) -> Self {
        Self::Unsupported { reason: reason.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidArgument { kind: CheckKind::Runtime, message: message.into() }
    }

    /// Whether another way of running the operator (decomposition, host) is the right answer to this error.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Node { source, .. } => source.is_unsupported(),
            Self::Unsupported { .. } | Self::UnknownOperator => true,
            // A dtype that the operation does not take: CPU may (and then computes it), or raises its own message.
            Self::Builder(stablehlo::Error::ElementType { .. }) => true,
            _ => false,
        }
    }

    /// The exception kind when the user's arguments are at fault.
    pub fn user_error(&self) -> Option<CheckKind> {
        match self {
            Self::Node { source, .. } => source.user_error(),
            Self::InvalidArgument { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}
