//! Completion of asynchronous work.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::client::ClientHandle;
use crate::error::{Error, Result};
use crate::sys::*;

/// Work that is pending, done or failed. Dropping it cancels nothing.
pub struct Event {
    state: State,
}

enum State {
    Pending { raw: *mut PJRT_Event, client: Arc<ClientHandle> },
    Done(Result<()>),
}

// SAFETY: PJRT events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// What a registered callback needs; shared, because nothing says that a failed registration never calls.
struct Registration {
    callback: Mutex<Option<Callback>>,
    client: Arc<ClientHandle>,
}

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is running a callback of a plugin, and so may be one of the plugin's own threads.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

impl Event {
    /// Takes ownership of an event of the plugin; null is an event that has happened.
    pub(crate) fn from_raw(raw: *mut PJRT_Event, client: &Arc<ClientHandle>) -> Event {
        let state = match raw.is_null() {
            true => State::Done(Ok(())),
            false => State::Pending { raw, client: client.clone() },
        };
        Event { state }
    }

    /// An event that has already happened.
    pub fn done(result: Result<()>) -> Event {
        Event { state: State::Done(result) }
    }

    /// Blocks until the work is done and returns its error, any number of times.
    pub fn await_ready(&self) -> Result<()> {
        match &self.state {
            State::Done(result) => result.clone(),
            // SAFETY: the event is live.
            State::Pending { raw, client } => unsafe {
                client
                    .plugin()
                    .call(&mut PJRT_Event_Await_Args { event: *raw, ..PJRT_Event_Await_Args::new() })
            },
        }
    }

    /// Whether the work is done, successfully or not.
    pub fn is_ready(&self) -> bool {
        match &self.state {
            State::Done(_) => true,
            State::Pending { raw, client } => {
                let mut args = PJRT_Event_IsReady_Args { event: *raw, ..PJRT_Event_IsReady_Args::new() };
                // SAFETY: the event is live.
                match unsafe { client.plugin().call(&mut args) } {
                    Ok(()) => args.is_ready,
                    Err(_) => true,
                }
            }
        }
    }

    /// The error of work that is done, `None` while it runs or when it succeeded.
    pub fn error(&self) -> Option<Error> {
        match &self.state {
            State::Done(result) => result.clone().err(),
            State::Pending { raw, client } => {
                if !self.is_ready() {
                    return None;
                }
                let mut args = PJRT_Event_Error_Args { event: *raw, ..PJRT_Event_Error_Args::new() };
                // SAFETY: the event is live and ready.
                unsafe { client.plugin().call(&mut args) }.err()
            }
        }
    }

    /// Calls `callback` exactly once, when the work is done: at once on this thread if it is done already, else
    /// on a thread of the plugin, which must not be blocked. A panic in it is swallowed.
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        let (raw, client) = match &self.state {
            State::Done(result) => return run(Box::new(callback), result.clone()),
            State::Pending { raw, client } => (*raw, client),
        };
        let registration =
            Arc::new(Registration { callback: Mutex::new(Some(Box::new(callback))), client: client.clone() });
        let user_arg = Arc::into_raw(registration.clone()).cast_mut().cast();
        let mut args = PJRT_Event_OnReady_Args {
            event: raw,
            callback: Some(trampoline),
            user_arg,
            ..PJRT_Event_OnReady_Args::new()
        };
        // SAFETY: the event is live; `user_arg` is a reference count that the trampoline takes over. If the
        // registration fails it is leaked, not freed: the plugin may still hold it.
        if let Err(error) = unsafe { client.plugin().call(&mut args) } {
            let callback = registration.callback.lock().take();
            if let Some(callback) = callback {
                run(callback, Err(error));
            }
        }
    }
}

unsafe extern "C" fn trampoline(error: *mut PJRT_Error, user_arg: *mut c_void) {
    // SAFETY: `on_ready` made `user_arg` from an `Arc<Registration>` for this one call.
    let registration = unsafe { Arc::from_raw(user_arg.cast::<Registration>()) };
    let result = match error.is_null() {
        true => Ok(()),
        // SAFETY: the callback owns the error.
        false => Err(unsafe { registration.client.plugin().take_error("PJRT_Event_OnReady", error) }),
    };
    let outer = IN_CALLBACK.replace(true);
    let callback = registration.callback.lock().take();
    if let Some(callback) = callback {
        run(callback, result);
    }
    drop(registration);
    IN_CALLBACK.set(outer);
}

/// Unwinding through the plugin's frames would abort the process.
fn run(callback: Callback, result: Result<()>) {
    let _ = catch_unwind(AssertUnwindSafe(move || callback(result)));
}

impl Drop for Event {
    fn drop(&mut self) {
        if let State::Pending { raw, client } = &self.state {
            // SAFETY: we own the event; PJRT keeps what registered callbacks need.
            let _ = unsafe {
                client
                    .plugin()
                    .call(&mut PJRT_Event_Destroy_Args { event: *raw, ..PJRT_Event_Destroy_Args::new() })
            };
        }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.is_ready(), self.error()) {
            (false, _) => f.write_str("Event(pending)"),
            (true, None) => f.write_str("Event(done)"),
            (true, Some(error)) => write!(f, "Event({error})"),
        }
    }
}
