//! The module as data: flat vectors of values and operations, indexed by id. An operation's operands
//! and everything inside its regions have smaller ids than the operation itself; dead code
//! elimination and the verifier rely on that order.

use crate::{Dims, TensorType};
use smallvec::SmallVec;

/// Handle of a tensor in one [`Builder`](crate::Builder).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Value(pub(crate) u32);

impl Value {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

pub(crate) type Values = SmallVec<[Value; 3]>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Def {
    Parameter(u32),
    RegionArgument,
    Op { op: u32, result: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct ValueInfo {
    pub ty: TensorType,
    pub def: Def,
    pub scope: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Attr {
    Bool(bool),
    I32(i32),
    I64(i64),
    I64Array(Dims),
    BoolArray(Vec<bool>),
    /// An n x 2 table, as padding attributes have it.
    Pairs(Vec<(i64, i64)>),
    /// MLIR text of an attribute that occurs in one operation only.
    Text(String),
    /// An enum attribute of the StableHLO dialect: `#stablehlo<kind VALUE>`.
    Enum(&'static str, &'static str),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Syntax {
    /// `op %a, %b : type`, for operations whose operands and result share one type.
    SameType,
    /// `stablehlo.constant <literal> : type`; the literal is the only attribute.
    Constant,
    /// MLIR's generic form, which no dialect version can change.
    Generic,
}

#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub name: &'static str,
    pub syntax: Syntax,
    pub operands: Values,
    pub results: SmallVec<[Value; 1]>,
    pub attrs: Vec<(&'static str, Attr)>,
    pub regions: Vec<Region>,
    pub has_side_effect: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub args: Vec<Value>,
    pub ops: Vec<u32>,
    pub results: Values,
    /// The region may use nothing from outside: its own arguments and constants only.
    pub isolated: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub name: String,
    pub values: Vec<ValueInfo>,
    pub ops: Vec<Op>,
    pub live: Vec<bool>,
    pub parameters: Vec<Value>,
    pub arguments: Vec<ArgumentAttr>,
    pub body: Vec<u32>,
    pub results: Vec<Value>,
}

/// Donation of a parameter's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ArgumentAttr {
    #[default]
    None,
    /// The buffer becomes that of this result.
    Alias(usize),
    /// The buffer may be reused for any result.
    Donor,
}
