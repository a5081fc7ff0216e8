//! Compiled programs: execution, serialisation, statistics.

use std::ptr;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::buffer::{Buffer, Dims};
use crate::client::{ClientHandle, Device};
use crate::element_type::ElementType;
use crate::error::{Code, Error, Result};
use crate::event::Event;
use crate::options::{OptionValue, read_named_values, read_slice, read_string};
use crate::plugin::Plugin;
use crate::sys::*;

/// Outputs of an execution; most programs have few.
pub type Outputs = SmallVec<[Buffer; 4]>;

/// A program that is loaded on the devices of a client. Cheap to clone.
///
/// An execution keeps the program until its very end, a little after its results are ready. Should it be the last to hold
/// the program, and the process exit at that moment, XLA's CPU plugin frees the code after its own static objects are
/// gone and aborts. So keep a program that has run until the process ends, as a cache does.
#[derive(Clone)]
pub struct Executable {
    inner: Arc<Inner>,
}

struct Inner {
    loaded: *mut PJRT_LoadedExecutable,
    program: CompiledProgram,
    client: Arc<ClientHandle>,
    outputs: Box<[(ElementType, Dims)]>,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

#[derive(Clone, Copy, Debug)]
pub struct ExecuteOptions<'a> {
    /// Where to run. The arguments must lie there.
    pub device: &'a Device,
    /// Arguments that stay alive and unchanged although the program aliases them with an output.
    pub non_donatable: &'a [i64],
    /// Whether to return an event for the end of the execution.
    pub completion: bool,
}

/// Memory that a program needs on one device, in bytes, as the compiler planned it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompiledMemoryStats {
    pub generated_code: i64,
    pub arguments: i64,
    pub outputs: i64,
    /// The part of the arguments that outputs reuse.
    pub aliased: i64,
    pub temporaries: i64,
    /// 0 where the plugin does not report it.
    pub peak: i64,
    pub host_generated_code: i64,
    pub host_arguments: i64,
    pub host_outputs: i64,
    pub host_aliased: i64,
    pub host_temporaries: i64,
}

/// A program as the compiler left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizedProgram {
    /// For example `hlo_with_config`, a serialised `HloModuleProtoWithConfig`.
    pub format: String,
    pub code: Vec<u8>,
}

