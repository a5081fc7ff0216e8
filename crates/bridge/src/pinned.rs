//! Pinned host memory: page-aligned, known by address, so that transfers may be asynchronous.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;

use parking_lot::RwLock;

/// XLA aliases host memory only when it is aligned to 64 bytes; pages are what device drivers pin.
const ALIGNMENT: usize = 4096;

/// Blocks by address.
static BLOCKS: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

fn layout(nbytes: usize) -> Option<Layout> {
    Layout::from_size_align(nbytes.max(1), ALIGNMENT).ok()
}

/// Null when there is no memory.
pub unsafe extern "C" fn pinned_new(nbytes: usize) -> *mut c_void {
    let Some(layout) = layout(nbytes) else { return std::ptr::null_mut() };
    // SAFETY: the layout has a size above zero.
    let block = unsafe { alloc(layout) };
    if !block.is_null() {
        BLOCKS.write().insert(block as usize, nbytes);
    }
    block.cast()
}

pub unsafe extern "C" fn pinned_free(block: *mut c_void) {
    let nbytes = BLOCKS.write().remove(&(block as usize));
    if let Some(layout) = nbytes.and_then(layout) {
        // SAFETY: the block came from `alloc` with this layout and was still registered.
        unsafe { dealloc(block.cast(), layout) }
    }
}

pub unsafe extern "C" fn is_pinned(address: *const c_void) -> bool {
    let address = address as usize;
    let blocks = BLOCKS.read();
    blocks.range(..=address).next_back().is_some_and(|(start, len)| address < start + (*len).max(1))
}

/// Bytes of pinned memory in use.
pub fn total() -> u64 {
    BLOCKS.read().values().map(|&n| n as u64).sum()
}
