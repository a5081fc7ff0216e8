//! A natively lowered call as a graph of one node.

use ops::{Arg, DType, Dims, Graph, Input, InputKind, Node, Number, TensorMeta, ValueRef};

use crate::call::{self, Call};
use crate::plan::MetaResult;

/// An operator as a graph over the call's tensors.
pub struct CallGraph {
    pub graph: Graph,
    /// The slot that each input of the graph is.
    pub slots: Vec<usize>,
    /// The graph gives the new values of mutated tensors before its fresh results (traced in-place operators).
    pub mutated_first: bool,
}

/// The single node that a natively lowered call is.
pub fn single_node(call: &Call, metas: &MetaResult) -> CallGraph {
    let mut builder = NodeBuilder { graph: Graph::default(), slots: Vec::new(), slot: 0 };
    let mut args = Vec::with_capacity(call.args.len());
    for (index, arg) in call.args.iter().enumerate() {
        if call.op.drops_argument(index) {
            builder.skip(arg);
        } else {
            args.push(builder.arg(call, index, arg));
        }
    }
    let outputs = metas.functional.clone();
    let mut graph = builder.graph;
    graph.outputs =
        outputs.iter().enumerate().map(|(k, meta)| meta.as_ref().map(|_| ValueRef::Node(0, k))).collect();
    graph.nodes.push(Node { op: call.op.functional.as_str().into(), args, outputs });
    CallGraph { graph, slots: builder.slots, mutated_first: false }
}

struct NodeBuilder {
    graph: Graph,
    slots: Vec<usize>,
    slot: usize,
}

impl NodeBuilder {
    fn skip(&mut self, value: &call::Value) {
        match value {
            call::Value::Tensor(_) | call::Value::Host(_) => self.slot += 1,
            call::Value::List(list) => list.iter().for_each(|item| self.skip(item)),
            _ => {}
        }
    }

    fn input(&mut self, meta: TensorMeta, kind: InputKind) -> ValueRef {
        self.graph.inputs.push(Input { meta, kind });
        ValueRef::Input(self.graph.inputs.len() - 1)
    }

    fn tensor(&mut self, value: &call::Value) -> Option<ValueRef> {
        let (meta, kind) = match value {
            call::Value::Tensor(tensor) => {
                (meta_of(tensor.dtype, tensor.sizes, tensor.strides), InputKind::Device)
            }
            call::Value::Host(host) => {
                (meta_of(host.dtype, host.sizes, host.strides), InputKind::Host { wrapped: host.wrapped })
            }
            _ => return None,
        };
        self.slots.push(self.slot);
        self.slot += 1;
        Some(self.input(meta, kind))
    }

    fn arg(&mut self, call: &Call, index: usize, value: &call::Value) -> Arg {
        match value {
            call::Value::None => Arg::None,
            call::Value::Host(host) if call.op.is_attribute(index) => {
                self.slot += 1;
                Arg::Number(host.number)
            }
            call::Value::Tensor(_) | call::Value::Host(_) => {
                self.tensor(value).map_or(Arg::None, Arg::Tensor)
            }
            call::Value::Number { number, is_scalar } if call.op.is_operand(index, *number, *is_scalar) => {
                // A Scalar argument is a host input of its own, beside the tensors: its slot is usize::MAX.
                self.slots.push(usize::MAX);
                let dtype = number_dtype(*number);
                Arg::Tensor(self.input(meta_of(dtype, &[], &[]), InputKind::Host { wrapped: true }))
            }
            call::Value::Number { number, .. } => Arg::Number(*number),
            call::Value::Str(s) => Arg::Str((*s).to_owned()),
            call::Value::Ints(ints) => Arg::Ints(ints.to_vec()),
            call::Value::Floats(floats) => Arg::Floats(floats.to_vec()),
            call::Value::Bools(bools) => Arg::Bools(bools.iter().map(|&b| b != 0).collect()),
            call::Value::List(list) => self.list(call, index, list),
            call::Value::Generator(_) | call::Value::Device | call::Value::Other => Arg::Opaque,
        }
    }

    fn list(&mut self, call: &Call, index: usize, list: &[call::Value]) -> Arg {
        let is_numbers =
            !list.is_empty() && list.iter().all(|item| matches!(item, call::Value::Number { .. }));
        if !is_numbers {
            return Arg::Tensors(list.iter().map(|item| self.tensor(item)).collect());
        }
        let is_constant = |item: &call::Value| match item {
            call::Value::Number { number, is_scalar } => !call.op.is_operand(index, *number, *is_scalar),
            _ => false,
        };
        if list.iter().all(is_constant) {
            let number = |item: &call::Value| match item {
                call::Value::Number { number, .. } => *number,
                _ => Number::Int(0),
            };
            return Arg::Numbers(list.iter().map(number).collect());
        }
        let scalar = |item| match self.arg(call, index, item) {
            Arg::Tensor(reference) => Some(reference),
            _ => None,
        };
        Arg::Tensors(list.iter().map(scalar).collect())
    }
}

fn meta_of(dtype: DType, sizes: &[i64], strides: &[i64]) -> TensorMeta {
    TensorMeta { dtype, sizes: Dims::from_slice(sizes), strides: Dims::from_slice(strides) }
}

fn number_dtype(number: Number) -> DType {
    match number {
        Number::Bool(_) => DType::Bool,
        Number::Int(_) => DType::Int64,
        Number::Float(_) => DType::Float64,
        Number::Complex(..) => DType::Complex128,
    }
}
