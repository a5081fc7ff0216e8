//! Addresses that stand for device memory on the host.
//!
//! `data_ptr()` of a device tensor must be unique, non-null and fit for pointer arithmetic although nothing on the
//! host lies there. The addresses come from one range that is mapped without access, so that no allocation of the
//! process can have them and a stray read faults instead of returning something.

use std::num::NonZeroUsize;
use std::ptr;
use std::sync::OnceLock;

use parking_lot::Mutex;

/// Alignment and smallest size of a range.
pub const ALIGNMENT: usize = 256;

const LARGEST: usize = 1 << 44;
const SMALLEST: usize = 1 << 32;

/// Sizes are rounded up to one of four steps per power of two, so that a freed range fits the next of its class.
const STEPS_LOG2: u32 = 2;
const CLASSES: usize = (64 << STEPS_LOG2) as usize;

struct Space {
    start: usize,
    end: usize,
    free: Mutex<Free>,
}

struct Free {
    next: usize,
    by_class: Vec<Vec<usize>>,
}

static SPACE: OnceLock<Option<Space>> = OnceLock::new();

fn space() -> Option<&'static Space> {
    SPACE.get_or_init(|| Space::map(LARGEST, SMALLEST)).as_ref()
}

/// A range of `nbytes` that overlaps no other live one, aligned to [`ALIGNMENT`]. A size of 0 gets an address of its
/// own too. `None` when the range is exhausted or the system grants no address space.
pub fn reserve(nbytes: usize) -> Option<NonZeroUsize> {
    space()?.reserve(nbytes)
}

/// Returns a range that [`reserve`] gave out, with the same size. Other addresses are ignored.
pub fn release(address: NonZeroUsize, nbytes: usize) {
    if let Some(space) = SPACE.get().and_then(Option::as_ref) {
        space.release(address.get(), nbytes);
    }
}

/// Whether an address lies in the reserved range, live or not.
pub fn contains(address: usize) -> bool {
    SPACE.get().and_then(Option::as_ref).is_some_and(|space| (space.start..space.end).contains(&address))
}

/// The class of a size, and the size of all ranges of that class. `None` if it overflows.
fn class_of(nbytes: usize) -> Option<(usize, usize)> {
    let nbytes = nbytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
    let log2 = nbytes.ilog2();
    let step = 1usize << log2.saturating_sub(STEPS_LOG2).max(ALIGNMENT.ilog2());
    let rounded = nbytes.checked_next_multiple_of(step)?;
    let log2 = rounded.ilog2();
    let within = (rounded - (1 << log2)) >> log2.saturating_sub(STEPS_LOG2);
    Some((((log2 as usize) << STEPS_LOG2) + within, rounded))
}

impl Space {
    /// Maps the largest power of two in the limits that the system grants.
    fn map(largest: usize, smallest: usize) -> Option<Space> {
        let mut size = largest;
        while size >= smallest {
            // SAFETY: a new private mapping without access disturbs nothing.
            let base = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    size,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if base != libc::MAP_FAILED {
                let start = base as usize;
                let free = Free { next: start, by_class: vec![Vec::new(); CLASSES] };
                return Some(Space { start, end: start + size, free: Mutex::new(free) });
            }
            size /= 2;
        }
        None
    }

    fn reserve(&self, nbytes: usize) -> Option<NonZeroUsize> {
        let (class, size) = class_of(nbytes)?;
        let mut free = self.free.lock();
        if let Some(address) = free.by_class[class].pop() {
            return NonZeroUsize::new(address);
        }
        if size > self.end - free.next {
            return None;
        }
        let address = free.next;
        free.next += size;
        NonZeroUsize::new(address)
    }

    fn release(&self, address: usize, nbytes: usize) {
        let Some((class, _)) = class_of(nbytes) else { return };
        let mut free = self.free.lock();
        if (self.start..free.next).contains(&address) {
            free.by_class[class].push(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_sizes() {
        let mut last = (0, 0);
        for nbytes in (0..100_000).chain([1 << 30, (1 << 30) + 1, 1 << 43]) {
            let (class, size) = class_of(nbytes).unwrap();
            assert!(size >= nbytes.max(1) && size % ALIGNMENT == 0 && class < CLASSES);
            assert!((class == last.0) == (size == last.1), "{nbytes}: {class} {size} after {last:?}");
            assert!(size <= nbytes + nbytes / 4 + ALIGNMENT);
            last = (class, size);
        }
        assert_eq!(class_of(usize::MAX), None);
    }

    #[test]
    fn live_ranges_never_overlap() {
        let threads: Vec<_> = (0..4u64)
            .map(|seed| {
                std::thread::spawn(move || {
                    let (mut live, mut state) = (Vec::new(), seed + 1);
                    for _ in 0..5_000 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        if state >> 63 == 0 || live.is_empty() {
                            let nbytes = (state >> 20) as usize % (1 << (state >> 58 & 31));
                            live.push((reserve(nbytes).unwrap(), nbytes));
                        } else {
                            let (address, nbytes) = live.swap_remove((state >> 32) as usize % live.len());
                            release(address, nbytes);
                        }
                    }
                    live
                })
            })
            .collect();
        let mut live: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        live.sort();
        for pair in live.windows(2) {
            assert!(pair[0].0.get() + pair[0].1.max(1) <= pair[1].0.get(), "{pair:?}");
        }
        for (address, nbytes) in live {
            assert_eq!(address.get() % ALIGNMENT, 0);
            assert!(contains(address.get()) && contains(address.get() + nbytes));
            release(address, nbytes);
        }
    }

    #[test]
    fn a_freed_range_is_used_again() {
        let space = Space::map(1 << 30, 1 << 30).unwrap();
        let first = space.reserve(1 << 29).unwrap();
        assert!(space.reserve((1 << 29) + 1).is_none());
        space.release(first.get(), 1 << 29);
        assert_eq!(space.reserve((1 << 29) - 7), Some(first));
    }

    #[test]
    fn foreign_addresses_are_ignored() {
        let local = 0u8;
        let address = NonZeroUsize::new(&raw const local as usize).unwrap();
        reserve(1).unwrap();
        assert!(!contains(address.get()));
        release(address, 1);
        assert_ne!(reserve(1), Some(address));
    }
}
