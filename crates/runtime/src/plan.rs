//! What a signature runs: output metadata, operands, an executable, and where its results go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use ops::{CheckKind, DType, TensorMeta};
use serde::{Deserialize, Serialize};

use crate::layout::{Layout, LayoutId};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInfo {
    pub kind: CheckKind,
    pub message: String,
}

/// A parameter of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operand {
    /// The buffer of the signature's n-th storage.
    Base(u32),
    /// The n-th view start, as this dtype.
    Start(u32, DType),
    /// The n-th host scalar, as this dtype.
    Host(u32, DType),
    Seed,
    RngOffset,
}

/// Where a result of the program goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sink {
    /// The storage of the n-th fresh output.
    Fresh(u32, Layout),
    /// The signature's n-th storage.
    Storage(u32, Layout),
}

/// The plan as it is kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Fresh outputs; `None` is an undefined tensor.
    pub outputs: Vec<Option<TensorMeta>>,
    pub operands: Vec<Operand>,
    /// Operands whose buffer may be reused for a result.
    pub donated: Vec<u32>,
    pub sinks: Vec<Sink>,
    pub checks: Vec<CheckInfo>,
    /// Host scalars that must not be zero, and what to raise when one is.
    pub nonzero_hosts: Vec<(u32, CheckInfo)>,
    pub rng_increment: u64,
    /// Hash of the program's text; `None` when there is nothing to run.
    pub program: Option<[u8; 32]>,
    pub temporary_bytes: u64,
    pub host_fallback: bool,
    /// Whether the program is PyTorch's decomposition of the operator.
    pub decomposed: bool,
    /// Where sizes depend on values: the last output counts an extent, and this is its dimension in each of the others
    /// (-1: in none). They are as large as they can be, what is valid first.
    pub bounded: Vec<i8>,
}

pub struct Plan {
    pub recorded: Recorded,
    pub layouts: Vec<LayoutId>,
    pub executable: Option<pjrt::Executable>,
    /// Storage classes that the program writes, for locking.
    pub written: Vec<u32>,
    last_use: AtomicU32,
    /// Launches in a row that were complete when they returned, up to [`INLINE`].
    complete_on_return: AtomicU8,
}

/// So many, and the next one is expected to be complete, too: plugins run small programs on the calling thread.
const INLINE: u8 = 16;

impl Plan {
    pub fn new(recorded: Recorded, executable: Option<pjrt::Executable>) -> Arc<Plan> {
        let mut written = Vec::new();
        let layouts = recorded
            .sinks
            .iter()
            .map(|sink| {
                let (Sink::Fresh(_, layout) | Sink::Storage(_, layout)) = sink;
                if let Sink::Storage(class, _) = sink {
                    written.push(*class);
                }
                crate::layout::intern(layout.clone())
            })
            .collect();
        Arc::new(Plan {
            recorded,
            layouts,
            executable,
            written,
            last_use: AtomicU32::new(0),
            complete_on_return: AtomicU8::new(0),
        })
    }

    /// Whether a launch with nothing to wait for is complete when it returns, so that its completion need not be asked
    /// for.
    pub fn runs_inline(&self) -> bool {
        self.complete_on_return.load(Relaxed) == INLINE
    }

    pub fn launched(&self, is_complete: bool) {
        let before = self.complete_on_return.load(Relaxed);
        let after = if is_complete { (before + 1).min(INLINE) } else { 0 };
        if after != before {
            self.complete_on_return.store(after, Relaxed);
        }
    }

    /// Notes the time of a use, in ticks; most uses fall into a tick that is noted already.
    pub fn used(&self, now: u32) {
        if self.last_use.load(Relaxed) != now {
            self.last_use.store(now, Relaxed);
        }
    }

    pub fn last_use(&self) -> u32 {
        self.last_use.load(Relaxed)
    }

    pub fn host_fallback() -> Arc<Plan> {
        Plan::new(Recorded { host_fallback: true, ..Recorded::default() }, None)
    }
}

/// What PyTorch's Meta kernels said, on a plan miss.
#[derive(Clone, Debug, Default)]
pub struct MetaResult {
    /// Fresh outputs, then the new values of the mutated arguments.
    pub functional: Vec<Option<TensorMeta>>,
    /// (slot, metadata after the call) of each mutated tensor.
    pub mutated: Vec<(usize, TensorMeta)>,
    /// [`Recorded::bounded`]
    pub bounded: Vec<i8>,
    /// Meta is not available, and why.
    pub error: Option<String>,
}
