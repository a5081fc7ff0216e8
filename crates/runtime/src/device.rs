//! The process's devices: one client, started at the first device operation.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use ops::{DType, Number};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::check::PendingChecks;
use crate::error::{Error, Result};
use crate::hooks;
use crate::host_scalar;
use crate::memory::Memory;
use crate::storage::Storage;
use crate::stream::Streams;
use crate::wait;

/// Set once by the front end, before the client starts.
#[derive(Debug)]
pub struct Config {
    pub plugins: Vec<pjrt::discovery::SearchPath>,
    /// What `device_count` answers before the client exists; for the CPU plugin also its number of devices.
    pub num_devices: usize,
    pub no_plugin_message: String,
    pub cache_dir: Option<PathBuf>,
    /// Compiled programs kept in memory.
    pub max_programs: usize,
    pub torch_version: String,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());
static STARTED_BY: AtomicU32 = AtomicU32::new(0);
static FORKED: AtomicBool = AtomicBool::new(false);

pub const FORKED_MESSAGE: &str = "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you \
                                  must use the 'spawn' start method";

pub struct Runtime {
    pub client: pjrt::Client,
    pub choice: pjrt::discovery::Choice,
    pub is_cpu: bool,
    devices: Vec<&'static Device>,
}

pub struct Device {
    index: usize,
    pjrt: pjrt::Device,
    total_memory: u64,
    memory: Memory,
    streams: Streams,
    pub(crate) checks: PendingChecks,
    scalars: Mutex<FxHashMap<(DType, u64), Arc<pjrt::Buffer>>>,
}

pub fn configure(config: Config) {
    let _ = CONFIG.set(config);
}

pub fn config() -> Option<&'static Config> {
    CONFIG.get()
}

/// Called in the child after a fork.
pub fn after_fork_in_child() {
    if STARTED_BY.load(Relaxed) != 0 {
        FORKED.store(true, Relaxed);
    }
}

/// This process was forked from one that used the device.
pub fn in_bad_fork() -> bool {
    FORKED.load(Relaxed)
}

/// Fails in a child forked from a process that used the device: the plugin's threads do not exist here, so that
/// anything that waits for the device would wait for ever. Asked before every use of something that the parent made.
pub fn check_fork() -> Result<()> {
    if in_bad_fork() { Err(Error::Forked(FORKED_MESSAGE)) } else { Ok(()) }
}

pub fn is_started() -> bool {
    !in_bad_fork() && RUNTIME.get().is_some()
}

/// As [`is_started`], where using the device in a forked child is an error.
pub fn is_started_here() -> Result<bool> {
    check_fork()?;
    Ok(RUNTIME.get().is_some())
}

/// Limits set before the client starts, by device.
static EARLY_LIMITS: Mutex<Vec<(usize, Option<u64>)>> = Mutex::new(Vec::new());

/// Bytes that live tensors of a device may take; works before the client starts.
pub fn set_memory_limit(index: usize, limit: Option<u64>) {
    let mut early = EARLY_LIMITS.lock();
    match RUNTIME.get().and_then(|runtime| runtime.devices.get(index)) {
        Some(device) => device.memory.set_limit(limit),
        None => early.push((index, limit)),
    }
}

/// Never starts the client.
pub fn count() -> usize {
    match RUNTIME.get() {
        Some(runtime) => runtime.devices.len(),
        None => CONFIG.get().map_or(0, |config| config.num_devices),
    }
}

/// The runtime, started if need be.
pub fn runtime() -> Result<&'static Runtime> {
    check_fork()?;
    match RUNTIME.get() {
        Some(runtime) => Ok(runtime),
        None => wait::without_host_lock(start_once),
    }
}

fn start_once() -> Result<&'static Runtime> {
    let _guard = STARTING.lock();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = start_in_environment()?;
    STARTED_BY.store(std::process::id(), Relaxed);
    let early = EARLY_LIMITS.lock();
    let runtime = RUNTIME.get_or_init(|| runtime);
    for (index, limit) in early.iter() {
        if let Some(device) = runtime.devices.get(*index) {
            device.memory.set_limit(*limit);
        }
    }
    Ok(runtime)
}

/// XLA reads its flags once, when the plugin is loaded.
fn start_in_environment() -> Result<Runtime> {
    let Some(hooks) = hooks::get() else { return start() };
    let mut flags = std::env::var("XLA_FLAGS").unwrap_or_default();
    if !flags.contains("xla_backend_extra_options") {
        flags = format!("{flags} {}", pjrt::XLA_FLAGS_FOR_CPU).trim().to_owned();
    }
    // XLA:CPU logs two lines of 2 KB, harmless, for each program that it loads from disk. Failures reach us as errors.
    let log_level = std::env::var("TF_CPP_MIN_LOG_LEVEL").unwrap_or_else(|_| "3".to_owned());
    let mut started = None;
    (hooks.with_variable)("XLA_FLAGS", &flags, &mut || {
        (hooks.with_variable)("TF_CPP_MIN_LOG_LEVEL", &log_level, &mut || started = Some(start()));
    });
    started.unwrap_or_else(start)
}

