//! The user's current source line, cheaply enough to take at every dispatch.

use std::cell::RefCell;
use std::sync::LazyLock;

use parking_lot::RwLock;
use pyo3::ffi;
use pyo3::prelude::*;
use runtime::origin::Site;
use rustc_hash::FxHashMap;

/// Frames looked at before giving up: module nesting in front of the user's line is rarely deeper.
const DEPTH: usize = 64;

/// Lines by number; number 0 is unknown.
static LINES: LazyLock<RwLock<Vec<String>>> = LazyLock::new(|| RwLock::new(vec![String::new()]));

thread_local! {
    /// Whether a code object belongs to a library; the objects are kept alive so that addresses stay theirs.
    static LIBRARY: RefCell<FxHashMap<usize, (Py<PyAny>, bool)>> = RefCell::default();
    static SITES: RefCell<FxHashMap<(usize, i32), Site>> = RefCell::default();
}

/// The innermost Python frame outside torch and this package.
pub fn current() -> Site {
    Python::try_attach(|py| locate(py).unwrap_or_default()).unwrap_or_default()
}

fn locate(py: Python<'_>) -> Option<Site> {
    // SAFETY: attached; PyEval_GetFrame gives a borrowed frame or null.
    let mut frame: Bound<'_, PyAny> =
        unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast())? };
    for _ in 0..DEPTH {
        // SAFETY: `frame` is a frame object.
        let (code, line) = unsafe {
            let raw: *mut ffi::PyFrameObject = frame.as_ptr().cast();
            let code: Bound<'_, PyAny> = Bound::from_owned_ptr_or_opt(py, ffi::PyFrame_GetCode(raw).cast())?;
            (code, raw)
        };
        if !is_library(&code) {
            // SAFETY: as above.
            let number = unsafe { ffi::PyFrame_GetLineNumber(line) };
            return intern(&code, number);
        }
        let outer = frame.getattr(pyo3::intern!(py, "f_back")).ok()?;
        if outer.is_none() {
            return None;
        }
        frame = outer;
    }
    None
}

fn is_library(code: &Bound<'_, PyAny>) -> bool {
    let key = code.as_ptr() as usize;
    if let Some(known) = LIBRARY.with_borrow(|known| known.get(&key).map(|(_, library)| *library)) {
        return known;
    }
    let file: String = code.getattr("co_filename").and_then(|f| f.extract()).unwrap_or_default();
    let library = file.contains("/torch/") || file.contains("/torch_pjrt/") || file.starts_with('<');
    LIBRARY.with_borrow_mut(|known| known.insert(key, (code.clone().unbind(), library)));
    library
}

fn intern(code: &Bound<'_, PyAny>, line: i32) -> Option<Site> {
    let key = (code.as_ptr() as usize, line);
    if let Some(site) = SITES.with_borrow(|sites| sites.get(&key).copied()) {
        return Some(site);
    }
    let file: String = code.getattr("co_filename").and_then(|f| f.extract()).ok()?;
    let function: String = code.getattr("co_name").and_then(|f| f.extract()).ok()?;
    let mut lines = LINES.write();
    let site = Site(lines.len() as u32);
    lines.push(format!("{file}:{line} in {function}"));
    drop(lines);
    SITES.with_borrow_mut(|sites| sites.insert(key, site));
    Some(site)
}

pub fn describe(site: Site) -> Option<String> {
    let lines = LINES.read();
    lines.get(site.0 as usize).filter(|line| !line.is_empty()).cloned()
}
