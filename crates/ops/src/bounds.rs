//! Metadata of results whose sizes depend on values: what they are at their largest, from the arguments' metadata.

use crate::call::wrap_dim;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Arg, Dims, Graph, Number, TensorMeta, ValueRef};

type Result<T> = std::result::Result<T, LoweringError>;

/// An output of such an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounded {
    /// With the extent at its largest.
    pub meta: TensorMeta,
    /// The dimension whose extent is the number that the program counts, if this output has one. No dimension's stride
    /// but those beyond it in memory may depend on its extent.
    pub dim: Option<usize>,
}

pub type Bound = fn(&Arguments<'_>) -> Result<Vec<Bounded>>;
/// From the arguments and the sizes of the output.
pub type Strides = fn(&Arguments<'_>, &[i64]) -> Result<Dims>;
pub type Refusal = fn(&Arguments<'_>) -> Result<()>;

/// An error with this message unless `holds`.
pub fn require(holds: bool, message: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(LoweringError::invalid(message())) }
}

impl Bounded {
    /// Of `sizes`, row-major; the extent of the first dimension is counted.
    pub fn rows(dtype: DType, sizes: &[i64]) -> Self {
        Self { meta: row_major(dtype, sizes), dim: Some(0) }
    }

    pub fn fixed(dtype: DType, sizes: &[i64]) -> Self {
        Self { meta: row_major(dtype, sizes), dim: None }
    }
}

pub fn row_major(dtype: DType, sizes: &[i64]) -> TensorMeta {
    let mut strides = Dims::from_elem(1, sizes.len());
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    TensorMeta { dtype, sizes: Dims::from_slice(sizes), strides }
}

/// The arguments of the only node of a graph.
pub struct Arguments<'a>(pub &'a Graph);

impl Arguments<'_> {
    fn arg(&self, index: usize) -> Result<&Arg> {
        let arg = self.0.nodes.first().and_then(|node| node.args.get(index));
        arg.ok_or_else(|| LoweringError::unsupported(format!("argument {index} is missing")))
    }

    pub fn tensor(&self, index: usize) -> Result<&TensorMeta> {
        if let Arg::Tensor(ValueRef::Input(input)) = self.arg(index)?
            && let Some(input) = self.0.inputs.get(*input)
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
