//! Conditions that a program reports back: an index out of range, a division by zero.
//!
//! A program returns one flag per check. A flag that is ready when the call returns raises at the call; others raise
//! at the next point where the host waits or reads, before any value computed from the bad access is seen.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use ops::CheckKind;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::origin::Origin;
use crate::plan::CheckInfo;
use crate::storage::{Contents, Storage};

pub struct PendingCheck {
    pub flag: pjrt::Buffer,
    pub info: CheckInfo,
    pub origin: Origin,
    /// What the program wrote: unusable when the check fails.
    pub results: Vec<Weak<Storage>>,
}

#[derive(Default)]
pub struct PendingChecks {
    pending: Mutex<VecDeque<PendingCheck>>,
}

/// Flags examined per push once they are ready, so that the queue stays short.
const EXAMINED: usize = 8;

impl PendingChecks {
    /// Raises at once when the flag is ready and set.
    pub fn push(&self, check: PendingCheck) -> Result<()> {
        if check.flag.is_ready() {
            return check.evaluate(false);
        }
        let mut ready = Vec::new();
        {
            let mut pending = self.pending.lock();
            while ready.len() < EXAMINED && pending.front().is_some_and(|front| front.flag.is_ready()) {
                ready.extend(pending.pop_front());
            }
            pending.push_back(check);
        }
        evaluate_all(ready)
    }

    /// Waits for every flag; the first failure is raised, all are applied.
    pub fn drain(&self) -> Result<()> {
        let pending: Vec<PendingCheck> = {
            let mut pending = self.pending.lock();
            if pending.is_empty() {
                return Ok(());
            }
            pending.drain(..).collect()
        };
        evaluate_all(pending)
    }
}

fn evaluate_all(checks: Vec<PendingCheck>) -> Result<()> {
    let mut first = Ok(());
    for check in checks {
        let outcome = check.evaluate(true);
        if first.is_ok() {
            first = outcome;
        }
    }
    first
}

/// The exception that CPU PyTorch raises for the same fault.
pub fn user_error(kind: CheckKind, message: String) -> Error {
    match kind {
        CheckKind::Index => Error::Index { message },
        CheckKind::Value => Error::Value(message),
        CheckKind::LinAlg => Error::LinAlg(message),
        CheckKind::Runtime | CheckKind::ZeroDivision => Error::Runtime(message),
    }
}

impl PendingCheck {
    /// What to raise. A flag that cannot be read belongs to an execution that failed: its outputs carry that error
    /// themselves.
    fn failure(&self) -> Option<String> {
        let message = &self.info.message;
        if !["{batch}", "{number}", "{index}"].iter().any(|place| message.contains(place)) {
            let mut flag = [0u8];
            self.flag.read_scalar(&mut flag).ok()?;
            return (flag[0] != 0).then(|| message.clone());
        }
        let mut bytes = [0u8; 8];
        self.flag.read_scalar(&mut bytes).ok()?;
        let value = i64::from_le_bytes(bytes);
        let (batch, number) = (value >> 32, value & 0xffff_ffff);
        let places = [("{batch}", batch), ("{number}", number), ("{index}", value)];
        (value != 0).then(|| {
            places
                .iter()
                .fold(message.clone(), |message, (place, value)| message.replace(place, &value.to_string()))
        })
    }

    fn evaluate(self, deferred: bool) -> Result<()> {
        let Some(message) = self.failure() else { return Ok(()) };
        let error = user_error(self.info.kind, message);
        let error = if deferred {
            Error::Asynchronous { origin: self.origin, source: Arc::new(error) }
        } else {
            error
        };
        for storage in self.results.iter().filter_map(Weak::upgrade) {
            storage.set(Contents::Failed(Arc::new(error.clone())));
        }
        Err(error)
    }
}
