//! Programs to executables: in memory, on disk, or compiled, each at most once at a time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::device::{self, Runtime};
use crate::disk::{DiskCache, Hash, Kind};
use crate::error::{Error, Result};
use crate::stats::{STATS, count};
use crate::wait::{self, Promise};

type Outcome = Result<pjrt::Executable, Arc<pjrt::Error>>;

static EXECUTABLES: LazyLock<Mutex<FxHashMap<Hash, pjrt::Executable>>> = LazyLock::new(Default::default);
static COMPILING: LazyLock<Mutex<FxHashMap<Hash, Arc<Promise<Outcome>>>>> = LazyLock::new(Default::default);
static FROZEN: AtomicBool = AtomicBool::new(false);

/// While frozen a compile is an error. Returns the previous state.
pub fn freeze(frozen: bool) -> bool {
    FROZEN.swap(frozen, Relaxed)
}

/// Executables in memory.
pub fn kept() -> usize {
    EXECUTABLES.lock().len()
}

/// Forgets all executables but these; one that is running lives until it has run.
pub fn keep(programs: &FxHashSet<Hash>) {
    let mut executables = EXECUTABLES.lock();
    let all = std::mem::take(&mut *executables);
    let (kept, dropped): (FxHashMap<_, _>, FxHashMap<_, _>) =
        all.into_iter().partition(|(program, _)| programs.contains(program));
    *executables = kept;
    drop(executables);
    STATS.evictions.fetch_add(dropped.len() as u64, Relaxed);
    // The plugin takes its time to unload programs; nobody need wait for it with the lock.
    drop(dropped);
}

/// The executable of a program whose text is not at hand: from memory or disk only.
pub fn known(program: &Hash) -> Option<pjrt::Executable> {
    if let Some(executable) = EXECUTABLES.lock().get(program) {
        return Some(executable.clone());
    }
    let runtime = device::runtime().ok()?;
    let blob = disk()?.read(Kind::Executable, program)?;
    let executable = runtime.client.deserialize(&blob).ok()?;
    count(&STATS.disk_hits);
    EXECUTABLES.lock().insert(*program, executable.clone());
    Some(executable)
}

/// The executable of `text`, compiled if need be; can be interrupted.
pub fn executable(program: &Hash, text: String, op: &str) -> Result<pjrt::Executable> {
    if let Some(executable) = known(program) {
        return Ok(executable);
    }
    if FROZEN.load(Relaxed) {
        return Err(Error::CompilesFrozen { op: op.to_owned() });
    }
    let runtime = device::runtime()?;
    let (promise, first) = {
        let mut compiling = COMPILING.lock();
        match compiling.get(program) {
            Some(promise) => (promise.clone(), false),
            None => {
                let promise = Arc::new(Promise::default());
                compiling.insert(*program, promise.clone());
                (promise, true)
            }
        }
    };
    if first {
        count(&STATS.compiles);
        *STATS.compile_reasons.lock().entry(op.to_owned()).or_default() += 1;
        let deliver = promise.clone();
        let program = *program;
        let spawned = wait::spawn_compiler(move || deliver.fulfil(compile(runtime, program, &text)));
        if let Err(error) = spawned {
            COMPILING.lock().remove(&program);
            return Err(Error::Runtime(format!("{op}: no thread to compile on: {error}")));
        }
    }
    promise.wait()?.map_err(|source| Error::Compile { op: op.to_owned(), source })
}

fn compile(runtime: &Runtime, program: Hash, text: &str) -> Outcome {
    let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.client.compile(text, &options(runtime))
    }));
    let outcome = match compiled {
        Ok(Ok(executable)) => Ok(executable),
        Ok(Err(error)) => Err(Arc::new(error)),
        Err(_) => Err(Arc::new(pjrt::Error::Api {
            method: "PJRT_Client_Compile",
            code: pjrt::Code::Internal,
            message: "the compiler thread panicked".to_owned(),
        })),
    };
    if let Ok(executable) = &outcome {
        EXECUTABLES.lock().insert(program, executable.clone());
        if let Some(disk) = disk()
            && let Ok(blob) = executable.serialize()
        {
            disk.write(Kind::Executable, &program, &blob);
        }
    }
    COMPILING.lock().remove(&program);
    outcome
}

/// Waits until nothing is being compiled.
pub fn wait_idle() -> Result<()> {
    loop {
        let Some(promise) = COMPILING.lock().values().next().cloned() else { return Ok(()) };
        let _ = promise.wait()?;
    }
}

fn options(runtime: &Runtime) -> pjrt::CompileOptions {
    let options = pjrt::CompileOptions::portable();
    if runtime.is_cpu {
        // The fast forms of minimum and maximum drop a NaN in their second operand.
        options.with_override("xla_cpu_enable_fast_min_max", false)
    } else {
        options
    }
}

/// The on-disk cache of this process's environment, unless it is off.
pub fn disk() -> Option<&'static DiskCache> {
    static DISK: LazyLock<Option<DiskCache>> = LazyLock::new(|| {
        let root = device::config()?.cache_dir.as_ref()?;
        let runtime = device::runtime().ok()?;
        Some(DiskCache::new(root, environment(runtime).as_bytes()))
    });
    DISK.as_ref()
}

/// Everything that makes a plan or an executable of another process unfit for this one.
fn environment(runtime: &Runtime) -> String {
    let plugin = std::fs::metadata(&runtime.choice.path)
        .map(|metadata| format!("{} {:?}", metadata.len(), metadata.modified().ok()))
        .unwrap_or_default();
    format!(
        "{} {} {} {} {plugin} {:?} {} {} {}",
        env!("CARGO_PKG_VERSION"),
        env!("LOWERING_VERSION"),
        device::config().map_or("", |config| &config.torch_version),
        runtime.client.platform_version(),
        options(runtime).encode().unwrap_or_default(),
        runtime.client.devices().first().map_or("", |device| device.kind()),
        cpu_features(),
        std::env::var("XLA_FLAGS").unwrap_or_default(),
    )
}

fn cpu_features() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let mut lines = text.lines();
            lines.find(|line| line.starts_with("flags") || line.starts_with("Features")).map(str::to_owned)
        })
        .unwrap_or_default()
}
