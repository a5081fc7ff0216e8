//! The Python stack as numbers, for the history of allocations.

use std::cell::RefCell;
use std::sync::LazyLock;

use parking_lot::RwLock;
use pyo3::ffi;
use pyo3::prelude::*;
use runtime::history::Stack;
use rustc_hash::FxHashMap;

/// Frames that are kept of a deeper stack.
const DEPTH: usize = 256;

/// (file, function) by number.
static CODES: LazyLock<RwLock<Vec<(String, String)>>> = LazyLock::new(Default::default);

thread_local! {
    /// Numbers of code objects, which are kept alive so that addresses stay theirs.
    static NUMBERS: RefCell<FxHashMap<usize, (Py<PyAny>, u32)>> = RefCell::default();
}

/// The stack of this thread, innermost frame first; `None` outside Python.
pub fn capture() -> Option<Stack> {
    Python::try_attach(walk)?
}

fn walk(py: Python<'_>) -> Option<Stack> {
    // SAFETY: attached; PyEval_GetFrame gives a borrowed frame or null.
    let mut frame: Bound<'_, PyAny> =
        unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast())? };
    let mut stack = Vec::new();
    while stack.len() < DEPTH {
        let raw: *mut ffi::PyFrameObject = frame.as_ptr().cast();
        // SAFETY: `frame` is a frame object; its code is a new reference.
        let (code, line): (Bound<'_, PyAny>, i32) = unsafe {
            let code = ffi::PyFrame_GetCode(raw).cast();
            (Bound::from_owned_ptr_or_opt(py, code)?, ffi::PyFrame_GetLineNumber(raw))
        };
        stack.push((number(&code)?, line));
        frame = frame.getattr(pyo3::intern!(py, "f_back")).ok()?;
        if frame.is_none() {
            break;
        }
    }
    Some(stack.into())
}

fn number(code: &Bound<'_, PyAny>) -> Option<u32> {
    let key = code.as_ptr() as usize;
    if let Some(number) = NUMBERS.with_borrow(|known| known.get(&key).map(|(_, number)| *number)) {
        return Some(number);
    }
    let file: String = code.getattr("co_filename").and_then(|file| file.extract()).ok()?;
    let function: String = code.getattr("co_name").and_then(|name| name.extract()).ok()?;
    let mut codes = CODES.write();
    let number = codes.len() as u32;
    codes.push((file, function));
    drop(codes);
    NUMBERS.with_borrow_mut(|known| known.insert(key, (code.clone().unbind(), number)));
    Some(number)
}

/// (file, line, function) of each frame.
pub fn describe(stack: &Stack) -> Vec<(String, i32, String)> {
    let codes = CODES.read();
    let frame = |&(code, line): &(u32, i32)| {
        let (file, function) = codes.get(code as usize).cloned().unwrap_or_default();
        (file, line, function)
    };
    stack.iter().map(frame).collect()
}
