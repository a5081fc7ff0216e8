//! Counters that `torch.tpu.stats()` shows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

#[derive(Default)]
pub struct Stats {
    pub compiles: AtomicU64,
    pub cache_hits: AtomicU64,
    pub disk_hits: AtomicU64,
    pub fallbacks: AtomicU64,
    pub host_kernels: AtomicU64,
    pub host_transfers: AtomicU64,
    pub executions: AtomicU64,
    pub bytes_to_device: AtomicU64,
    pub bytes_to_host: AtomicU64,
    /// Runs of PyTorch's Meta kernels and traced decompositions: 0 in a warm process.
    pub meta_runs: AtomicU64,
    pub traces: AtomicU64,
    pub evictions: AtomicU64,
    pub compile_reasons: Mutex<BTreeMap<String, u64>>,
    pub fallback_ops: Mutex<BTreeMap<String, u64>>,
    pub host_kernel_ops: Mutex<BTreeMap<String, u64>>,
}

pub static STATS: Stats = Stats {
    compiles: AtomicU64::new(0),
    cache_hits: AtomicU64::new(0),
    disk_hits: AtomicU64::new(0),
    fallbacks: AtomicU64::new(0),
    host_kernels: AtomicU64::new(0),
    host_transfers: AtomicU64::new(0),
    executions: AtomicU64::new(0),
    bytes_to_device: AtomicU64::new(0),
    bytes_to_host: AtomicU64::new(0),
    meta_runs: AtomicU64::new(0),
    traces: AtomicU64::new(0),
    evictions: AtomicU64::new(0),
    compile_reasons: Mutex::new(BTreeMap::new()),
    fallback_ops: Mutex::new(BTreeMap::new()),
    host_kernel_ops: Mutex::new(BTreeMap::new()),
};

pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Stats {
    pub fn counters(&self) -> [(&'static str, u64); 12] {
        [
            ("compiles", &self.compiles),
            ("cache_hits", &self.cache_hits),
            ("disk_hits", &self.disk_hits),
            ("fallbacks", &self.fallbacks),
            ("host_kernels", &self.host_kernels),
            ("host_transfers", &self.host_transfers),
            ("executions", &self.executions),
            ("bytes_to_device", &self.bytes_to_device),
            ("bytes_to_host", &self.bytes_to_host),
            ("meta_runs", &self.meta_runs),
            ("traces", &self.traces),
            ("evictions", &self.evictions),
        ]
        .map(|(name, counter)| (name, counter.load(Relaxed)))
    }

    pub fn reset(&self) {
        for counter in [
            &self.compiles,
            &self.cache_hits,
            &self.disk_hits,
            &self.fallbacks,
            &self.host_kernels,
            &self.host_transfers,
            &self.executions,
            &self.bytes_to_device,
            &self.bytes_to_host,
            &self.meta_runs,
            &self.traces,
            &self.evictions,
        ] {
            counter.store(0, Relaxed);
        }
        self.compile_reasons.lock().clear();
        self.fallback_ops.lock().clear();
        self.host_kernel_ops.lock().clear();
        crate::operator::reset_decomposed();
    }
}
