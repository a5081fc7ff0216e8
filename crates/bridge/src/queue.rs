//! C entry points of streams and events.

use std::ffi::c_void;

use runtime::stream::{self, Event};
use runtime::{Error, Result, device};

use crate::abi::Status;
use crate::entry::guarded;

pub unsafe extern "C" fn current_stream(index: i32) -> i64 {
    stream::current(index.max(0) as usize)
}

pub unsafe extern "C" fn exchange_stream(index: i32, id: i64) -> i64 {
    stream::exchange(index.max(0) as usize, id)
}

pub unsafe extern "C" fn new_stream(index: i32, _priority: i32, stream: *mut i64) -> Status {
    guarded(|| {
        // SAFETY: the shim passes a place for the answer.
        unsafe { *stream = device::get(index)?.streams().create() };
        Ok(Status::Ok)
    })
}

pub unsafe extern "C" fn stream_query(index: i32, id: i64, is_done: *mut bool) -> Status {
    guarded(|| {
        // SAFETY: the shim passes a place for the answer.
        unsafe { *is_done = query(index, id)? };
        Ok(Status::Ok)
    })
}

pub fn query(index: i32, id: i64) -> Result<bool> {
    if !device::is_started_here()? {
        return Ok(true);
    }
    device::get(index)?.streams().with(id, stream::Stream::is_idle)
}

pub unsafe extern "C" fn stream_synchronize(index: i32, id: i64) -> Status {
    guarded(|| synchronize(index, id).map(|()| Status::Ok))
}

pub fn synchronize(index: i32, id: i64) -> Result<()> {
    if !device::is_started_here()? {
        return Ok(());
    }
    let device = device::get(index)?;
    device.streams().with(id, stream::Stream::synchronize)??;
    device.drain_checks()
}

pub unsafe extern "C" fn event_record(event: *mut *mut c_void, index: i32, id: i64, timing: bool) -> Status {
    guarded(|| {
        let recorded = Box::new(Event::record(device::get(index)?, id, timing)?);
        // SAFETY: the shim passes the place of an event that is null or ours.
        unsafe {
            if !(*event).is_null() {
                drop(Box::from_raw((*event).cast::<Event>()));
            }
            *event = Box::into_raw(recorded).cast();
        }
        Ok(Status::Ok)
    })
}

/// Buffers order executions by themselves, so there is nothing to block.
pub unsafe extern "C" fn event_block(_event: *mut c_void, _index: i32, _stream: i64) -> Status {
    Status::Ok
}

/// # Safety
/// `event` must be null or come from `event_record`.
unsafe fn event<'a>(event: *mut c_void) -> Option<&'a Event> {
    // SAFETY: promised by the caller.
    unsafe { event.cast::<Event>().as_ref() }
}

pub unsafe extern "C" fn event_query(handle: *mut c_void, is_done: *mut bool) -> Status {
    guarded(|| {
        // SAFETY: a recorded event or null, and a place for the answer.
        unsafe { *is_done = event(handle).is_none_or(Event::is_done) };
        Ok(Status::Ok)
    })
}

pub unsafe extern "C" fn event_synchronize(handle: *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: a recorded event or null.
        match unsafe { event(handle) } {
            Some(event) => event.synchronize().map(|()| Status::Ok),
            None => Ok(Status::Ok),
        }
    })
}

pub unsafe extern "C" fn event_elapsed(
    start: *mut c_void,
    end: *mut c_void,
    milliseconds: *mut f64,
) -> Status {
    guarded(|| {
        // SAFETY: recorded events or null, and a place for the answer.
        unsafe {
            let (Some(start), Some(end)) = (event(start), event(end)) else {
                return Err(Error::Value(
                    "both events must be recorded before their times are compared".to_owned(),
                ));
            };
            *milliseconds = start.elapsed(end)?;
        }
        Ok(Status::Ok)
    })
}

pub unsafe extern "C" fn event_destroy(handle: *mut c_void) {
    if !handle.is_null() {
        // SAFETY: an event of ours that nobody uses again.
        drop(unsafe { Box::from_raw(handle.cast::<Event>()) });
    }
}

/// Buffers are kept by PJRT until every execution that uses them is done, on whatever stream.
pub unsafe extern "C" fn record_stream(_storage: *mut c_void, _stream: i64) {}
