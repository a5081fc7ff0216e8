//! Rules about a call that are asked before it is lowered: they see the arguments' metadata alone.

use crate::call::wrap_dim;
use crate::error::LoweringError;
use crate::graph::{Arg, Dims, Graph, Number, TensorMeta, ValueRef};

type Result<T> = std::result::Result<T, LoweringError>;

/// From the arguments and the sizes of the output.
pub type Strides = fn(&Arguments<'_>, &[i64]) -> Result<Dims>;
pub type Refusal = fn(&Arguments<'_>) -> Result<()>;

/// An error with this message unless `holds`.
pub fn require(holds: bool, message: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(LoweringError::invalid(message())) }
}

/// The arguments of the only node of a graph.
pub struct Arguments<'a> {
    pub graph: &'a Graph,
    /// What was given as `out=`, in the order of the outputs.
    pub out: &'a [TensorMeta],
}

impl Arguments<'_> {
    fn arg(&self, index: usize) -> Result<&Arg> {
        let arg = self.graph.nodes.first().and_then(|node| node.args.get(index));
        arg.ok_or_else(|| LoweringError::unsupported(format!("argument {index} is missing")))
    }

    pub fn tensor(&self, index: usize) -> Result<&TensorMeta> {
        if let Arg::Tensor(ValueRef::Input(input)) = self.arg(index)?
            && let Some(input) = self.graph.inputs.get(*input)
        {
            return Ok(&input.meta);
        }
        Err(LoweringError::unsupported(format!("argument {index} is no tensor")))
    }

    pub fn int(&self, index: usize) -> Result<i64> {
        match self.arg(index)? {
            Arg::Number(Number::Int(value)) => Ok(*value),
            _ => Err(LoweringError::unsupported(format!("argument {index} is no integer"))),
        }
    }

    pub fn ints(&self, index: usize) -> Result<Dims> {
        match self.arg(index)? {
            Arg::Ints(values) => Ok(values.iter().copied().collect()),
            _ => Err(LoweringError::unsupported(format!("argument {index} is no list of integers"))),
        }
    }

    pub fn bool(&self, index: usize) -> Result<bool> {
        Ok(matches!(self.arg(index)?, Arg::Number(Number::Bool(true) | Number::Int(1))))
    }

    /// A dimension of a tensor of `rank` dimensions; `None` where there is none.
    pub fn opt_dim(&self, index: usize, rank: usize) -> Result<Option<usize>> {
        match self.arg(index)? {
            Arg::Number(Number::Int(dim)) => wrap_dim(*dim, rank).map(Some),
            _ => Ok(None),
        }
    }
}
