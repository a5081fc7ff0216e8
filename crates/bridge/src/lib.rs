//! `torch_pjrt._core`: the C entry points that the shim calls, and the Python API of the core.

mod abi;
mod convert;
mod entry;
mod frames;
mod hlo;
mod pinned;
mod program;
mod queue;
mod shim;
mod site;
mod snapshot;
mod trace;

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::exceptions::{
    PyImportError, PyIndexError, PyKeyboardInterrupt, PyNotImplementedError, PyPermissionError,
    PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use runtime::fallback::Policy;
use runtime::{Error, Kind, compile, device, disk, dispatch, fallback, generator, stats};

/// Errors of the runtime as Python exceptions.
pub fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let message = error.to_string();
    match error.kind() {
        Kind::Runtime => PyRuntimeError::new_err(message),
        Kind::Value => PyValueError::new_err(message),
        Kind::Type => PyTypeError::new_err(message),
        Kind::Index => PyIndexError::new_err(message),
        Kind::NotImplemented => PyNotImplementedError::new_err(message),
        Kind::OutOfMemory => of_torch(py, "OutOfMemoryError", message),
        Kind::LinAlg => of_torch(py, "_C._LinAlgError", message),
        Kind::Python => PyErr::take(py).unwrap_or_else(|| PyKeyboardInterrupt::new_err(())),
    }
}

/// An exception of a class that PyTorch defines; a RuntimeError, which all of them are, without PyTorch.
fn of_torch(py: Python<'_>, class: &str, message: String) -> PyErr {
    let torch = py.import("torch").map(Bound::into_any);
    let class = class.split('.').fold(torch, |found, name| found?.getattr(name));
    match class.and_then(|class| class.call1((message.clone(),))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(message),
    }
}

/// Runs without the GIL; errors and panics become exceptions.
fn detached<T: Send>(py: Python<'_>, body: impl FnOnce() -> runtime::Result<T> + Send) -> PyResult<T> {
    py.detach(|| entry::without_panic(body)).map_err(|error| to_python(py, &error))
}

fn checked(index: i32) -> PyResult<i32> {
    let count = device::count();
    if count == 0
        && let Some(config) = device::config()
    {
        return Err(PyRuntimeError::new_err(config.no_plugin_message.clone()));
    }
    if index < 0 || index as usize >= count {
        return Err(PyRuntimeError::new_err(format!(
            "invalid device ordinal {index}: {count} tpu device(s) are available"
        )));
    }
    Ok(index)
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
#[pyo3(signature = (shim_path, *, plugin_candidates, num_devices, no_plugin_message, register_hooks, cache_dir, max_programs))]
fn initialize(
    py: Python<'_>,
    shim_path: PathBuf,
    plugin_candidates: Vec<(String, PathBuf)>,
    num_devices: usize,
    no_plugin_message: String,
    register_hooks: bool,
    cache_dir: Option<PathBuf>,
    max_programs: usize,
) -> PyResult<()> {
    let torch_version: String = py.import("torch.version")?.getattr("__version__")?.extract()?;
    device::configure(device::Config {
        plugins: plugin_candidates
            .into_iter()
            .map(|(name, path)| pjrt::discovery::SearchPath { name, path })
            .collect(),
        num_devices,
        no_plugin_message,
        cache_dir,
        max_programs,
        torch_version,
    });
    shim::load(&shim_path, register_hooks).map_err(PyImportError::new_err)
}

#[pyfunction]
fn init(py: Python<'_>) -> PyResult<()> {
    detached(py, || device::runtime().map(|_| ()))
}

#[pyfunction]
fn is_initialized() -> bool {
    device::is_started()
}

#[pyfunction]
fn in_bad_fork() -> bool {
    device::in_bad_fork()
}

#[pyfunction]
fn after_fork_in_child() {
    device::after_fork_in_child();
}

/// For tests: the next plan that is built panics.
#[pyfunction]
fn _panic_at_next_build() {
    entry::PANICS.store(true, std::sync::atomic::Ordering::Relaxed);
}

#[pyfunction]
fn core_version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[pyfunction]
fn lowering_version() -> &'static str {
    runtime::LOWERING_VERSION
}

#[pyfunction]
fn native_ops() -> Vec<String> {
    let full = |name: &str| if name.contains('.') { name.to_owned() } else { format!("{name}.default") };
    ops::all().map(|def| full(def.name)).collect()
}

#[pyfunction]
fn device_count() -> usize {
    device::count()
}

#[pyfunction]
fn current_device() -> i32 {
    device::current()
}

#[pyfunction]
fn set_device(index: i32) -> PyResult<()> {
    device::exchange(checked(index)?);
    Ok(())
}

#[pyfunction]
fn exchange_device(index: i32) -> PyResult<i32> {
    Ok(device::exchange(if index < 0 { index } else { checked(index)? }))
}

#[pyfunction]
fn synchronize(py: Python<'_>, index: i32) -> PyResult<()> {
    let index = checked(index)?;
    detached(py, || entry::synchronize_device(index))
}

