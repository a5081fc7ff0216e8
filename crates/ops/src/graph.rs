//! The operator graph that every front end produces: one node for an eager call, a traced decomposition,
//! or a whole compiled model. Operators are named by their functional overload, `aten::add.Tensor`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::dtype::DType;

pub type Dims = SmallVec<[i64; 6]>;

/// Metadata of a tensor as PyTorch sees it: logical sizes, strides in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorMeta {
    pub dtype: DType,
    pub sizes: Dims,
    pub strides: Dims,
}

impl TensorMeta {
    /// `Tensor::is_contiguous`
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.sizes.contains(&0)
            || self.sizes.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
                let fits = size == 1 || stride == expected;
                expected *= size;
                fits
            })
    }
}

/// A Python or ATen number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
    Complex(f64, f64),
}

/// Where an input of a graph lives.
#[derive(Clone, Debug, PartialEq)]
pub enum InputKind {
    /// A tensor on the device.
    Device,
    /// A 0-dim value on the host, passed at run time: a `Scalar` argument or a 0-dim CPU tensor.
    /// `wrapped` numbers (Python scalars) take part in type promotion by category only.
    Host { wrapped: bool },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    pub meta: TensorMeta,
    pub kind: InputKind,
}

/// A tensor in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueRef {
    Input(usize),
    /// (node, output of that node)
    Node(usize, usize),
}

/// An argument of a node, by position in the operator's schema.
/// Dtypes, layouts and memory formats are `Int` (their c10 numbers), as in the dispatcher.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    None,
    Tensor(ValueRef),
    Tensors(Vec<Option<ValueRef>>),
    /// A number whose value is part of the program.
    Number(Number),
    Numbers(Vec<Number>),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Str(String),
    /// Device or generator: nothing a lowering looks at.
    Opaque,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub op: Arc<str>,
    pub args: Vec<Arg>,
    /// From PyTorch's Meta kernels, never computed here; `None` is an undefined tensor.
    pub outputs: Vec<Option<TensorMeta>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub inputs: Vec<Input>,
    pub nodes: Vec<Node>,
    pub outputs: Vec<Option<ValueRef>>,
}
