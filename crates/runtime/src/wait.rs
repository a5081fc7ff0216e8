//! Waiting that a user can interrupt.
//!
//! Nothing here waits with the GIL or a runtime lock held: the GIL is released first, and the hook takes it for a moment
//! to see whether Ctrl-C was pressed.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, Result};

/// Returns true when a signal handler raised: the exception is then set on this thread.
static INTERRUPTED: OnceLock<fn() -> bool> = OnceLock::new();

/// Runs its argument without the front end's global lock, whether the thread holds it or not.
static DETACH: OnceLock<fn(&mut dyn FnMut())> = OnceLock::new();

const SIGNAL_CHECK: Duration = Duration::from_millis(50);

pub fn install_interrupt_hook(hook: fn() -> bool) {
    let _ = INTERRUPTED.set(hook);
}

pub fn install_detach_hook(hook: fn(&mut dyn FnMut())) {
    let _ = DETACH.set(hook);
}

/// Runs `body`, which may block, without the front end's global lock: most callers have released it, but PyTorch calls
/// some entry points (storage resizing, stream creation) with it, and the thread that is waited for may need it.
pub fn without_host_lock<T>(body: impl FnOnce() -> T) -> T {
    let Some(detach) = DETACH.get() else { return body() };
    let mut body = Some(body);
    let mut result = None;
    detach(&mut || result = body.take().map(|body| body()));
    match (result, body) {
        (Some(result), _) => result,
        (None, Some(body)) => body(),
        (None, None) => unreachable!("a body that ran has a result"),
    }
}

/// A value that another thread delivers once.
pub struct Promise<T> {
    slot: Mutex<Option<T>>,
    filled: Condvar,
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Promise { slot: Mutex::new(None), filled: Condvar::new() }
    }
}

impl<T: Clone> Promise<T> {
    pub fn fulfil(&self, value: T) {
        *self.slot.lock() = Some(value);
        self.filled.notify_all();
    }

    /// Blocks until the value is there; `Error::Interrupted` on Ctrl-C. Any number of threads may wait.
    pub fn wait(&self) -> Result<T> {
        if let Some(value) = &*self.slot.lock() {
            return Ok(value.clone());
        }
        without_host_lock(|| {
            let mut slot = self.slot.lock();
            loop {
                if let Some(value) = &*slot {
                    return Ok(value.clone());
                }
                wait_on(&self.filled, &mut slot)?;
            }
        })
    }
}

/// One wait for a signal of `condvar`, short enough to notice Ctrl-C.
pub fn wait_on<T>(condvar: &Condvar, guard: &mut MutexGuard<'_, T>) -> Result<()> {
    if condvar.wait_for(guard, SIGNAL_CHECK).timed_out() {
        let interrupted = MutexGuard::unlocked(guard, || INTERRUPTED.get().is_some_and(|hook| hook()));
        if interrupted {
            return Err(Error::Interrupted);
        }
    }
    Ok(())
}

/// LLVM recurses deeply on large programs.
const COMPILER_STACK: usize = 256 << 20;

/// Starts a thread for a compilation, with the stack that it needs.
pub fn spawn_compiler(body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("torch-pjrt-compile".to_owned()).stack_size(COMPILER_STACK);
    thread.spawn(body).map(drop)
}

/// Runs a compilation on such a thread and waits for it; `Error::Interrupted` on Ctrl-C, when it goes on unseen.
pub fn compile_on_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let promise = Arc::new(Promise::default());
    let deliver = promise.clone();
    let spawned = spawn_compiler(move || {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        deliver.fulfil(Arc::new(Mutex::new(outcome.ok())));
    });
    spawned.map_err(|error| Error::Runtime(format!("no thread to compile on: {error}")))?;
    let outcome = promise.wait()?.lock().take();
    outcome.ok_or_else(|| Error::internal("the compiler thread panicked"))
}

/// Waits for a plugin event. The outer error is an interrupt, the inner one the event's own.
pub fn event(event: &pjrt::Event) -> Result<std::result::Result<(), pjrt::Error>> {
    if event.is_ready() {
        return Ok(event.error().map_or(Ok(()), Err));
    }
    let promise = Arc::new(Promise::default());
    let deliver = promise.clone();
    event.on_ready(move |outcome| deliver.fulfil(outcome));
    promise.wait()
}
