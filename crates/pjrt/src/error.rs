//! Errors of the client and of the plugin behind it.

use std::fmt;
use std::path::PathBuf;

/// Status code of a plugin error (the absl codes; `Ok` never appears in an error).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    pub const ALL: [Code; 16] = [
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// A number that is no status code reads as `Unknown`.
    pub fn from_raw(raw: u32) -> Code {
        Self::ALL.into_iter().find(|code| *code as u32 == raw).unwrap_or(Code::Unknown)
    }

    /// The spelling that XLA uses in messages, for example `RESOURCE_EXHAUSTED`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("PJRT plugin {path} does not exist")]
    PluginMissing { path: PathBuf },
    #[error("PJRT plugin {path} cannot be loaded: {message}")]
    PluginLoad { path: PathBuf, message: String },
    #[error("{path} is not a PJRT plugin: {reason}")]
    NotAPlugin { path: PathBuf, reason: String },
    #[error(
        "PJRT plugin {path} has API {}.{}, this build needs {}.{} or a later minor version",
        found.0, found.1, required.0, required.1
    )]
    PluginVersion { path: PathBuf, found: (i32, i32), required: (i32, i32) },
    #[error("PJRT plugin {path} failed to initialise: {code}: {message}")]
    PluginInit { path: PathBuf, code: Code, message: String },
    #[error("PJRT plugin of API {}.{} has no method {method}", version.0, version.1)]
    Unsupported { method: &'static str, version: (i32, i32) },
    #[error("{method} failed: {code}: {message}")]
    Api { method: &'static str, code: Code, message: String },
    #[error("{what} holds {actual} bytes, a buffer of {element_type:?}{dims:?} needs {expected}")]
    HostSize {
        what: &'static str,
        element_type: crate::ElementType,
        dims: Vec<i64>,
        expected: usize,
        actual: usize,
    },
    #[error("dimensions {dims:?} are negative or overflow")]
    Dimensions { dims: Vec<i64> },
    #[error("the plugin returned an element type, {raw}, that this build does not know")]
    ElementType { raw: u32 },
    #[error("the program is not an MLIR module with a function")]
    NotAModule,
    #[error("client option {name} must be {expected}")]
    ClientOption { name: String, expected: &'static str },
    #[error("compile option {name} cannot be a list of integers")]
    OverrideKind { name: String },
    #[error("{expected} devices were expected, {actual} were given")]
    DeviceCount { expected: usize, actual: usize },
    #[error("{expected} arguments were expected, {actual} were given")]
    ArgumentCount { expected: usize, actual: usize },
    #[error("a buffer, executable or device belongs to another client")]
    ForeignClient,
}

impl Error {
    /// The plugin's status code, where the plugin gave one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Api { code, .. } | Error::PluginInit { code, .. } => Some(*code),
            _ => None,
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
