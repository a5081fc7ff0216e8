//! Loads the C++ shim and talks to it.

use std::ffi::CStr;
use std::path::Path;

use parking_lot::Mutex;
use pyo3::prelude::*;
use runtime::device;
use runtime::hooks::Hooks;
use runtime::origin::SiteHooks;

use crate::{abi, entry, frames, site, trace};

static LOADED: Mutex<bool> = Mutex::new(false);

/// Loads and registers the shim once.
pub fn load(path: &Path, register_hooks: bool) -> Result<(), String> {
    let mut loaded = LOADED.lock();
    if *loaded {
        return Ok(());
    }
    install_hooks();
    // SAFETY: the shim is our own library; its static initialisers register with PyTorch, which is loaded.
    let library = unsafe { libloading::os::unix::Library::open(Some(path), libloading::os::unix::RTLD_NOW) }
        .map_err(|error| format!("{}: {error}", path.display()))?;
    // SAFETY: csrc/module.cpp defines this symbol with this type; the versions are checked inside.
    let error = unsafe {
        let register: libloading::os::unix::Symbol<abi::Register> =
            library.get(b"tpu_shim_register\0").map_err(|error| format!("{}: {error}", path.display()))?;
        register(entry::core_api(register_hooks)).as_ref().map(|text| CStr::from_ptr(text).to_string_lossy())
    };
    if let Some(error) = error {
        return Err(format!("{}: {error}", path.display()));
    }
    // Kernels stay registered until the process ends.
    std::mem::forget(library);
    *loaded = true;
    Ok(())
}

fn install_hooks() {
    runtime::hooks::install(Hooks {
        trace: trace::trace,
        refuse: trace::refuse,
        with_variable,
        warn_fallback,
    });
    runtime::origin::install_site_hooks(SiteHooks {
        current: site::current,
        describe: site::describe,
        stack: frames::capture,
    });
    runtime::install_interrupt_hook(interrupted);
    runtime::install_detach_hook(detach);
}

/// Does nothing when there is no interpreter to detach from (it is ending): the caller then runs `body` itself.
fn detach(body: &mut dyn FnMut()) {
    struct Body<'a>(&'a mut dyn FnMut());
    // SAFETY: the closure runs on this very thread; `detach` asks for Send only to keep Python objects out.
    unsafe impl Send for Body<'_> {}
    let body = Body(body);
    Python::try_attach(move |py| {
        py.detach(move || {
            let body = body;
            (body.0)();
        });
    });
}

/// Whether a signal handler raised; its exception is then set on this thread.
fn interrupted() -> bool {
    Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            error.restore(py);
            true
        }
    })
    .unwrap_or(false)
}

fn with_variable(name: &str, value: &str, start: &mut dyn FnMut()) {
    let set = |value: Option<String>| {
        Python::try_attach(|py| -> PyResult<Option<String>> {
            let environ = py.import("os")?.getattr("environ")?;
            let previous: Option<String> = environ.call_method1("get", (name,))?.extract()?;
            match value {
                Some(value) => environ.set_item(name, value)?,
                None => {
                    environ.call_method1("pop", (name, py.None()))?;
                }
            }
            Ok(previous)
        })
        .and_then(Result::ok)
        .flatten()
    };
    let previous = set(Some(value.to_owned()));
    start();
    set(previous);
}

fn warn_fallback(op: &str, reason: &str) -> runtime::Result<()> {
    Python::attach(|py| {
        let line = site::describe(site::current()).map(|line| format!(" ({line})")).unwrap_or_default();
        let message = format!(
            "{op} has no tpu program and runs on the host: {reason}{line}. Values are right but each call copies its \
             tensors; torch.tpu.set_fallback(\"error\") makes it an error, \"allow\" silences this."
        );
        let warn = || -> PyResult<()> {
            let category = py.import("builtins")?.getattr("UserWarning")?;
            py.import("warnings")?.call_method1("warn", (message, category))?;
            Ok(())
        };
        warn().map_err(|error| trace::raise(py, error))
    })
}

#[pyfunction]
pub fn shim_version() -> String {
    device::config().map(|config| config.torch_version.clone()).unwrap_or_default()
}
