//! Memory snapshots and their history, as plain Python values.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use runtime::device;
use runtime::history::{self, Action, Caller, Stack};
use rustc_hash::FxHashMap;

use crate::{checked, frames};

/// Stacks by number, each described once.
#[derive(Default)]
struct Stacks {
    known: FxHashMap<usize, usize>,
    described: Vec<Vec<(String, i32, String)>>,
}

impl Stacks {
    fn number(&mut self, caller: &Caller) -> Option<usize> {
        let stack: &Stack = caller.stack.as_ref()?;
        let next = self.described.len();
        let number = *self.known.entry(Arc::as_ptr(stack).cast::<()>() as usize).or_insert(next);
        if number == next {
            self.described.push(frames::describe(stack));
        }
        Some(number)
    }
}

#[pyfunction]
pub fn record_memory_history(events: bool, stacks: bool, max_entries: usize) {
    history::record(events, stacks, max_entries);
}

#[pyfunction]
pub fn clear_memory_history() {
    for index in 0..device::count() {
        if device::is_started()
            && let Ok(device) = device::get(index as i32)
        {
            device.memory().history().clear();
        }
    }
}

#[pyfunction]
pub fn memory_snapshot(py: Python<'_>, index: i32) -> PyResult<Bound<'_, PyDict>> {
    let index = checked(index)?;
    let (mut blocks, mut events) = (Vec::new(), Vec::new());
    let mut stacks = Stacks::default();
    if device::is_started()
        && let Ok(device) = device::get(index)
    {
        // Alive to the end, since stacks are told apart by their address.
        let (live, history) = (device.memory().blocks(), device.memory().history().events());
        for block in &live {
            let stack = stacks.number(&block.caller);
            blocks.push((block.address, block.nbytes, block.caller.stream, stack));
        }
        for event in &history {
            let (action, free) = match event.action {
                Action::Alloc => ("alloc", None),
                Action::Free => ("free", None),
                Action::OutOfMemory { free } => ("oom", Some(free)),
            };
            let stack = stacks.number(&event.caller);
            events.push((
                action,
                event.address,
                event.nbytes,
                event.caller.stream,
                event.time_us,
                stack,
                free,
            ));
        }
    }
    let result = PyDict::new(py);
    result.set_item("blocks", blocks)?;
    result.set_item("events", events)?;
    result.set_item("stacks", stacks.described)?;
    Ok(result)
}
