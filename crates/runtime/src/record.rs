//! A recorder of the programs that calls run, for tests that look at the code itself.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

static RECORDING: AtomicBool = AtomicBool::new(false);
static PROGRAMS: Mutex<Vec<Recorded>> = Mutex::new(Vec::new());

/// A program and the operator that it was built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub op: String,
    /// StableHLO.
    pub text: String,
}

/// Starts or stops recording and returns what was recorded since the last call.
///
/// While it records, each call builds its program anew: a plan from memory or disk has no text.
pub fn programs(recording: bool) -> Vec<Recorded> {
    RECORDING.store(recording, Relaxed);
    std::mem::take(&mut PROGRAMS.lock())
}

pub(crate) fn is_on() -> bool {
    RECORDING.load(Relaxed)
}

pub(crate) fn add(op: &str, text: &str) {
    if is_on() {
        PROGRAMS.lock().push(Recorded { op: op.to_owned(), text: text.to_owned() });
    }
}