#[pyfunction]
fn plugin_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let runtime = detached(py, device::runtime)?;
    let client = &runtime.client;
    let (major, minor) = client.plugin().api_version();
    let info = PyDict::new(py);
    info.set_item("name", &runtime.choice.name)?;
    info.set_item("path", &runtime.choice.path)?;
    info.set_item("api_version", format!("{major}.{minor}"))?;
    info.set_item("platform_name", client.platform_name())?;
    info.set_item("platform_version", client.platform_version())?;
    let attributes = PyDict::new(py);
    for (name, value) in client.plugin().attributes().unwrap_or_default() {
        attributes.set_item(name, format!("{value:?}"))?;
    }
    info.set_item("attributes", attributes)?;
    Ok(info)
}

#[pyfunction]
fn device_info(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyDict>> {
    let index = checked(index)?;
    let device = detached(py, || device::get(index))?;
    let runtime = detached(py, device::runtime)?;
    let info = PyDict::new(py);
    info.set_item("name", device.pjrt().kind())?;
    info.set_item("description", device.pjrt().debug_string())?;
    info.set_item("id", device.pjrt().id())?;
    info.set_item("local_hardware_id", device.pjrt().local_index())?;
    info.set_item("process_index", 0)?;
    info.set_item("total_memory", device.total_memory())?;
    info.set_item("float64", if runtime.choice.name == "tpu" { "emulated" } else { "native" })?;
    info.set_item("attributes", PyDict::new(py))?;
    Ok(info)
}

#[pyfunction]
fn memory_stats(index: i32) -> PyResult<BTreeMap<&'static str, i64>> {
    let index = checked(index)?;
    let mut stats = runtime::memory::Statistics::default();
    if device::is_started()
        && let Ok(device) = device::get(index)
    {
        stats = device.memory().statistics(device);
    }
    Ok(BTreeMap::from([
        ("allocated_current", stats.allocated_current),
        ("allocated_peak", stats.allocated_peak),
        ("allocated_total", stats.allocated_total),
        ("freed_total", stats.freed_total),
        ("free_bytes", stats.free),
        ("total_bytes", stats.total),
        ("limit", stats.limit as i64),
        ("host_pinned", pinned::total() as i64),
        ("blocks_current", stats.blocks_current),
        ("blocks_peak", stats.blocks_peak),
        ("blocks_total", stats.blocks_total),
        ("blocks_freed", stats.blocks_freed),
        ("ooms", stats.ooms),
    ]))
}

#[pyfunction]
fn reset_peak_memory_stats(index: i32) -> PyResult<()> {
    let index = checked(index)?;
    if device::is_started()
        && let Ok(device) = device::get(index)
    {
        device.memory().reset_peaks();
    }
    Ok(())
}

#[pyfunction]
fn reset_accumulated_memory_stats(index: i32) -> PyResult<()> {
    let index = checked(index)?;
    if device::is_started()
        && let Ok(device) = device::get(index)
    {
        device.memory().reset_accumulated();
    }
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (index, limit))]
fn set_memory_limit(index: i32, limit: Option<u64>) -> PyResult<()> {
    device::set_memory_limit(checked(index)? as usize, limit);
    Ok(())
}

#[pyfunction]
fn empty_cache() {}

#[pyfunction]
fn default_generator_seed(py: Python<'_>, index: i32, seed: u64) -> PyResult<()> {
    set_generator(py, index, generator::State { seed, offset: 0 })
}

#[pyfunction]
fn get_rng_state(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyBytes>> {
    let generator::State { seed, offset } = generator::state(checked(index)? as u64);
    let mut state = [0; 16];
    state[..8].copy_from_slice(&seed.to_le_bytes());
    state[8..].copy_from_slice(&offset.to_le_bytes());
    Ok(PyBytes::new(py, &state))
}

#[pyfunction]
fn set_rng_state(py: Python<'_>, index: i32, state: &[u8]) -> PyResult<()> {
    let index = checked(index)?;
    let (seed, offset) = state.split_at_checked(8).filter(|_| state.len() == 16).ok_or_else(|| {
        PyValueError::new_err(format!("a generator state has 16 bytes (seed, offset), not {}", state.len()))
    })?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    set_generator(py, index, generator::State { seed: word(seed), offset: word(offset) })
}

fn set_generator(py: Python<'_>, index: i32, state: generator::State) -> PyResult<()> {
    let index = checked(index)?;
    generator::set_state(index as u64, state).map_err(|error| to_python(py, &error))
}

#[pyfunction]
fn current_stream(index: i32) -> PyResult<i64> {
    Ok(runtime::stream::current(checked(index)? as usize))
}

#[pyfunction]
fn exchange_stream(index: i32, stream: i64) -> PyResult<i64> {
    Ok(runtime::stream::exchange(checked(index)? as usize, stream))
}

#[pyfunction]
fn new_stream(py: Python<'_>, index: i32, priority: i32) -> PyResult<i64> {
    let _ = priority;
    let index = checked(index)?;
    let device = detached(py, || device::get(index))?;
    Ok(device.streams().create())
}

#[pyfunction]
fn stream_query(py: Python<'_>, index: i32, stream: i64) -> PyResult<bool> {
    let index = checked(index)?;
    detached(py, || queue::query(index, stream))
}

#[pyfunction]
fn stream_synchronize(py: Python<'_>, index: i32, stream: i64) -> PyResult<()> {
    let index = checked(index)?;
    detached(py, || queue::synchronize(index, stream))
}

#[pyfunction(name = "stats")]
fn read_stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let result = PyDict::new(py);
    for (name, value) in stats::STATS.counters() {
        result.set_item(name, value)?;
    }
    result.set_item("programs", compile::kept())?;
    result.set_item("compile_reasons", stats::STATS.compile_reasons.lock().clone())?;
    result.set_item("fallback_ops", stats::STATS.fallback_ops.lock().clone())?;
    result.set_item("host_kernel_ops", stats::STATS.host_kernel_ops.lock().clone())?;
    result.set_item("decomposed_ops", runtime::operator::decomposed())?;
    Ok(result)
}

