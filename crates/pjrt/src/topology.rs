//! Compilation for machines that are not there.

use std::sync::Arc;

use crate::buffer::Dims;
use crate::client::program_of;
use crate::compile_options::CompileOptions;
use crate::element_type::ElementType;
use crate::error::Result;
use crate::executable::{CompiledMemoryStats, CompiledProgram, OptimizedProgram};
use crate::options::{NamedValues, OptionValue};
use crate::plugin::Plugin;
use crate::sys::*;

/// What the environment must hold before libtpu is loaded on a machine without a TPU. Set it in the process that
/// loads it (changing the environment of a running process is not safe from Rust).
///
/// - `TPU_SKIP_MDS_QUERY`: else initialisation asks a cloud metadata server for minutes.
/// - `ALLOW_MULTIPLE_LIBTPU_LOAD`: else a second process that loads libtpu fails on a lock file.
pub const AHEAD_OF_TIME_ENVIRONMENT: [(&str, &str); 2] =
    [("TPU_SKIP_MDS_QUERY", "1"), ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")];

/// A set of devices that need not exist, such as `v5e:2x2`.
pub struct Topology {
    raw: *mut PJRT_TopologyDescription,
    plugin: Arc<Plugin>,
}

// SAFETY: PJRT topologies may be used from any thread.
unsafe impl Send for Topology {}
// SAFETY: as above.
unsafe impl Sync for Topology {}

/// A program that was compiled for a topology. It cannot run here.
pub struct Compiled {
    program: CompiledProgram,
}

impl Topology {
    /// Names and options are the plugin's own. libtpu takes `v5e:2x2`, `v6e:4x4`, `v5p:2x2x1`, `tpu7x:2x2x1`, ... and
    /// the options `chips_per_host_bounds` (list), `num_slices`, `wrap`, `chip_config_name`; see
    /// [`AHEAD_OF_TIME_ENVIRONMENT`].
    pub fn create(plugin: &Arc<Plugin>, name: &str, options: &[(&str, OptionValue)]) -> Result<Topology> {
        let named = NamedValues::new(options);
        let mut args = PJRT_TopologyDescription_Create_Args {
            topology_name: name.as_ptr().cast(),
            topology_name_size: name.len(),
            create_options: named.as_ptr(),
            num_options: named.len(),
            ..PJRT_TopologyDescription_Create_Args::new()
        };
        // SAFETY: name and options outlive the call.
        unsafe { plugin.call(&mut args)? };
        Ok(Topology { raw: args.topology, plugin: plugin.clone() })
    }

    pub fn num_devices(&self) -> Result<usize> {
        let mut args = PJRT_TopologyDescription_GetDeviceDescriptions_Args {
            topology: self.raw,
            ..PJRT_TopologyDescription_GetDeviceDescriptions_Args::new()
        };
        // SAFETY: the topology is live.
        unsafe { self.plugin.call(&mut args)? };
        Ok(args.num_descriptions)
    }

    /// Compiles StableHLO text.
    pub fn compile(&self, program: &str, options: &CompileOptions) -> Result<Compiled> {
        let options = options.encode()?;
        let program = program_of(program)?;
        let mut args = PJRT_Compile_Args {
            topology: self.raw,
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..PJRT_Compile_Args::new()
        };
        // SAFETY: program and options outlive the call; no client is needed.
        unsafe { self.plugin.call(&mut args)? };
        Ok(Compiled { program: CompiledProgram { raw: args.executable, plugin: self.plugin.clone() } })
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut args = PJRT_TopologyDescription_Destroy_Args {
            topology: self.raw,
            ..PJRT_TopologyDescription_Destroy_Args::new()
        };
        // SAFETY: owned.
        let _ = unsafe { self.plugin.call(&mut args) };
    }
}

impl Compiled {
    pub fn output_types(&self) -> Result<Vec<(ElementType, Dims)>> {
        self.program.output_types()
    }

    pub fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        self.program.memory_stats()
    }

    /// Such as `flops` and `bytes accessed`, per device.
    pub fn cost_analysis(&self) -> Result<Vec<(String, OptionValue)>> {
        self.program.cost_analysis()
    }

    pub fn optimized_program(&self) -> Result<OptimizedProgram> {
        self.program.optimized_program()
    }

    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.program.serialize()
    }
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Topology({:?} devices)", self.num_devices().ok())
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({:?})", self.output_types().ok())
    }
}
