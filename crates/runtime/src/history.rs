//! The history of allocations that memory snapshots show. Off, it costs one load per allocation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::{origin, stream};

/// Lines of the user's program, innermost first: a code object by the front end's number, and the line in it.
pub type Stack = Arc<[(u32, i32)]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Alloc,
    Free,
    /// An allocation that failed with this much memory free.
    OutOfMemory {
        free: u64,
    },
}

#[derive(Clone, Debug)]
pub struct Event {
    pub action: Action,
    /// 0 for an allocation that failed.
    pub address: usize,
    pub nbytes: usize,
    pub caller: Caller,
    pub time_us: u64,
}

const EVENTS: u8 = 1;
const STACKS: u8 = 2;

static RECORDED: AtomicU8 = AtomicU8::new(0);
static CAPACITY: AtomicUsize = AtomicUsize::new(usize::MAX);

/// events: keep the last `capacity` of them. stacks: keep where live storages were allocated.
pub fn record(events: bool, stacks: bool, capacity: usize) {
    CAPACITY.store(capacity, Relaxed);
    RECORDED.store(if events { EVENTS } else { 0 } | if stacks { STACKS } else { 0 }, Relaxed);
}

/// Who allocates.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub stream: i64,
    pub stack: Option<Stack>,
}

/// Who allocates on `device` now, if that is recorded. Takes the GIL, so no lock may be held.
pub fn caller(device: usize) -> Option<Caller> {
    let recorded = RECORDED.load(Relaxed);
    if recorded == 0 {
        return None;
    }
    let stack = if recorded & STACKS == 0 { None } else { origin::current_stack() };
    Some(Caller { stream: stream::current(device), stack })
}

/// The events of one device.
#[derive(Default)]
pub struct History(Mutex<VecDeque<Event>>);

impl History {
    pub fn add(&self, action: Action, address: usize, nbytes: usize, caller: Option<Caller>) {
        if RECORDED.load(Relaxed) & EVENTS == 0 {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let caller = caller.unwrap_or_default();
        let event = Event { action, address, nbytes, caller, time_us: now.as_micros() as u64 };
        let capacity = CAPACITY.load(Relaxed);
        let mut events = self.0.lock();
        while events.len() >= capacity.max(1) {
            events.pop_front();
        }
        events.push_back(event);
    }

    pub fn events(&self) -> Vec<Event> {
        self.0.lock().iter().cloned().collect()
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }
}
