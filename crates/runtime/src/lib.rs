//! The runtime: devices, storages over shaped buffers, views, the signature-to-plan cache, executables, memory,
//! streams and the on-disk cache. It knows PyTorch's tensors as plain data; the bridge brings them.

mod bitcast;
mod canonical;
mod node;
mod overlap;
mod planner;
mod plans;
mod signature;
mod strided;
mod view;
mod wait;

pub mod call;
pub mod check;
pub mod compile;
pub mod copies;
pub mod device;
pub mod disk;
pub mod dispatch;
pub mod error;
pub mod fallback;
pub mod generator;
pub mod history;
pub mod hooks;
pub mod host_scalar;
pub mod layout;
pub mod lists;
pub mod memory;
pub mod meta;
pub mod operator;
pub mod origin;
pub mod out;
pub mod plan;
pub mod record;
pub mod schema;
pub mod stats;
pub mod storage;
pub mod stream;

pub use error::{Error, Kind, Result};
pub use node::CallGraph;
pub use wait::{compile_on_thread, install_detach_hook, install_interrupt_hook};

/// Digest of the sources that decide what code a lowering emits.
pub const LOWERING_VERSION: &str = env!("LOWERING_VERSION");
