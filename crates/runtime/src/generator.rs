//! Counter-based random state, by number: a device's index is its default generator, larger numbers are the caller's.
//!
//! Programs turn a state into random numbers; no state lives on the device.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub seed: u64,
    pub offset: u64,
}

/// Philox gives four 32-bit numbers per counter step, so offsets stay multiples of four.
const OFFSET_UNIT: u64 = 4;

impl Default for State {
    /// c10::default_rng_seed_val
    fn default() -> Self {
        State { seed: 67_280_421_310_721, offset: 0 }
    }
}

/// c10::DeviceIndex is an int8_t.
const FIRST: u64 = 128;

static NEXT: AtomicU64 = AtomicU64::new(FIRST);
/// States that are not the default one.
static STATES: LazyLock<Mutex<FxHashMap<u64, State>>> = LazyLock::new(Default::default);

pub fn create() -> u64 {
    NEXT.fetch_add(1, Relaxed)
}

pub fn discard(generator: u64) {
    STATES.lock().remove(&generator);
}

pub fn state(generator: u64) -> State {
    STATES.lock().get(&generator).copied().unwrap_or_default()
}

pub fn set_state(generator: u64, state: State) -> Result<()> {
    if !state.offset.is_multiple_of(OFFSET_UNIT) {
        let reason = format!("tpu: a generator's offset must be a multiple of 4, got {}", state.offset);
        return Err(Error::Runtime(reason));
    }
    STATES.lock().insert(generator, state);
    Ok(())
}

/// The state before its offset moves on by `increment`, rounded up.
pub fn advance(generator: u64, increment: u64) -> State {
    let mut states = STATES.lock();
    let state = states.entry(generator).or_default();
    let before = *state;
    state.offset = state.offset.wrapping_add(increment.next_multiple_of(OFFSET_UNIT));
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_advance_by_whole_counter_steps() {
        let generator = create();
        assert_eq!(state(generator), State::default());
        set_state(generator, State { seed: 7, offset: 4 }).unwrap();
        assert_eq!(advance(generator, 5), State { seed: 7, offset: 4 });
        assert_eq!(advance(generator, 0), State { seed: 7, offset: 12 });
        assert!(set_state(generator, State { seed: 7, offset: 6 }).is_err());
        discard(generator);
        assert_eq!(state(generator), State::default());
    }
}
