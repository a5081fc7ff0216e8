//! The operators that the front end has resolved: names interned once, then integers.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ops::{Number, OpDef};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::call::Call;
use crate::schema::{Schema, Schemas, is_in};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub u32);

#[derive(Debug)]
pub struct Operator {
    pub id: OpId,
    /// `aten::add_.Tensor`
    pub name: String,
    pub schema: Schema,
    /// PyTorch's tag: the operator is TensorIterator's on the CPU.
    pub is_pointwise: bool,
    /// The functional form, `aten::add.Tensor`; the operator itself when it has none.
    pub functional: String,
    pub has_functional: bool,
    /// Bit i: argument i is written, whether its schema says so or its declaration here.
    pub mutated: u64,
    pub lowering: Option<&'static OpDef>,
    /// Traced decompositions specialise on numbers, so their values belong to the key. Set from the start for
    /// operators without a lowering, and for others once a call has needed the decomposition.
    specialised: AtomicBool,
    /// How many calls ran PyTorch's decomposition.
    pub decomposed_calls: AtomicU64,
}

impl Operator {
    pub fn is_mutated(&self, argument: usize) -> bool {
        argument < 64 && self.mutated & (1 << argument) != 0
    }

    /// Whether the functional form does without argument `argument`: an `out=` tensor.
    pub fn drops_argument(&self, argument: usize) -> bool {
        self.has_functional && self.schema.arguments.get(argument).is_some_and(|argument| argument.is_out)
    }

    /// Whether the operator only gives its arguments new values: `add_`, not `add.out`, which may resize.
    pub fn is_in_place(&self) -> bool {
        let mut written = self.schema.arguments.iter().filter(|argument| argument.ty.written.is_some());
        self.has_functional
            && written.all(|argument| !argument.is_out)
            && (0..self.schema.returns.len()).all(|index| self.schema.returned_argument(index).is_some())
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

#[derive(Default)]
struct Table {
    operators: Vec<&'static Operator>,
    by_name: FxHashMap<String, OpId>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(Default::default);
static SCHEMAS: LazyLock<RwLock<Schemas>> = LazyLock::new(Default::default);

thread_local! {
    static LOCAL: std::cell::RefCell<Vec<&'static Operator>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Makes an operator known, so that functional forms are found among all.
pub fn declare(schema: &str, is_structured: bool) {
    if let Some(schema) = Schema::parse(schema) {
        SCHEMAS.write().declare(Schema { is_structured, ..schema });
    }
}

/// Operators of this namespace were removed from PyTorch, and may come back as others. What is still running keeps its
/// operators; those resolved from now on have new numbers, so that no plan of the old ones is found.
pub fn forget(namespace: &str) {
    SCHEMAS.write().forget(namespace);
    TABLE.write().by_name.retain(|name, _| !is_in(namespace, name));
}

/// The declared operators that should have a kernel of their own: those with a native lowering, and those whose
/// functional form has one. Left to themselves, the in-place forms of structured operators would check shapes in C++ on
/// every call and arrive as `.out`.
pub fn with_own_kernel() -> Vec<String> {
    let schemas = SCHEMAS.read();
    let native = |name: &str| ops::find(name).filter(|def| def.explicit);
    let wanted = schemas.iter().filter(|schema| {
        let form = || schemas.functional_form(schema).and_then(|form| native(&form.name));
        // Where values decide the size, PyTorch's own `out=` form resizes once it is known.
        native(&schema.name).is_some()
            || schema.is_mutable() && form().is_some_and(|form| form.bounded.is_none())
    });
    wanted.map(|schema| schema.name.clone()).collect()
}

/// A declared operator.
pub fn resolve(name: &str, is_pointwise: bool) -> Option<&'static Operator> {
    let schemas = SCHEMAS.read();
    let schema = schemas.get(name)?;
    let functional = if schema.is_mutable() { schemas.functional_form(schema) } else { None };
    let is_structured = schema.is_structured || functional.is_some_and(|form| form.is_structured);
    let functional = functional.map(|form| form.name.as_str());
    Some(intern(Schema { is_structured, ..schema.clone() }, functional, is_pointwise))
}

/// Registers an operator once.
pub fn intern(schema: Schema, functional: Option<&str>, is_pointwise: bool) -> &'static Operator {
    let mut table = TABLE.write();
    if let Some(id) = table.by_name.get(&schema.name) {
        return table.operators[id.0 as usize];
    }
    let id = OpId(table.operators.len() as u32);
    let name = schema.name.clone();
    // An operator's own entry wins over its functional form's.
    let own = ops::find(&name);
    let functional = functional.filter(|_| own.is_none());
    let form = functional.unwrap_or(&name).to_owned();
    let lowering = ops::find(&form);
    let undeclared = own.map_or(&[][..], |def| def.writes);
    let writes = |index: usize| schema.arguments[index].ty.written.is_some() || undeclared.contains(&index);
    let mutated = (0..schema.arguments.len().min(64)).filter(|&index| writes(index));
    let mutated = mutated.fold(0, |bits, index| bits | 1 << index);
    let operator: &'static Operator = Box::leak(Box::new(Operator {
        id,
        name: name.clone(),
        has_functional: functional.is_some(),
        functional: form,
        mutated,
        is_pointwise,
        lowering,
        specialised: AtomicBool::new(lowering.is_none()),
        decomposed_calls: AtomicU64::new(0),
        schema,
    }));
    table.operators.push(operator);
    table.by_name.insert(name, id);
    operator
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

/// The operators with calls that ran PyTorch's decomposition, and how many did.
pub fn decomposed() -> BTreeMap<String, u64> {
    let table = TABLE.read();
    let calls = table.operators.iter().map(|op| (op.name.clone(), op.decomposed_calls.load(Relaxed)));
    calls.filter(|(_, count)| *count != 0).collect()
}

pub fn reset_decomposed() {
    for op in &TABLE.read().operators {
        op.decomposed_calls.store(0, Relaxed);
    }
}
