//! Errors of the runtime. The bridge maps each kind to the exception that CPU PyTorch would raise.

use std::sync::Arc;

use crate::origin::Origin;

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    NoDevice(Arc<pjrt::discovery::DiscoveryError>),
    #[error("{0}")]
    NoPlugin(String),
    #[error(
        "the device `tpu` does not start with the plugin {plugin}: {source}. Fix: reinstall the plugin, or choose \
         another with TORCH_PJRT_PLUGIN (cpu, tpu, cuda, or the path of a PJRT plugin library)"
    )]
    Client { plugin: String, source: Arc<pjrt::Error> },
    #[error("invalid device ordinal {index}: {count} tpu device(s) are available")]
    DeviceIndex { index: i32, count: usize },
    #[error("{op}: not implemented on tpu: {reason}")]
    NotImplemented { op: String, reason: String },
    #[error("{op}: the lowering failed: {source}")]
    Lowering { op: String, source: Arc<ops::LoweringError> },
    #[error("{op}: the program could not be built: {source}")]
    Build { op: String, source: Arc<stablehlo::Error> },
    #[error("{op}: compilation failed: {source}")]
    Compile { op: String, source: Arc<pjrt::Error> },
    #[error("a new program for {op} would be compiled while compiles are frozen (torch.tpu.freeze_compiles)")]
    CompilesFrozen { op: String },
    #[error("{op}: execution failed: {source}")]
    Execute { op: String, source: Arc<pjrt::Error> },
    /// Found when a result is read, after the call that caused it has returned.
    #[error("{}", asynchronous(origin, source))]
    Asynchronous { origin: Origin, source: Arc<Error> },
    #[error("{message}")]
    Index { message: String },
    #[error("{message}")]
    OutOfMemory { message: String },
    #[error("transfer failed: {0}")]
    Transfer(Arc<pjrt::Error>),
    #[error("{0}")]
    Runtime(String),
    #[error("{0}")]
    Value(String),
    #[error("{0}")]
    LinAlg(String),
    #[error("{0}")]
    Type(String),
    #[error("interrupted")]
    Interrupted,
    #[error("{0}")]
    Forked(&'static str),
    #[error("internal error in torch-pjrt, please report it: {0}")]
    Internal(String),
}

/// What the boundary turns an error into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Runtime,
    Value,
    Type,
    Index,
    LinAlg,
    NotImplemented,
    OutOfMemory,
    /// A Python exception is already set on this thread.
    Python,
}

impl Error {
    pub fn kind(&self) -> Kind {
        match self {
            Error::NotImplemented { .. } => Kind::NotImplemented,
            Error::Index { .. } => Kind::Index,
            Error::Value(_) => Kind::Value,
            Error::Type(_) => Kind::Type,
            Error::LinAlg(_) => Kind::LinAlg,
            Error::OutOfMemory { .. } => Kind::OutOfMemory,
            Error::Interrupted => Kind::Python,
            Error::Asynchronous { source, .. } => source.kind(),
            Error::Compile { source, .. } | Error::Execute { source, .. } => pjrt_kind(source),
            Error::Transfer(source) => pjrt_kind(source),
            _ => Kind::Runtime,
        }
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Error::Internal(message.into())
    }
}

/// The origin begins with the operator, as the message of a failed execution does.
fn asynchronous(origin: &Origin, error: &Error) -> String {
    match error {
        Error::Execute { source, .. } => format!("{origin}: execution failed: {source}"),
        error => format!("{origin}: {error}"),
    }
}

fn pjrt_kind(error: &pjrt::Error) -> Kind {
    match error {
        pjrt::Error::Api { code: pjrt::Code::ResourceExhausted, .. } => Kind::OutOfMemory,
        _ => Kind::Runtime,
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
