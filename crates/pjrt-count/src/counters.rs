//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A kind of call; its number is its place in the output of `pjrt_count_read`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Compile,
    Deserialize,
    Execute,
    Upload,
    Download,
    CopyToDevice,
    /// Only for failures: the execution takes place, with its donations, and then reports one.
    Finish = 7,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Compile,
        Kind::Deserialize,
        Kind::Execute,
        Kind::Upload,
        Kind::Download,
        Kind::CopyToDevice,
        Kind::Finish,
    ];

    /// As written in `PJRT_COUNT_FAIL` and in the report.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Compile => "compile",
            Kind::Deserialize => "deserialize",
            Kind::Execute => "execute",
            Kind::Upload => "upload",
            Kind::Download => "download",
            Kind::CopyToDevice => "copy_to_device",
            Kind::Finish => "finish",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

const INJECTED: usize = 6;

static COUNTERS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

pub(crate) fn count(kind: Kind) {
    COUNTERS[kind as usize].fetch_add(1, Relaxed);
}

pub(crate) fn count_injected() {
    COUNTERS[INJECTED].fetch_add(1, Relaxed);
}

pub(crate) fn snapshot() -> [u64; 8] {
    std::array::from_fn(|i| COUNTERS[i].load(Relaxed))
}

pub(crate) fn reset() {
    COUNTERS.iter().for_each(|counter| counter.store(0, Relaxed));
}

/// `{"compile": 1, ..., "injected_failures": 0}`
pub(crate) fn report() -> String {
    let values = snapshot();
    let mut object: serde_json::Map<String, serde_json::Value> = Kind::ALL
        .into_iter()
        .filter(|kind| *kind != Kind::Finish)
        .map(|kind| (kind.name().to_owned(), values[kind as usize].into()))
        .collect();
    object.insert("injected_failures".to_owned(), values[INJECTED].into());
    serde_json::Value::Object(object).to_string()
}
