//! Waiting that a user can interrupt.
//!
//! Nothing here runs with the GIL or a runtime lock held: the front end releases the GIL before it waits, and the hook
//! takes it for a moment to see whether Ctrl-C was pressed.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, Result};

/// Returns true when a signal handler raised: the exception is then set on this thread.
static INTERRUPTED: OnceLock<fn() -> bool> = OnceLock::new();

const SIGNAL_CHECK: Duration = Duration::from_millis(50);

pub fn install_interrupt_hook(hook: fn() -> bool) {
    let _ = INTERRUPTED.set(hook);
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
        let mut slot = self.slot.lock();
        loop {
            if let Some(value) = &*slot {
                return Ok(value.clone());
            }
            wait_on(&self.filled, &mut slot)?;
        }
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
