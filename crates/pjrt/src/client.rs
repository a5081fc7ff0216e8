//! A client of a plugin and the devices that it drives.

use std::sync::Arc;

use crate::buffer::{Buffer, HostSource};
use crate::compile_options::CompileOptions;
use crate::element_type::ElementType;
use crate::error::{Error, Result};
use crate::event;
use crate::executable::Executable;
use crate::options::{NamedValues, OptionValue, read_slice, read_string};
use crate::plugin::Plugin;
use crate::sys::*;

/// The plugin's client object; everything made by a client keeps it alive.
pub(crate) struct ClientHandle {
    raw: *mut PJRT_Client,
    plugin: Arc<Plugin>,
    is_cpu: bool,
}

// SAFETY: PJRT clients may be used from any thread.
unsafe impl Send for ClientHandle {}
// SAFETY: as above.
unsafe impl Sync for ClientHandle {}

impl ClientHandle {
    #[inline]
    pub(crate) fn plugin(&self) -> &Arc<Plugin> {
        &self.plugin
    }

    pub(crate) fn raw(&self) -> *mut PJRT_Client {
        self.raw
    }

    /// Whether device memory is host memory that the process may read.
    #[inline]
    pub(crate) fn is_cpu(&self) -> bool {
        self.is_cpu
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        struct Owned(*mut PJRT_Client);
        // SAFETY: PJRT clients may be destroyed by any thread.
        unsafe impl Send for Owned {}
        let (owned, plugin) = (Owned(self.raw), self.plugin.clone());
        let destroy = move || {
            let Owned(client) = { owned };
            // SAFETY: the last handle is gone, so nothing refers to the client.
            let _ = unsafe {
                plugin.call(&mut PJRT_Client_Destroy_Args { client, ..PJRT_Client_Destroy_Args::new() })
            };
        };
        // Destroying a client joins its threads, which a callback on one of them must not do.
        if event::in_callback() {
            // Without a thread to spare the client is leaked.
            let _ = std::thread::Builder::new().spawn(destroy);
        } else {
            destroy();
        }
    }
}

struct DeviceInfo {
    raw: *mut PJRT_Device,
    id: i32,
    local_index: usize,
    kind: String,
    debug_string: String,
}

// SAFETY: PJRT devices may be used from any thread.
unsafe impl Send for DeviceInfo {}
// SAFETY: as above.
unsafe impl Sync for DeviceInfo {}

/// An addressable device.
#[derive(Clone)]
pub struct Device {
    info: Arc<DeviceInfo>,
    client: Arc<ClientHandle>,
}

/// Memory of a device in bytes; what the plugin does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    pub bytes_in_use: i64,
    pub peak_bytes_in_use: Option<i64>,
    pub num_allocs: Option<i64>,
    pub largest_alloc_size: Option<i64>,
    pub bytes_limit: Option<i64>,
    pub bytes_reserved: Option<i64>,
    pub peak_bytes_reserved: Option<i64>,
    pub bytes_reservable_limit: Option<i64>,
    pub largest_free_block_bytes: Option<i64>,
    pub pool_bytes: Option<i64>,
    pub peak_pool_bytes: Option<i64>,
}

impl Device {
    fn new(raw: *mut PJRT_Device, local_index: usize, client: &Arc<ClientHandle>) -> Result<Device> {
        let plugin = client.plugin();
        // SAFETY: the device and its description belong to the live client, and so do the strings.
        let info = unsafe {
            let mut description =
                PJRT_Device_GetDescription_Args { device: raw, ..PJRT_Device_GetDescription_Args::new() };
            plugin.call(&mut description)?;
            let device_description = description.device_description;
            let mut id = PJRT_DeviceDescription_Id_Args {
                device_description,
                ..PJRT_DeviceDescription_Id_Args::new()
            };
            plugin.call(&mut id)?;
            let mut kind = PJRT_DeviceDescription_Kind_Args {
                device_description,
                ..PJRT_DeviceDescription_Kind_Args::new()
            };
            plugin.call(&mut kind)?;
            let mut debug = PJRT_DeviceDescription_DebugString_Args {
                device_description,
                ..PJRT_DeviceDescription_DebugString_Args::new()
            };
            plugin.call(&mut debug)?;
            DeviceInfo {
                raw,
                id: id.id,
                local_index,
                kind: read_string(kind.device_kind, kind.device_kind_size),
                debug_string: read_string(debug.debug_string, debug.debug_string_size),
            }
        };
        Ok(Device { info: Arc::new(info), client: client.clone() })
    }