#[pyfunction]
fn reset_stats() {
    stats::STATS.reset();
}

fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Error => "error",
        Policy::Warn => "warn",
        Policy::Allow => "allow",
    }
}

#[pyfunction]
fn set_fallback(mode: &str) -> PyResult<&'static str> {
    let policy = match mode {
        "error" => Policy::Error,
        "warn" => Policy::Warn,
        "allow" => Policy::Allow,
        other => {
            return Err(PyValueError::new_err(format!(
                "the fallback mode is \"error\", \"warn\" or \"allow\", not {other:?}"
            )));
        }
    };
    Ok(policy_name(fallback::set_policy(policy)))
}

#[pyfunction]
fn get_fallback() -> &'static str {
    policy_name(fallback::policy())
}

fn mode_name(debug: bool) -> &'static str {
    if debug { "debug" } else { "strict" }
}

#[pyfunction]
fn eager_mode() -> &'static str {
    mode_name(dispatch::is_debug())
}

#[pyfunction]
fn set_eager_mode(mode: &str) -> PyResult<&'static str> {
    let debug = match mode {
        "debug" => true,
        "strict" => false,
        other => {
            return Err(PyValueError::new_err(format!(
                "the eager mode is \"debug\" or \"strict\", not {other:?}"
            )));
        }
    };
    Ok(mode_name(dispatch::set_debug(debug)))
}

#[pyfunction]
fn freeze_compiles(frozen: bool) -> bool {
    compile::freeze(frozen)
}

#[pyfunction]
fn wait_compiles(py: Python<'_>) -> PyResult<()> {
    detached(py, compile::wait_idle)
}

#[pyfunction]
#[pyo3(signature = (trace, meta_tensor, refuse=None))]
fn set_tracer(trace: Py<PyAny>, meta_tensor: Py<PyAny>, refuse: Option<Py<PyAny>>) {
    let _ = trace::TRACER.set(trace::Tracer { trace, meta_tensor, refuse });
}

#[pyfunction]
fn cache_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let result = PyDict::new(py);
    let root = device::config().and_then(|config| config.cache_dir.as_deref());
    let info = root.map(disk::info).unwrap_or_default();
    result.set_item("path", root)?;
    result.set_item("enabled", root.is_some() && info.refused.is_none())?;
    result.set_item("entries", info.entries)?;
    result.set_item("bytes", info.bytes)?;
    result.set_item("refused", info.refused)?;
    Ok(result)
}

#[pyfunction]
fn clear_cache() -> PyResult<u64> {
    let root = device::config().and_then(|config| config.cache_dir.as_deref());
    root.map_or(Ok(0), disk::clear).map_err(|error| PyPermissionError::new_err(error.to_string()))
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:path),+ $(,)?) => { $(module.add_function(wrap_pyfunction!($function, module)?)?;)+ };
    }
    add!(
        initialize,
        init,
        is_initialized,
        in_bad_fork,
        after_fork_in_child,
        shim::shim_version,
        _panic_at_next_build,
        core_version,
        lowering_version,
        native_ops,
        device_count,
        current_device,
        set_device,
        exchange_device,
        synchronize,
        plugin_info,
        device_info,
        memory_stats,
        reset_peak_memory_stats,
        reset_accumulated_memory_stats,
        set_memory_limit,
        empty_cache,
        snapshot::record_memory_history,
        snapshot::clear_memory_history,
        snapshot::memory_snapshot,
        default_generator_seed,
        get_rng_state,
        set_rng_state,
        current_stream,
        exchange_stream,
        new_stream,
        stream_query,
        stream_synchronize,
        read_stats,
        reset_stats,
        set_fallback,
        get_fallback,
        eager_mode,
        set_eager_mode,
        freeze_compiles,
        wait_compiles,
        set_tracer,
        program::lower_to_text,
        program::compile_for_topology,
        program::record_programs,
        cache_info,
        clear_cache,
    );
    Ok(())
}