impl Executable {
    /// # Safety
    /// `loaded` must be an owned executable of `client`.
    pub(crate) unsafe fn from_raw(
        loaded: *mut PJRT_LoadedExecutable,
        client: &Arc<ClientHandle>,
    ) -> Result<Executable> {
        // Frees the loaded executable should a query fail.
        struct Loaded<'a>(*mut PJRT_LoadedExecutable, &'a Plugin);
        impl Drop for Loaded<'_> {
            fn drop(&mut self) {
                // SAFETY: owned, and nothing else was made of it.
                unsafe { destroy_loaded(self.0, self.1) }
            }
        }
        let guard = Loaded(loaded, client.plugin());
        let mut args = PJRT_LoadedExecutable_GetExecutable_Args {
            loaded_executable: loaded,
            ..PJRT_LoadedExecutable_GetExecutable_Args::new()
        };
        // SAFETY: the executable is live.
        unsafe { client.plugin().call(&mut args)? };
        let program = CompiledProgram { raw: args.executable, plugin: client.plugin().clone() };
        let outputs = program.output_types()?.into_boxed_slice();
        std::mem::forget(guard);
        Ok(Executable { inner: Arc::new(Inner { loaded, program, client: client.clone(), outputs }) })
    }

    #[inline]
    pub fn num_outputs(&self) -> usize {
        self.inner.outputs.len()
    }

    #[inline]
    pub fn output_types(&self) -> &[(ElementType, Dims)] {
        &self.inner.outputs
    }

    /// Starts the program on one device and returns its outputs at once; reading them waits.
    ///
    /// Number, types and dimensions of the arguments must be those of the program: a plugin checks only the number
    /// and the sizes in bytes.
    pub fn execute<B: AsRef<Buffer>>(
        &self,
        args: &[B],
        options: &ExecuteOptions<'_>,
    ) -> Result<(Outputs, Option<Event>)> {
        let client = &self.inner.client;
        if !Arc::ptr_eq(options.device.client(), client) {
            return Err(Error::ForeignClient);
        }
        let mut raw_args: SmallVec<[*mut PJRT_Buffer; 32]> = SmallVec::new();
        for buffer in args.iter().map(AsRef::as_ref) {
            if !Arc::ptr_eq(buffer.client(), client) {
                return Err(Error::ForeignClient);
            }
            raw_args.push(buffer.raw());
        }
        let types = &self.inner.outputs;
        let mut raw_outputs: SmallVec<[*mut PJRT_Buffer; 8]> =
            SmallVec::from_elem(ptr::null_mut(), types.len());
        let mut completion: *mut PJRT_Event = ptr::null_mut();
        let mut execute_options = PJRT_ExecuteOptions {
            non_donatable_input_indices: options.non_donatable.as_ptr(),
            num_non_donatable_input_indices: options.non_donatable.len(),
            ..PJRT_ExecuteOptions::new()
        };
        let device = options.device.raw();
        let mut call = PJRT_LoadedExecutable_Execute_Args {
            executable: self.inner.loaded,
            options: &mut execute_options,
            argument_lists: &raw_args.as_ptr(),
            num_devices: 1,
            num_args: raw_args.len(),
            output_lists: &raw_outputs.as_mut_ptr(),
            device_complete_events: match options.completion {
                true => &mut completion,
                false => ptr::null_mut(),
            },
            execute_device: device,
            ..PJRT_LoadedExecutable_Execute_Args::new()
        };
        // SAFETY: all handles are live and of one client; the lists have the lengths given and outlive the call.
        unsafe { client.plugin().call(&mut call)? };
        let outputs = raw_outputs
            .iter()
            .zip(types.iter())
            // SAFETY: the call succeeded, so we own one buffer per output, of the program's output type.
            .map(|(raw, (element_type, dims))| unsafe {
                Buffer::from_raw(*raw, client.clone(), device, *element_type, dims.clone())
            })
            .collect();
        Ok((outputs, options.completion.then(|| Event::from_raw(completion, client))))
    }

    /// Starts a program of several replicas or partitions on all its devices: one list of arguments per device, in
    /// the order of [`Executable::device_ids`].
    pub fn execute_sharded(&self, args: &[&[&Buffer]], devices: &[Device]) -> Result<Vec<Outputs>> {
        let client = &self.inner.client;
        let expected = self.device_ids()?;
        if args.len() != expected.len() || devices.len() != expected.len() {
            return Err(Error::DeviceCount {
                expected: expected.len(),
                actual: args.len().min(devices.len()),
            });
        }
        let num_args = args.first().map_or(0, |list| list.len());
        for list in args {
            if list.iter().any(|buffer| !Arc::ptr_eq(buffer.client(), client)) {
                return Err(Error::ForeignClient);
            }
            if list.len() != num_args {
                return Err(Error::ArgumentCount { expected: num_args, actual: list.len() });
            }
        }
        let types = &self.inner.outputs;
        let raw_args: Vec<Vec<*mut PJRT_Buffer>> =
            args.iter().map(|list| list.iter().map(|buffer| buffer.raw()).collect()).collect();
        let arg_lists: Vec<*const *mut PJRT_Buffer> = raw_args.iter().map(|list| list.as_ptr()).collect();
        let mut raw_outputs = vec![vec![ptr::null_mut::<PJRT_Buffer>(); types.len()]; args.len()];
        let output_lists: Vec<*mut *mut PJRT_Buffer> =
            raw_outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut execute_options = PJRT_ExecuteOptions::new();
        let mut call = PJRT_LoadedExecutable_Execute_Args {
            executable: self.inner.loaded,
            options: &mut execute_options,
            argument_lists: arg_lists.as_ptr(),
            num_devices: args.len(),
            num_args,
            output_lists: output_lists.as_ptr(),
            ..PJRT_LoadedExecutable_Execute_Args::new()
        };
        // SAFETY: as in `execute`, with one list per device of the program.
        unsafe { client.plugin().call(&mut call)? };
        Ok(raw_outputs
            .into_iter()
            .zip(devices)
            .map(|(list, device)| {
                list.into_iter()
                    .zip(types.iter())
                    // SAFETY: the call succeeded, so we own one buffer per output.
                    .map(|(raw, (element_type, dims))| unsafe {
                        Buffer::from_raw(raw, client.clone(), device.raw(), *element_type, dims.clone())
                    })
                    .collect()
            })
            .collect())
    }

    /// Ids of the devices that the program was compiled for; empty for a portable one.
    pub fn device_ids(&self) -> Result<Vec<i32>> {
        let plugin = self.inner.client.plugin();
        let mut args = PJRT_LoadedExecutable_AddressableDevices_Args {
            executable: self.inner.loaded,
            ..PJRT_LoadedExecutable_AddressableDevices_Args::new()
        };
        // SAFETY: the executable is live and owns the list; its devices live as long as the client.
        unsafe {
            plugin.call(&mut args)?;
            read_slice(args.addressable_devices, args.num_addressable_devices)
                .iter()
                .map(|&device| {
                    let mut description =
                        PJRT_Device_GetDescription_Args { device, ..PJRT_Device_GetDescription_Args::new() };
                    plugin.call(&mut description)?;
                    let mut id = PJRT_DeviceDescription_Id_Args {
                        device_description: description.device_description,
                        ..PJRT_DeviceDescription_Id_Args::new()
                    };
                    plugin.call(&mut id)?;
                    Ok(id.id)
                })
                .collect()
        }
    }

    /// A blob for [`crate::Client::deserialize`]: native code, bound to the plugin build and the processor.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.inner.program.serialize()
    }

    pub fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        self.inner.program.memory_stats()
    }

    pub fn cost_analysis(&self) -> Result<Vec<(String, OptionValue)>> {
        self.inner.program.cost_analysis()
    }

    pub fn optimized_program(&self) -> Result<OptimizedProgram> {
        self.inner.program.optimized_program()
    }

    /// Equal for equal programs and options of one compiler build, where the plugin has fingerprints.
    pub fn fingerprint(&self) -> Result<Vec<u8>> {
        self.inner.program.fingerprint()
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Executable").field(&self.inner.outputs).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: owned; executions in flight keep what they need.
        unsafe { destroy_loaded(self.loaded, self.client.plugin()) }
    }
}

