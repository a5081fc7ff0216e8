//! Where a value comes from: the operator and the user's source line, for errors that surface later.

use std::fmt;
use std::sync::OnceLock;

use crate::history::Stack;
use crate::operator::OpId;

/// An interned Python source line; 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site(pub u32);

#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub op: OpId,
    pub site: Site,
}

/// Supplied by the front end: how to find the user's current line and to print one.
pub struct SiteHooks {
    pub current: fn() -> Site,
    pub describe: fn(Site) -> Option<String>,
    /// The whole stack, innermost frame first.
    pub stack: fn() -> Option<Stack>,
}

static HOOKS: OnceLock<SiteHooks> = OnceLock::new();

/// Installs the front end's hooks; the first call wins.
pub fn install_site_hooks(hooks: SiteHooks) {
    let _ = HOOKS.set(hooks);
}

pub fn current_site() -> Site {
    HOOKS.get().map_or(Site(0), |hooks| (hooks.current)())
}

pub fn current_stack() -> Option<Stack> {
    HOOKS.get().and_then(|hooks| (hooks.stack)())
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(crate::operator::name(self.op))?;
        match HOOKS.get().and_then(|hooks| (hooks.describe)(self.site)) {
            Some(line) => write!(f, " called at {line}"),
            None => Ok(()),
        }
    }
}
