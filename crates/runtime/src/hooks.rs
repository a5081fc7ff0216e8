//! What the runtime asks of the front end.

use std::sync::OnceLock;

use crate::call::Call;
use crate::error::Result;
use crate::node::CallGraph;

pub struct Hooks {
    /// PyTorch's decomposition of the operator over the call's tensors.
    pub trace: fn(call: &Call) -> Result<Traced>,
    /// Raises what the CPU raises of a call that a Meta kernel in Python has refused, if it does.
    pub refuse: fn(call: &Call) -> Result<()>,
    /// Runs `start`, which loads the plugin, with an environment variable set; restores it afterwards. The front end
    /// does it because a running process's environment is not safe to change without its host language.
    pub with_variable: fn(name: &str, value: &str, start: &mut dyn FnMut()),
    /// Tells the user, once per operator, that it runs on the host. Fails when warnings are errors.
    pub warn_fallback: fn(op: &str, reason: &str) -> Result<()>,
}

pub enum Traced {
    Graph(CallGraph),
    /// No program can be made; why, naming the operators that lack a lowering.
    Missing(String),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

pub fn install(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
}

pub fn get() -> Option<&'static Hooks> {
    HOOKS.get()
}