    /// Unique among the devices of all processes.
    pub fn id(&self) -> i32 {
        self.info.id
    }

    /// Position in [`Client::devices`].
    pub fn local_index(&self) -> usize {
        self.info.local_index
    }

    /// The vendor's name of the device, for example `TPU v5 lite` or `cpu`.
    pub fn kind(&self) -> &str {
        &self.info.kind
    }

    pub fn debug_string(&self) -> &str {
        &self.info.debug_string
    }

    /// `Code::Unimplemented` where the plugin keeps no statistics (CPU).
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let mut args =
            PJRT_Device_MemoryStats_Args { device: self.raw(), ..PJRT_Device_MemoryStats_Args::new() };
        // SAFETY: the device is live.
        unsafe { self.client.plugin().call(&mut args)? };
        let set = |value: i64, is_set: bool| is_set.then_some(value);
        Ok(MemoryStats {
            bytes_in_use: args.bytes_in_use,
            peak_bytes_in_use: set(args.peak_bytes_in_use, args.peak_bytes_in_use_is_set),
            num_allocs: set(args.num_allocs, args.num_allocs_is_set),
            largest_alloc_size: set(args.largest_alloc_size, args.largest_alloc_size_is_set),
            bytes_limit: set(args.bytes_limit, args.bytes_limit_is_set),
            bytes_reserved: set(args.bytes_reserved, args.bytes_reserved_is_set),
            peak_bytes_reserved: set(args.peak_bytes_reserved, args.peak_bytes_reserved_is_set),
            bytes_reservable_limit: set(args.bytes_reservable_limit, args.bytes_reservable_limit_is_set),
            largest_free_block_bytes: set(
                args.largest_free_block_bytes,
                args.largest_free_block_bytes_is_set,
            ),
            pool_bytes: set(args.pool_bytes, args.pool_bytes_is_set),
            peak_pool_bytes: set(args.peak_pool_bytes, args.peak_pool_bytes_is_set),
        })
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut PJRT_Device {
        self.info.raw
    }

    #[inline]
    pub(crate) fn client(&self) -> &Arc<ClientHandle> {
        &self.client
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.info.raw == other.info.raw
    }
}

impl Eq for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.debug_string())
    }
}

#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

/// Apart from the handle, because devices hold the handle.
struct ClientInner {
    handle: Arc<ClientHandle>,
    devices: Vec<Device>,
    platform_name: String,
    platform_version: String,
}

