//! The plugin itself: a copy of the real method table with some slots replaced.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::{mem, ptr};

use pjrt::sys::*;

use crate::counters::{self, Kind};
use crate::{errors, faults};

struct Table {
    real: *const PJRT_Api,
    ours: *const PJRT_Api,
}

// SAFETY: both tables are immutable and live as long as the process.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

static TABLE: OnceLock<Result<Table, String>> = OnceLock::new();

/// The real plugin's table.
///
/// # Safety
/// Only from methods of our table, which exist only after the real one was loaded.
pub(crate) unsafe fn real() -> &'static PJRT_Api {
    match TABLE.get() {
        // SAFETY: a table of at least `PJRT_Api`'s size (`load`), never freed.
        Some(Ok(table)) => unsafe { &*table.real },
        // A method of our table runs, so the table was made.
        _ => unreachable!("a method ran before GetPjrtApi"),
    }
}

/// The entry point of the plugin. Null, with the reason on stderr, when the real plugin cannot be used.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const PJRT_Api {
    match TABLE.get_or_init(load) {
        Ok(table) => table.ours,
        Err(message) => {
            eprintln!("pjrt-count: {message}");
            ptr::null()
        }
    }
}

fn load() -> Result<Table, String> {
    let path = std::env::var_os("PJRT_COUNT_PLUGIN")
        .map(PathBuf::from)
        .ok_or("PJRT_COUNT_PLUGIN must name the real plugin")?;
    if let Ok(text) = std::env::var("PJRT_COUNT_FAIL") {
        faults::arm_from(&text)?;
    }
    // SAFETY: running a plugin's initialisers is what loading a plugin means.
    let library = unsafe { libloading::Library::new(&path) }
        .map_err(|error| format!("{} cannot be loaded: {error:?}", path.display()))?;
    // SAFETY: the symbol has this type in every PJRT plugin.
    let get_api = unsafe { library.get::<GetPjrtApi>(b"GetPjrtApi\0") }
        .map(|symbol| *symbol)
        .map_err(|_| format!("{} does not export GetPjrtApi", path.display()))?;
    mem::forget(library);
    // SAFETY: GetPjrtApi takes no arguments and returns a static table, which starts with its size.
    let (real, size) = unsafe {
        let real = get_api();
        (real, if real.is_null() { 0 } else { (*real).struct_size })
    };
    if size < size_of::<PJRT_Api>() {
        return Err(format!("{} has too old a PJRT API", path.display()));
    }
    let table = Table { real, ours: replace_slots(real, size) };
    report_at_exit();
    Ok(table)
}

/// Copies the whole table, slots that we do not know included.
fn replace_slots(real: *const PJRT_Api, size: usize) -> *const PJRT_Api {
    let copy = Vec::leak(vec![0usize; size.div_ceil(size_of::<usize>())]).as_mut_ptr();
    // SAFETY: the copy has room for `size` bytes, which is at least the size of `PJRT_Api`, suitably aligned.
    let ours = unsafe {
        ptr::copy_nonoverlapping(real.cast::<u8>(), copy.cast::<u8>(), size);
        &mut *copy.cast::<PJRT_Api>()
    };
    ours.Error_Destroy = Some(errors::destroy);
    ours.Error_Message = Some(errors::message);
    ours.Error_GetCode = Some(errors::get_code);
    ours.Client_Compile = Some(compile);
    ours.Compile = Some(compile_for_topology);
    ours.Executable_DeserializeAndLoad = Some(deserialize);
    ours.LoadedExecutable_Execute = Some(execute_then_fail);
    ours.Client_BufferFromHostBuffer = Some(upload);
    ours.Buffer_ToHostBuffer = Some(download);
    ours.Buffer_IncreaseExternalReferenceCount = Some(read_in_place);
    ours.Buffer_CopyToDevice = Some(copy_to_device);
    ours
}

macro_rules! forward {
    ($($name:ident: $kind:ident, $slot:ident($args:ident);)*) => {
        $(
            unsafe extern "C" fn $name(args: *mut $args) -> *mut PJRT_Error {
                counters::count(Kind::$kind);
                if let Some(code) = faults::strikes(Kind::$kind) {
                    counters::count_injected();
                    return errors::inject(code, format!("pjrt-count failed this {}", Kind::$kind.name()));
                }
                // SAFETY: the caller's own call, passed on. The slot is set: our table replaced it.
                unsafe {
                    match real().$slot {
                        Some(method) => method(args),
                        None => errors::inject(
                            pjrt::Code::Unimplemented,
                            concat!("the plugin has no ", stringify!($slot)).to_owned(),
                        ),
                    }
                }
            }
        )*
    };
}

forward! {
    compile: Compile, Client_Compile(PJRT_Client_Compile_Args);
    compile_for_topology: Compile, Compile(PJRT_Compile_Args);
    deserialize: Deserialize, Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args);
    execute: Execute, LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args);
    upload: Upload, Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args);
    download: Download, Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args);
    read_in_place: Download, Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args);
    copy_to_device: CopyToDevice, Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args);
}

/// The outputs of an execution that fails at its end are leaked.
unsafe extern "C" fn execute_then_fail(args: *mut PJRT_LoadedExecutable_Execute_Args) -> *mut PJRT_Error {
    // SAFETY: the caller's own call, passed on.
    let error = unsafe { execute(args) };
    match error.is_null().then(|| faults::strikes(Kind::Finish)).flatten() {
        Some(code) => {
            counters::count_injected();
            errors::inject(code, "pjrt-count failed this execute at its end".to_owned())
        }
        None => error,
    }
}

/// Where the report goes, and the process that writes it: a forked child inherits the exit handler.
static REPORT: OnceLock<(PathBuf, u32)> = OnceLock::new();

fn report_at_exit() {
    let Some(path) = std::env::var_os("PJRT_COUNT_REPORT") else { return };
    if REPORT.set((path.into(), std::process::id())).is_ok() {
        // SAFETY: registers a function that does not unwind.
        unsafe { libc::atexit(write_report) };
    }
}

extern "C" fn write_report() {
    if let Some((path, process)) = REPORT.get()
        && *process == std::process::id()
        && let Err(error) = std::fs::write(path, counters::report())
    {
        eprintln!("pjrt-count: {}: {error}", path.display());
    }
}
