//! A safe client of PJRT plugins: loading, clients, devices, buffers, executables, topologies. The only crate of the
//! workspace that calls the PJRT C API. Also the address space that gives device memory host-side identities.
//!
//! A C++ exception or failed check inside a plugin ends the process, so what can be checked is checked before the
//! call.

mod buffer;
mod client;
mod compile_options;
mod element_type;
mod error;
mod event;
mod executable;
mod options;
mod plugin;
#[doc(hidden)]
pub mod sys;
mod topology;

pub mod address_space;
pub mod discovery;

pub use buffer::{Buffer, Dims, HostRegion, HostSource};
pub use client::{Client, Device, MemoryStats};
pub use compile_options::{CompileOptions, XLA_FLAGS_FOR_CPU};
pub use element_type::ElementType;
pub use error::{Code, Error, Result};
pub use event::Event;
pub use executable::{CompiledMemoryStats, Executable, ExecuteOptions, OptimizedProgram, Outputs};
pub use options::OptionValue;
pub use plugin::{MINIMUM_VERSION, Plugin};
pub use topology::{AHEAD_OF_TIME_ENVIRONMENT, Compiled, Topology};
