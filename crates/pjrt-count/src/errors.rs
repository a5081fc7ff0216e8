//! Errors made here, beside those of the real plugin. A caller cannot tell them apart.

use std::collections::HashSet;
use std::ffi::CString;
use std::sync::LazyLock;

use parking_lot::Mutex;
use pjrt::Code;
use pjrt::sys::*;

use crate::forward::real;

struct Injected {
    code: Code,
    message: CString,
}

static INJECTED: LazyLock<Mutex<HashSet<usize>>> = LazyLock::new(Default::default);

pub(crate) fn inject(code: Code, message: String) -> *mut PJRT_Error {
    let error = Box::new(Injected { code, message: CString::new(message).unwrap_or_default() });
    let error = Box::into_raw(error);
    INJECTED.lock().insert(error as usize);
    error.cast()
}

/// # Safety
/// `error` must be null, an error of the real plugin, or one from [`inject`] that is not freed yet.
unsafe fn injected<'a>(error: *const PJRT_Error) -> Option<&'a Injected> {
    // SAFETY: the set holds live boxes only.
    INJECTED.lock().contains(&(error as usize)).then(|| unsafe { &*error.cast::<Injected>() })
}

pub(crate) unsafe extern "C" fn destroy(args: *mut PJRT_Error_Destroy_Args) {
    // SAFETY: the caller's arguments; an address in the set is a box from `inject`, removed before it is freed.
    unsafe {
        let error = (*args).error;
        if INJECTED.lock().remove(&(error as usize)) {
            drop(Box::from_raw(error.cast::<Injected>()));
        } else if let Some(method) = real().Error_Destroy {
            method(args);
        }
    }
}

pub(crate) unsafe extern "C" fn message(args: *mut PJRT_Error_Message_Args) {
    // SAFETY: the caller's arguments; the message lives as long as the error.
    unsafe {
        if let Some(error) = injected((*args).error) {
            (*args).message = error.message.as_ptr();
            (*args).message_size = error.message.as_bytes().len();
        } else if let Some(method) = real().Error_Message {
            method(args);
        }
    }
}

pub(crate) unsafe extern "C" fn get_code(args: *mut PJRT_Error_GetCode_Args) -> *mut PJRT_Error {
    // SAFETY: the caller's arguments.
    unsafe {
        if let Some(error) = injected((*args).error) {
            (*args).code = error.code as u32;
            return std::ptr::null_mut();
        }
        match real().Error_GetCode {
            Some(method) => method(args),
            None => std::ptr::null_mut(),
        }
    }
}
