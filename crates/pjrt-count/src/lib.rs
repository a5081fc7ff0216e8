//! A PJRT plugin for tests: it forwards everything to the plugin named by `PJRT_COUNT_PLUGIN` and counts what crosses
//! the boundary, so that tests need not trust the counters of the code under test. It can also make a call fail.
//!
//! - `PJRT_COUNT_PLUGIN`: path of the real plugin. Required.
//! - `PJRT_COUNT_REPORT`: a file that receives the counters as JSON when the process exits.
//! - `PJRT_COUNT_FAIL`: `KIND:N[:CODE]`, comma separated; the Nth call of that kind fails (see [`faults`]).
//!
//! Exported C functions: `GetPjrtApi`, [`pjrt_count_read`], [`pjrt_count_reset`], [`pjrt_count_fail`].

mod counters;
mod errors;
pub mod faults;
mod forward;

use std::ffi::{CStr, c_char, c_int};

pub use counters::Kind;

/// Copies the counters: calls to Compile, DeserializeAndLoad, Execute, BufferFromHostBuffer, ToHostBuffer (and
/// IncreaseExternalReferenceCount, which holds memory for the host to read it where it lies), CopyToDevice, then
/// failures injected, then 0. Calls that fail count too.
///
/// # Safety
/// `out` must point to eight `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_count_read(out: *mut u64) {
    for (i, value) in counters::snapshot().into_iter().enumerate() {
        // SAFETY: the caller vouches for eight elements.
        unsafe { out.add(i).write(value) };
    }
}

/// Sets every counter to 0. Armed failures stay armed.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_count_reset() {
    counters::reset();
}

/// Makes the `nth` call of a kind from now fail, once; 1 is the next call, 0 disarms. `code` is a PJRT error code, 0 for
/// RESOURCE_EXHAUSTED. Returns 0, or -1 if there is no such kind or code.
///
/// # Safety
/// `kind` must be a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_count_fail(kind: *const c_char, nth: u64, code: u32) -> c_int {
    // SAFETY: the caller vouches for the string.
    let kind = unsafe { CStr::from_ptr(kind) }.to_str().ok().and_then(Kind::from_name);
    match (kind, faults::code_or_default(code)) {
        (Some(kind), Some(code)) => {
            faults::arm(kind, nth, code);
            0
        }
        _ => -1,
    }
}