/// # Safety
/// `executable` must be owned, and unused afterwards.
unsafe fn destroy_loaded(executable: *mut PJRT_LoadedExecutable, plugin: &Plugin) {
    let mut args =
        PJRT_LoadedExecutable_Destroy_Args { executable, ..PJRT_LoadedExecutable_Destroy_Args::new() };
    // SAFETY: passed on to the caller.
    let _ = unsafe { plugin.call(&mut args) };
}

/// `PJRT_Executable`: the compiler's result, apart from any device.
pub(crate) struct CompiledProgram {
    pub(crate) raw: *mut PJRT_Executable,
    pub(crate) plugin: Arc<Plugin>,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for CompiledProgram {}
// SAFETY: as above.
unsafe impl Sync for CompiledProgram {}

impl CompiledProgram {
    pub(crate) fn output_types(&self) -> Result<Vec<(ElementType, Dims)>> {
        let executable = self.raw;
        let mut count =
            PJRT_Executable_NumOutputs_Args { executable, ..PJRT_Executable_NumOutputs_Args::new() };
        let mut types = PJRT_Executable_OutputElementTypes_Args {
            executable,
            ..PJRT_Executable_OutputElementTypes_Args::new()
        };
        let mut dims = PJRT_Executable_OutputDimensions_Args {
            executable,
            ..PJRT_Executable_OutputDimensions_Args::new()
        };
        // SAFETY: the executable is live and owns the lists.
        let (types, dims, ranks) = unsafe {
            self.plugin.call(&mut count)?;
            self.plugin.call(&mut types)?;
            self.plugin.call(&mut dims)?;
            let ranks = read_slice(dims.dim_sizes, dims.num_outputs);
            (
                read_slice(types.output_types, types.num_output_types),
                read_slice(dims.dims, ranks.iter().sum()),
                ranks,
            )
        };
        if types.len() != count.num_outputs || ranks.len() != count.num_outputs {
            return Err(Error::Api {
                method: PJRT_Executable_OutputDimensions_Args::NAME,
                code: Code::Internal,
                message: format!(
                    "{} outputs, but {} types and {} shapes",
                    count.num_outputs,
                    types.len(),
                    ranks.len()
                ),
            });
        }
        let mut rest = dims;
        types
            .iter()
            .zip(ranks)
            .map(|(raw, rank)| {
                let (these, tail) = rest.split_at(*rank);
                rest = tail;
                Ok((ElementType::from_raw(*raw)?, Dims::from_slice(these)))
            })
            .collect()
    }