fn start() -> Result<Runtime> {
    let config = CONFIG.get().ok_or_else(|| Error::internal("the runtime is not configured"))?;
    if config.plugins.is_empty() {
        return Err(Error::NoPlugin(config.no_plugin_message.clone()));
    }
    let choice =
        pjrt::discovery::first(&config.plugins).map_err(|source| Error::NoDevice(Arc::new(source)))?;
    let client_error =
        |source| Error::Client { plugin: choice.path.display().to_string(), source: Arc::new(source) };
    let plugin = pjrt::Plugin::load(&choice.path).map_err(client_error)?;
    let is_cpu = choice.name == "cpu";
    let count = pjrt::OptionValue::Int(config.num_devices.max(1) as i64);
    let options = if is_cpu { vec![("cpu_device_count", count)] } else { Vec::new() };
    let client = pjrt::Client::create(&plugin, &options).map_err(client_error)?;
    let is_cpu = client.platform_name().eq_ignore_ascii_case("cpu") || is_cpu;
    let host_memory = host_memory();
    let devices = client
        .devices()
        .iter()
        // Those that `count` has announced: a TPU host has more chips than the one that a process drives.
        .take(config.num_devices.max(1))
        .enumerate()
        .map(|(index, device)| {
            let reported = device.memory_stats().ok().and_then(|stats| stats.bytes_limit);
            &*Box::leak(Box::new(Device {
                index,
                pjrt: device.clone(),
                total_memory: reported.filter(|&bytes| bytes > 0).map_or(host_memory, |bytes| bytes as u64),
                memory: Memory::default(),
                streams: Streams::default(),
                checks: PendingChecks::default(),
                scalars: Mutex::default(),
            }))
        })
        .collect();
    Ok(Runtime { client, choice, is_cpu, devices })
}

/// Physical memory of the host in bytes; unlimited when it cannot be read.
fn host_memory() -> u64 {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(u64::MAX, |kib| kib * 1024)
}

pub fn get(index: i32) -> Result<&'static Device> {
    let runtime = runtime()?;
    usize::try_from(index)
        .ok()
        .and_then(|i| runtime.devices.get(i).copied())
        .ok_or(Error::DeviceIndex { index, count: runtime.devices.len() })
}

thread_local! {
    static CURRENT: Cell<i32> = const { Cell::new(0) };
}

pub fn current() -> i32 {
    CURRENT.get()
}

/// Makes `index` current on this thread and returns the previous one; negative changes nothing.
pub fn exchange(index: i32) -> i32 {
    let previous = CURRENT.get();
    if index >= 0 {
        CURRENT.set(index);
    }
    previous
}

/// The device whose live storage holds `address`.
pub fn of_address(address: usize) -> Option<usize> {
    let runtime = RUNTIME.get()?;
    runtime.devices.iter().position(|device| device.memory.holds(address))
}

/// The live storage that starts at `address`.
pub fn storage_at(address: usize) -> Option<Arc<Storage>> {
    RUNTIME.get()?.devices.iter().find_map(|device| device.memory.storage_at(address))
}

impl Device {
    pub fn index(&self) -> usize {
        self.index
    }

    pub fn pjrt(&self) -> &pjrt::Device {
        &self.pjrt
    }

    pub fn total_memory(&self) -> u64 {
        self.total_memory
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Waits for all submitted work and raises the first error among it.
    pub fn synchronize(&'static self) -> Result<()> {
        self.streams.synchronize_all()?;
        self.checks.drain()
    }

    /// Raises what checks of finished programs have left to raise, after waiting for them.
    pub fn drain_checks(&self) -> Result<()> {
        self.checks.drain()
    }

    /// A 0-d buffer of `number` in `dtype`, cached: the same scalars come back step after step.
    pub fn scalar(&'static self, dtype: DType, number: Number) -> Result<Arc<pjrt::Buffer>> {
        const CACHED: usize = 4096;
        if dtype.is_float8() {
            return Err(Error::internal(format!("a {dtype} operand is not made on the host")));
        }
        let bytes = host_scalar::encode(number, dtype);
        let key = host_scalar::cache_key(&bytes).map(|bits| (dtype, bits));
        if let Some(buffer) = key.and_then(|key| self.scalars.lock().get(&key).cloned()) {
            return Ok(buffer);
        }
        let buffer = Arc::new(self.upload(&bytes, dtype, &[])?);
        if let Some(key) = key {
            let mut scalars = self.scalars.lock();
            if scalars.len() >= CACHED {
                scalars.clear();
            }
            scalars.insert(key, buffer.clone());
        }
        Ok(buffer)
    }

    /// A 0-d ui64 buffer, not cached: generator states do not come back.
    pub fn word(&'static self, word: u64) -> Result<Arc<pjrt::Buffer>> {
        Ok(Arc::new(self.upload(&word.to_le_bytes(), DType::UInt64, &[])?))
    }

    /// Copies host bytes (row-major) to a new buffer before it returns.
    pub fn upload(&'static self, bytes: &[u8], dtype: DType, dims: &[i64]) -> Result<pjrt::Buffer> {
        let runtime = runtime()?;
        runtime
            .client
            .buffer_from_host(pjrt::HostSource::Copy(bytes), pjrt_element(dtype), dims, &self.pjrt)
            .map_err(|error| Error::Transfer(Arc::new(error)))
    }
}

pub fn pjrt_element(dtype: DType) -> pjrt::ElementType {
    use pjrt::ElementType as E;
    match dtype {
        DType::UInt8 => E::U8,
        DType::Int8 => E::S8,
        DType::Int16 => E::S16,
        DType::Int32 => E::S32,
        DType::Int64 => E::S64,
        DType::UInt16 => E::U16,
        DType::UInt32 => E::U32,
        DType::UInt64 => E::U64,
        DType::Float16 => E::F16,
        DType::BFloat16 => E::BF16,
        DType::Float32 => E::F32,
        DType::Float64 => E::F64,
        DType::Complex64 => E::C64,
        DType::Complex128 => E::C128,
        DType::Bool => E::Pred,
        DType::Float8E5M2 => E::F8E5M2,
        DType::Float8E4M3FN => E::F8E4M3FN,
        DType::Float8E5M2FNUZ => E::F8E5M2FNUZ,
        DType::Float8E4M3FNUZ => E::F8E4M3FNUZ,
    }
}