impl Client {
    /// Starts the plugin's client, with its threads. Options are the plugin's own, such as `cpu_device_count`; a value
    /// of the wrong kind may end the process.
    pub fn create(plugin: &Arc<Plugin>, options: &[(&str, OptionValue)]) -> Result<Client> {
        for (name, value) in options {
            // The CPU plugins throw a C++ exception, which ends the process, on a value of another kind.
            if *name == "cpu_device_count" && !matches!(value, OptionValue::Int(1..)) {
                let name = (*name).to_owned();
                return Err(Error::ClientOption { name, expected: "a positive integer" });
            }
        }
        let named = NamedValues::new(options);
        let mut args = PJRT_Client_Create_Args {
            create_options: named.as_ptr(),
            num_options: named.len(),
            ..PJRT_Client_Create_Args::new()
        };
        // SAFETY: the options outlive the call.
        unsafe { plugin.call(&mut args)? };
        let mut handle = ClientHandle { raw: args.client, plugin: plugin.clone(), is_cpu: false };
        let client = handle.raw;
        let mut name = PJRT_Client_PlatformName_Args { client, ..PJRT_Client_PlatformName_Args::new() };
        let mut version =
            PJRT_Client_PlatformVersion_Args { client, ..PJRT_Client_PlatformVersion_Args::new() };
        let mut listed =
            PJRT_Client_AddressableDevices_Args { client, ..PJRT_Client_AddressableDevices_Args::new() };
        // SAFETY: the client is live, and owns the strings and the list.
        let (platform_name, platform_version, raw_devices) = unsafe {
            plugin.call(&mut name)?;
            plugin.call(&mut version)?;
            plugin.call(&mut listed)?;
            (
                read_string(name.platform_name, name.platform_name_size),
                read_string(version.platform_version, version.platform_version_size),
                read_slice(listed.addressable_devices, listed.num_addressable_devices).to_vec(),
            )
        };
        handle.is_cpu = platform_name.eq_ignore_ascii_case("cpu");
        let handle = Arc::new(handle);
        let devices = raw_devices
            .into_iter()
            .enumerate()
            .map(|(index, raw)| Device::new(raw, index, &handle))
            .collect::<Result<Vec<_>>>()?;
        Ok(Client { inner: Arc::new(ClientInner { handle, devices, platform_name, platform_version }) })
    }

    /// The addressable devices.
    pub fn devices(&self) -> &[Device] {
        &self.inner.devices
    }

    /// `cpu`, `tpu`, `cuda`, ...
    pub fn platform_name(&self) -> &str {
        &self.inner.platform_name
    }

    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

    pub fn plugin(&self) -> &Arc<Plugin> {
        self.inner.handle.plugin()
    }

    /// Compiles StableHLO text.
    pub fn compile(&self, program: &str, options: &CompileOptions) -> Result<Executable> {
        let options = options.encode()?;
        let program = program_of(program)?;
        let mut args = PJRT_Client_Compile_Args {
            client: self.inner.handle.raw,
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..PJRT_Client_Compile_Args::new()
        };
        // SAFETY: program and options outlive the call; the plugin does not write to the program's text.
        unsafe {
            self.plugin().call(&mut args)?;
            Executable::from_raw(args.executable, &self.inner.handle)
        }
    }

    /// Loads what [`Executable::serialize`] of the same plugin build on the same kind of machine returned.
    ///
    /// The blob is native code: load only blobs whose integrity was checked. XLA validates little, and damaged
    /// input can abort the process.
    pub fn deserialize(&self, blob: &[u8]) -> Result<Executable> {
        let mut args = PJRT_Executable_DeserializeAndLoad_Args {
            client: self.inner.handle.raw,
            serialized_executable: blob.as_ptr().cast(),
            serialized_executable_size: blob.len(),
            ..PJRT_Executable_DeserializeAndLoad_Args::new()
        };
        // SAFETY: the blob outlives the call.
        unsafe {
            self.plugin().call(&mut args)?;
            Executable::from_raw(args.loaded_executable, &self.inner.handle)
        }
    }

    /// Copies a dense row-major host array to a device.
    pub fn buffer_from_host(
        &self,
        source: HostSource<'_>,
        element_type: ElementType,
        dims: &[i64],
        device: &Device,
    ) -> Result<Buffer> {
        if !Arc::ptr_eq(device.client(), &self.inner.handle) {
            return Err(Error::ForeignClient);
        }
        Buffer::from_host(source, element_type, dims, device)
    }
}

/// A program in the text form of MLIR.
pub(crate) fn program_of(text: &str) -> Result<PJRT_Program> {
    const FORMAT: &str = "mlir";
    // A CPU plugin (API 0.115) crashes on text whose first word MLIR does not know.
    if !text.contains("func.func") {
        return Err(Error::NotAModule);
    }
    Ok(PJRT_Program {
        code: text.as_ptr().cast_mut().cast(),
        code_size: text.len(),
        format: FORMAT.as_ptr().cast(),
        format_size: FORMAT.len(),
        ..PJRT_Program::new()
    })
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({}, {} devices)", self.platform_name(), self.devices().len())
    }
}
