//! The operators that the front end has resolved: names interned once, then integers.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ops::{Number, OpDef};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::call::Call;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub u32);

#[derive(Debug)]
pub struct Operator {
    pub id: OpId,
    /// `aten::add_.Tensor`
    pub name: String,
    /// The functional form, `aten::add.Tensor`; the operator itself when it has none.
    pub functional: String,
    pub has_functional: bool,
    /// Bit i: argument i is written.
    pub mutated: u64,
    pub lowering: Option<&'static OpDef>,
    /// Traced decompositions specialise on numbers, so their values belong to the key. Set from the start for
    /// operators without a lowering, and for others once a call has needed the decomposition.
    specialised: AtomicBool,
}

impl Operator {
    pub fn is_mutated(&self, argument: usize) -> bool {
        argument < 64 && self.mutated & (1 << argument) != 0
    }

    /// Whether the functional form does without argument `argument`: an `out=` tensor.
    pub fn drops_argument(&self, argument: usize) -> bool {
        self.has_functional && base(&self.functional) == base(&self.name) && self.is_mutated(argument)
    }

    /// Whether tensor `slot` of the call is written.
    pub fn is_mutated_slot(&self, call: &Call, slot: usize) -> bool {
        let mut first = 0;
        for (index, arg) in call.args.iter().enumerate() {
            let mut count = 0;
            crate::call::for_each_tensor(std::slice::from_ref(arg), &mut |_, _| count += 1);
            if slot < first + count {
                return self.is_mutated(index);
            }
            first += count;
        }
        false
    }

    pub fn numbers_are_attributes(&self) -> bool {
        self.specialised.load(Relaxed)
    }

    pub fn specialise(&self) {
        self.specialised.store(true, Relaxed);
    }

    /// Whether the value of tensor argument `argument`, when it is a host scalar, is part of the program.
    pub fn is_attribute(&self, argument: usize) -> bool {
        self.lowering.is_some_and(|def| def.attributes.contains(&argument))
    }

    /// Whether a number argument is passed at run time rather than being part of the program. `is_scalar`: its schema
    /// type is `Scalar`.
    pub fn is_operand(&self, argument: usize, number: Number, is_scalar: bool) -> bool {
        let Some(def) = self.lowering.filter(|_| !self.numbers_are_attributes()) else { return false };
        let passed =
            is_scalar && !def.attributes.contains(&argument) || def.float_operands.contains(&argument);
        let one = matches!(number, Number::Int(1) | Number::Bool(true)) || number == Number::Float(1.0);
        passed && !(one && def.ones.contains(&argument))
    }
}

/// The name without its overload.
fn base(name: &str) -> &str {
    name.split_once('.').map_or(name, |(base, _)| base)
}

#[derive(Default)]
struct Table {
    operators: Vec<&'static Operator>,
    by_name: FxHashMap<String, OpId>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(Default::default);

thread_local! {
    static LOCAL: std::cell::RefCell<Vec<&'static Operator>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Registers an operator once. `functional` is empty when the operator has no functional form.
pub fn resolve(name: &str, functional: &str, mutated: u64) -> OpId {
    let mut table = TABLE.write();
    if let Some(id) = table.by_name.get(name) {
        return *id;
    }
    let id = OpId(table.operators.len() as u32);
    let own = ops::find(name);
    let has_functional = !functional.is_empty();
    let form = if has_functional { functional } else { name };
    // An operator's own entry wins over its functional form's.
    let (form, lowering) = match (own, ops::find(form)) {
        (Some(def), _) => (name, Some(def)),
        (None, found) => (form, found),
    };
    table.operators.push(Box::leak(Box::new(Operator {
        id,
        name: name.to_owned(),
        functional: form.to_owned(),
        has_functional: has_functional && form == functional,
        mutated,
        lowering,
        specialised: AtomicBool::new(lowering.is_none()),
    })));
    table.by_name.insert(name.to_owned(), id);
    id
}

pub fn get(id: OpId) -> &'static Operator {
    LOCAL.with_borrow_mut(|local| {
        if let Some(operator) = local.get(id.0 as usize) {
            return *operator;
        }
        local.clone_from(&TABLE.read().operators);
        local[id.0 as usize]
    })
}

pub fn name(id: OpId) -> &'static str {
    &get(id).name
}