    pub(crate) fn serialize(&self) -> Result<Vec<u8>> {
        let mut args =
            PJRT_Executable_Serialize_Args { executable: self.raw, ..PJRT_Executable_Serialize_Args::new() };
        // SAFETY: the executable is live; the bytes live until the deleter, which runs once.
        unsafe {
            self.plugin.call(&mut args)?;
            let bytes = read_slice(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size).to_vec();
            if let Some(delete) = args.serialized_executable_deleter {
                delete(args.serialized_executable);
            }
            Ok(bytes)
        }
    }

    pub(crate) fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        let mut args = PJRT_Executable_GetCompiledMemoryStats_Args {
            executable: self.raw,
            ..PJRT_Executable_GetCompiledMemoryStats_Args::new()
        };
        // SAFETY: the executable is live.
        unsafe { self.plugin.call(&mut args)? };
        Ok(CompiledMemoryStats {
            generated_code: args.generated_code_size_in_bytes,
            arguments: args.argument_size_in_bytes,
            outputs: args.output_size_in_bytes,
            aliased: args.alias_size_in_bytes,
            temporaries: args.temp_size_in_bytes,
            peak: args.peak_memory_in_bytes,
            host_generated_code: args.host_generated_code_size_in_bytes,
            host_arguments: args.host_argument_size_in_bytes,
            host_outputs: args.host_output_size_in_bytes,
            host_aliased: args.host_alias_size_in_bytes,
            host_temporaries: args.host_temp_size_in_bytes,
        })
    }

    pub(crate) fn cost_analysis(&self) -> Result<Vec<(String, OptionValue)>> {
        let mut args = PJRT_Executable_GetCostAnalysis_Args {
            executable: self.raw,
            ..PJRT_Executable_GetCostAnalysis_Args::new()
        };
        // SAFETY: the executable is live and owns the list.
        unsafe {
            self.plugin.call(&mut args)?;
            Ok(read_named_values(args.properties, args.num_properties))
        }
    }

    pub(crate) fn optimized_program(&self) -> Result<OptimizedProgram> {
        let mut program = PJRT_Program::new();
        let mut args = PJRT_Executable_OptimizedProgram_Args {
            executable: self.raw,
            program: &mut program,
            ..PJRT_Executable_OptimizedProgram_Args::new()
        };
        // SAFETY: a program without code asks for the size.
        unsafe { self.plugin.call(&mut args)? };
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        args.program = &mut program;
        // SAFETY: `code` has the size that the plugin asked for; the plugin owns the format.
        let format = unsafe {
            self.plugin.call(&mut args)?;
            read_string(program.format, program.format_size)
        };
        code.truncate(program.code_size);
        Ok(OptimizedProgram { format, code })
    }

    pub(crate) fn fingerprint(&self) -> Result<Vec<u8>> {
        let mut args = PJRT_Executable_Fingerprint_Args {
            executable: self.raw,
            ..PJRT_Executable_Fingerprint_Args::new()
        };
        // SAFETY: the executable is live and owns the string.
        unsafe {
            self.plugin.call(&mut args)?;
            let bytes =
                read_slice(args.executable_fingerprint.cast::<u8>(), args.executable_fingerprint_size);
            Ok(bytes.to_vec())
        }
    }
}

impl Drop for CompiledProgram {
    fn drop(&mut self) {
        let mut args =
            PJRT_Executable_Destroy_Args { executable: self.raw, ..PJRT_Executable_Destroy_Args::new() };
        // SAFETY: owned.
        let _ = unsafe { self.plugin.call(&mut args) };
    }
}
