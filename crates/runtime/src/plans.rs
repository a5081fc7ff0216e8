//! The table of plans: each thread has one of its own, in front of one that all share.
//!
//! Both are bounded, because programs are: a workload whose shapes never repeat would otherwise fill the memory. What
//! was not used for longest goes. A hit takes no lock and, but for once in a while, writes nothing that is shared.

use std::cell::{Cell, RefCell};
use std::hash::Hasher;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use hashbrown::HashTable;
use parking_lot::RwLock;
use rustc_hash::{FxHashSet, FxHasher};

use crate::compile;
use crate::device;
use crate::disk::Hash;
use crate::plan::Plan;

struct Entry {
    hash: u64,
    words: Box<[u64]>,
    plan: Arc<Plan>,
}

/// Plans per program that may be kept: many signatures share a program.
const PLANS_PER_PROGRAM: usize = 8;
/// What a round of eviction leaves, in eighths of the limit, so that there are few rounds.
const LEFT: usize = 6;
/// New plans from one tick of the clock to the next.
const TICK: u32 = 64;

static SHARED: LazyLock<RwLock<HashTable<Entry>>> = LazyLock::new(Default::default);
/// Ticks of the clock that a plan's last use is read from.
static NOW: AtomicU32 = AtomicU32::new(0);
static ADDED: AtomicU32 = AtomicU32::new(0);
/// How many rounds of eviction there were: a thread's own table is older than the last one or not.
static ROUNDS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static LOCAL: RefCell<HashTable<Entry>> = const { RefCell::new(HashTable::new()) };
    static LOCAL_ROUND: Cell<u32> = const { Cell::new(0) };
}

/// The plan of a signature's words, if it is in memory.
pub fn find(words: &[u64]) -> Option<Arc<Plan>> {
    let hash = hash(words);
    let same = |entry: &Entry| entry.hash == hash && *entry.words == *words;
    if LOCAL_ROUND.get() != ROUNDS.load(Relaxed) {
        LOCAL_ROUND.set(ROUNDS.load(Relaxed));
        LOCAL.take();
    }
    if let Some(plan) = LOCAL.with_borrow(|table| table.find(hash, same).map(|entry| entry.plan.clone())) {
        plan.used(NOW.load(Relaxed));
        return Some(plan);
    }
    let plan = SHARED.read().find(hash, same).map(|entry| entry.plan.clone())?;
    plan.used(NOW.load(Relaxed));
    insert_locally(hash, words, &plan);
    Some(plan)
}

/// Keeps a plan for later calls. Where another thread was faster, its plan stays.
pub fn insert(words: &[u64], plan: &Arc<Plan>) {
    let hash = hash(words);
    if ADDED.fetch_add(1, Relaxed).is_multiple_of(TICK) {
        NOW.fetch_add(1, Relaxed);
    }
    plan.used(NOW.load(Relaxed));
    insert_locally(hash, words, plan);
    let mut shared = SHARED.write();
    if shared.find(hash, |entry| entry.hash == hash && *entry.words == *words).is_none() {
        let entry = Entry { hash, words: words.into(), plan: plan.clone() };
        shared.insert_unique(hash, entry, |entry| entry.hash);
    }
    let limit = device::config().map_or(usize::MAX, |config| config.max_programs);
    if compile::kept() > limit || shared.len() / PLANS_PER_PROGRAM > limit {
        evict(&mut shared, limit);
    }
}

fn insert_locally(hash: u64, words: &[u64], plan: &Arc<Plan>) {
    LOCAL.with_borrow_mut(|table| {
        let entry = Entry { hash, words: words.into(), plan: plan.clone() };
        table.insert_unique(hash, entry, |entry| entry.hash);
    });
}

/// Drops the plans that were not used for longest, and then the programs that no plan needs.
fn evict(shared: &mut HashTable<Entry>, limit: usize) {
    let (programs_left, plans_left) = (limit * LEFT / 8, limit * PLANS_PER_PROGRAM * LEFT / 8);
    let mut newest_first: Vec<(u32, u64, Option<Hash>)> =
        shared.iter().map(|entry| (entry.plan.last_use(), entry.hash, entry.plan.recorded.program)).collect();
    newest_first.sort_unstable_by_key(|&(use_, ..)| std::cmp::Reverse(use_));
    let (mut programs, mut plans) = (FxHashSet::default(), FxHashSet::default());
    for (_, hash, program) in newest_first {
        let fits =
            program.is_none_or(|program| programs.len() < programs_left || programs.contains(&program));
        if plans.len() == plans_left || !fits {
            break;
        }
        plans.insert(hash);
        programs.extend(program);
    }
    shared.retain(|entry| plans.contains(&entry.hash));
    compile::keep(&programs);
    ROUNDS.fetch_add(1, Relaxed);
}

fn hash(words: &[u64]) -> u64 {
    let mut hasher = FxHasher::default();
    for &word in words {
        hasher.write_u64(word);
    }
    hasher.finish()
}
