//! Accounting of device memory: true statistics, a limit, and messages that help when it is exceeded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::history::{self, Action, Caller, History};
use crate::storage::Storage;

#[derive(Default)]
pub struct Memory {
    allocated: AtomicI64,
    peak: AtomicI64,
    allocated_total: AtomicI64,
    freed_total: AtomicI64,
    blocks: AtomicI64,
    blocks_peak: AtomicI64,
    blocks_total: AtomicI64,
    blocks_freed: AtomicI64,
    ooms: AtomicI64,
    /// 0: none.
    limit: AtomicU64,
    /// Live storages by address.
    live: Mutex<BTreeMap<usize, Live>>,
    history: History,
}

struct Live {
    nbytes: usize,
    storage: Weak<Storage>,
    caller: Option<Caller>,
}

/// A live storage, and where it was allocated if that was recorded.
pub struct Block {
    pub address: usize,
    pub nbytes: usize,
    pub caller: Caller,
}

/// Bytes, except `blocks_*` (storages) and `ooms` (times).
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    pub allocated_current: i64,
    pub allocated_peak: i64,
    pub allocated_total: i64,
    pub freed_total: i64,
    pub blocks_current: i64,
    pub blocks_peak: i64,
    pub blocks_total: i64,
    pub blocks_freed: i64,
    pub ooms: i64,
    pub free: i64,
    pub total: i64,
    pub limit: u64,
}

impl Memory {
    /// Counts `nbytes` as allocated, or fails when they exceed the limit.
    pub fn admit(&self, device: &Device, nbytes: usize) -> Result<()> {
        let now = self.allocated.fetch_add(nbytes as i64, Relaxed) + nbytes as i64;
        if now as u64 > self.capacity(device) {
            self.allocated.fetch_sub(nbytes as i64, Relaxed);
            self.record_failure(device, nbytes);
            return Err(self.out_of_memory(device, &format!("allocate {}", readable(nbytes as u64))));
        }
        raise(&self.peak, now);
        self.allocated_total.fetch_add(nbytes as i64, Relaxed);
        let blocks = self.blocks.fetch_add(1, Relaxed) + 1;
        raise(&self.blocks_peak, blocks);
        self.blocks_total.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Fails when a program that needs `nbytes` of temporaries cannot run now.
    pub fn admit_temporaries(&self, device: &Device, nbytes: usize) -> Result<()> {
        if nbytes != 0 && self.allocated.load(Relaxed) as u64 + nbytes as u64 > self.capacity(device) {
            self.record_failure(device, nbytes);
            let action = format!("run a program with {} of temporaries", readable(nbytes as u64));
            return Err(self.out_of_memory(device, &action));
        }
        Ok(())
    }

    fn record_failure(&self, device: &Device, nbytes: usize) {
        let allocated = self.allocated.load(Relaxed).max(0) as u64;
        let free = self.capacity(device).saturating_sub(allocated);
        self.history.add(Action::OutOfMemory { free }, 0, nbytes, history::caller(device.index()));
    }

    pub fn release(&self, nbytes: usize) {
        self.allocated.fetch_sub(nbytes as i64, Relaxed);
        self.freed_total.fetch_add(nbytes as i64, Relaxed);
        self.blocks.fetch_sub(1, Relaxed);
        self.blocks_freed.fetch_add(1, Relaxed);
    }

    pub fn register(&self, address: usize, storage: &Arc<Storage>) {
        let (nbytes, caller) = (storage.nbytes(), history::caller(storage.device().index()));
        self.history.add(Action::Alloc, address, nbytes, caller.clone());
        let live = Live { nbytes, storage: Arc::downgrade(storage), caller };
        self.live.lock().insert(address, live);
    }

    /// Before the address can be used again.
    pub fn unregister(&self, address: usize) {
        let live = self.live.lock().remove(&address);
        if let Some(live) = live {
            let caller = live.caller.map(|caller| Caller { stack: None, ..caller });
            self.history.add(Action::Free, address, live.nbytes, caller);
        }
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn blocks(&self) -> Vec<Block> {
        let live = self.live.lock();
        let block = |(&address, live): (&usize, &Live)| Block {
            address,
            nbytes: live.nbytes,
            caller: live.caller.clone().unwrap_or_default(),
        };
        live.iter().map(block).collect()
    }

    /// Whether a live storage spans `address`.
    pub fn holds(&self, address: usize) -> bool {
        let live = self.live.lock();
        live.range(..=address).next_back().is_some_and(|(start, live)| address < start + live.nbytes)
    }

    /// The live storage that starts at `address`.
    pub fn storage_at(&self, address: usize) -> Option<Arc<Storage>> {
        self.live.lock().get(&address)?.storage.upgrade()
    }

    /// `None` removes the limit.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(0), Relaxed);
    }

    fn capacity(&self, device: &Device) -> u64 {
        match self.limit.load(Relaxed) {
            0 => device.total_memory(),
            limit => limit.min(device.total_memory()),
        }
    }

    /// `action`: what was tried, and how many bytes it asked for.
    pub fn out_of_memory(&self, device: &Device, action: &str) -> Error {
        self.ooms.fetch_add(1, Relaxed);
        let allocated = self.allocated.load(Relaxed).max(0) as u64;
        let capacity = self.capacity(device);
        let mut largest: Vec<usize> = self.live.lock().values().map(|live| live.nbytes).collect();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        let listed: Vec<String> = largest.iter().take(5).map(|&n| readable(n as u64)).collect();
        let largest = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
        Error::OutOfMemory {
            message: format!(
                "tpu:{} is out of memory: tried to {action}; {} free of {} ({}), {} allocated in {} storages; \
                 largest live tensors: {largest}. Free tensors you no longer need (del, then try again), use a smaller \
                 batch, or raise the limit with torch.tpu.set_per_process_memory_fraction.",
                device.index(),
                readable(capacity.saturating_sub(allocated)),
                readable(capacity),
                if self.limit.load(Relaxed) == 0 { "the device's memory" } else { "the limit that was set" },
                readable(allocated),
                self.blocks.load(Relaxed),
            ),
        }
    }

    pub fn statistics(&self, device: &Device) -> Statistics {
        let allocated = self.allocated.load(Relaxed);
        let capacity = self.capacity(device) as i64;
        Statistics {
            allocated_current: allocated,
            allocated_peak: self.peak.load(Relaxed),
            allocated_total: self.allocated_total.load(Relaxed),
            freed_total: self.freed_total.load(Relaxed),
            blocks_current: self.blocks.load(Relaxed),
            blocks_peak: self.blocks_peak.load(Relaxed),
            blocks_total: self.blocks_total.load(Relaxed),
            blocks_freed: self.blocks_freed.load(Relaxed),
            ooms: self.ooms.load(Relaxed),
            free: (capacity - allocated).max(0),
            total: device.total_memory() as i64,
            limit: self.limit.load(Relaxed),
        }
    }

    pub fn reset_peaks(&self) {
        self.peak.store(self.allocated.load(Relaxed), Relaxed);
        self.blocks_peak.store(self.blocks.load(Relaxed), Relaxed);
    }

    pub fn reset_accumulated(&self) {
        for counter in
            [&self.allocated_total, &self.freed_total, &self.blocks_total, &self.blocks_freed, &self.ooms]
        {
            counter.store(0, Relaxed);
        }
    }
}

/// Makes `peak` at least `value`; a plain read where it is already.
fn raise(peak: &AtomicI64, value: i64) {
    if peak.load(Relaxed) < value {
        peak.fetch_max(value, Relaxed);
    }
}

/// `1.50 GiB`
pub fn readable(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.2} {}", UNITS[unit]) }
}
