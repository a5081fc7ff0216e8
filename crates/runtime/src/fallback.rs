//! The last way an operator can run: on the host. Never silent, except for the operators that are meant to run there.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::hooks;
use crate::operator::Operator;
use crate::stats::{STATS, count};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Policy {
    Error = 0,
    Warn = 1,
    Allow = 2,
}

static POLICY: AtomicU8 = AtomicU8::new(Policy::Warn as u8);

/// Operators that run on the host by design, under any policy: matrix factorisations that no device program computes
/// well. Their forms with `out=` do, too.
const HOST_KERNELS: [&str; 6] = [
    "aten::_linalg_eigvals",
    "aten::linalg_eig",
    "aten::linalg_eigvals",
    "aten::linalg_ldl_factor_ex",
    "aten::linalg_ldl_solve",
    "aten::linalg_lstsq",
];

pub fn is_host_kernel(op: &Operator) -> bool {
    let name = op.name.split_once('.').map_or(op.name.as_str(), |(name, _)| name);
    HOST_KERNELS.contains(&name)
}

/// Why each operator has no program, for the message; also the set of operators warned about.
static REASONS: Mutex<Option<FxHashMap<u32, (String, bool)>>> = Mutex::new(None);

pub fn policy() -> Policy {
    match POLICY.load(Relaxed) {
        0 => Policy::Error,
        1 => Policy::Warn,
        _ => Policy::Allow,
    }
}

/// Returns the previous policy.
pub fn set_policy(policy: Policy) -> Policy {
    let previous = self::policy();
    POLICY.store(policy as u8, Relaxed);
    previous
}

pub fn remember(op: &Operator, reason: String) {
    REASONS.lock().get_or_insert_default().entry(op.id.0).or_insert((reason, false));
}

/// Called before each execution on the host.
pub fn admit(op: &Operator) -> Result<()> {
    if is_host_kernel(op) {
        count(&STATS.host_kernels);
        *STATS.host_kernel_ops.lock().entry(op.name.clone()).or_default() += 1;
        return Ok(());
    }
    let (reason, warned) = REASONS.lock().get_or_insert_default().get(&op.id.0).cloned().unwrap_or_default();
    match policy() {
        Policy::Error => return Err(Error::NotImplemented { op: op.name.clone(), reason }),
        Policy::Warn if !warned => {
            if let Some((_, warned)) = REASONS.lock().get_or_insert_default().get_mut(&op.id.0) {
                *warned = true;
            }
            if let Some(hooks) = hooks::get() {
                (hooks.warn_fallback)(&op.name, &reason)?;
            }
        }
        _ => {}
    }
    count(&STATS.fallbacks);
    *STATS.fallback_ops.lock().entry(op.name.clone()).or_default() += 1;
    Ok(())
}
