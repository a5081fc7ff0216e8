//! One call of an operator as its lowering sees it: arguments by schema position, and the builder.

use smallvec::SmallVec;
use stablehlo::{Builder, Direction, TensorType, Value};

use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Arg, Dims, Graph, InputKind, Node, Number, TensorMeta, ValueRef};
use crate::lowering::{Check, HostParam, Modes, Rng, State, Values, lower_node};
use crate::promote::{Participant, result_type};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

/// What a lowering returns, one entry per tensor that the operator returns; `None` is an undefined tensor.
#[derive(Clone, Debug, Default)]
pub struct Outputs(pub SmallVec<[Option<Value>; 2]>);

impl From<Value> for Outputs {
    fn from(value: Value) -> Self {
        Self([Some(value)].into_iter().collect())
    }
}

impl<const N: usize> From<[Value; N]> for Outputs {
    fn from(values: [Value; N]) -> Self {
        Self(values.into_iter().map(Some).collect())
    }
}

impl<const N: usize> From<[Option<Value>; N]> for Outputs {
    fn from(values: [Option<Value>; N]) -> Self {
        Self(values.into_iter().collect())
    }
}

impl From<Vec<Value>> for Outputs {
    fn from(values: Vec<Value>) -> Self {
        Self(values.into_iter().map(Some).collect())
    }
}

impl From<Vec<Option<Value>>> for Outputs {
    fn from(values: Vec<Option<Value>>) -> Self {
        Self(values.into_iter().collect())
    }
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Device(Value),
    /// Input of the graph, passed at run time in whatever dtype the lowering asks for.
    Host(usize),
    /// A number inside a traced graph.
    Constant(Number),
}

/// A tensor argument: a device value, a 0-dim value on the host, or a number standing for one.
#[derive(Clone, Debug)]
pub struct Tensor {
    source: Source,
    pub dtype: DType,
    pub sizes: Dims,
    /// A Python number: takes part in type promotion by category.
    pub wrapped: bool,
}

impl Tensor {
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    pub fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// A 0-dim value on the host: CPU kernels keep such an operand in full precision where they compute in opmath.
    pub fn is_host(&self) -> bool {
        !matches!(self.source, Source::Device(_))
    }

    pub fn participant(&self) -> Participant {
        if self.wrapped {
            Participant::Wrapped(self.dtype)
        } else if self.sizes.is_empty() {
            Participant::ZeroDim(self.dtype)
        } else {
            Participant::Dimensioned(self.dtype)
        }
    }
}

/// Seed and offset (both 0-d ui64) of the generator for one operator; see [`Call::rng`].
#[derive(Clone, Copy, Debug)]
pub struct RngState {
    pub seed: Value,
    pub offset: Value,
}

pub struct Call<'a> {
    pub b: &'a mut Builder,
    pub(crate) graph: &'a Graph,
    pub(crate) modes: &'a Modes,
    pub(crate) node: &'a Node,
    pub(crate) def: &'static OpDef,
    pub(crate) values: &'a Values,
    pub(crate) state: &'a mut State,
}

impl Call<'_> {
    pub fn modes(&self) -> &Modes {
        self.modes
    }

    pub fn op(&self) -> &'static str {
        self.def.name
    }

    fn arg(&self, index: usize) -> Result<&Arg> {
        self.node.args.get(index).ok_or_else(|| LoweringError::Argument {
            index,
            expected: "an argument",
            got: format!("a call with {}", self.node.args.len()),
        })
    }

    fn wrong<T>(&self, index: usize, expected: &'static str) -> Result<T> {
        let got = self.node.args.get(index).map_or_else(|| "nothing".into(), |arg| format!("{arg:?}"));
        Err(LoweringError::Argument { index, expected, got })
    }

    fn resolve(&self, reference: ValueRef) -> Result<Tensor> {
        match reference {
            ValueRef::Input(index) => {
                let bad = LoweringError::BadReference { what: "input", index };
                let input = self.graph.inputs.get(index).ok_or(bad)?;
                let (source, wrapped) = match input.kind {
                    InputKind::Device => (Source::Device(self.values.input(index)?), false),
                    InputKind::Host { wrapped } => (Source::Host(index), wrapped),
                };
                Ok(Tensor { source, dtype: input.meta.dtype, sizes: input.meta.sizes.clone(), wrapped })
            }
            ValueRef::Node(node, output) => {
                let bad = LoweringError::BadReference { what: "node", index: node };
                let meta = self.graph.nodes.get(node).and_then(|node| node.outputs.get(output)?.as_ref());
                let meta = meta.ok_or(bad)?;
                let source = Source::Device(self.values.node(node, output)?);
                Ok(Tensor { source, dtype: meta.dtype, sizes: meta.sizes.clone(), wrapped: false })
            }
        }
    }

    fn number_tensor(number: Number) -> Tensor {
        Tensor {
            source: Source::Constant(number),
            dtype: convert::number_dtype(number),
            sizes: Dims::new(),
            wrapped: true,
        }
    }

    pub fn is_none(&self, index: usize) -> bool {
        matches!(self.node.args.get(index), None | Some(Arg::None))
    }

    pub fn tensor(&self, index: usize) -> Result<Tensor> {
        match self.opt_tensor(index)? {
            Some(tensor) => Ok(tensor),
            None => self.wrong(index, "a tensor"),
        }
    }

    /// A tensor argument that may be `None`. A number counts as a wrapped 0-d tensor, as in traced graphs
    /// `aten::add.Tensor(x, 2)`.
    pub fn opt_tensor(&self, index: usize) -> Result<Option<Tensor>> {
        match self.arg(index)? {
            Arg::None => Ok(None),
            Arg::Tensor(reference) => self.resolve(*reference).map(Some),
            Arg::Number(number) => Ok(Some(Self::number_tensor(*number))),
            _ => self.wrong(index, "a tensor or None"),
        }
    }

    /// A list of tensors; also a list of `Scalar`s, each as a wrapped 0-d operand.
    pub fn tensors(&self, index: usize) -> Result<Vec<Tensor>> {
        match self.opt_tensors(index)?.into_iter().collect() {
            Some(tensors) => Ok(tensors),
            None => self.wrong(index, "a list of defined tensors"),
        }
    }

    /// A list with undefined entries, as `aten::index` takes.
    pub fn opt_tensors(&self, index: usize) -> Result<Vec<Option<Tensor>>> {
        match self.arg(index)? {
            Arg::Tensors(references) => {
                references.iter().map(|entry| entry.map(|r| self.resolve(r)).transpose()).collect()
            }
            Arg::Numbers(numbers) => Ok(numbers.iter().map(|n| Some(Self::number_tensor(*n))).collect()),
            Arg::Ints(ints) => Ok(ints.iter().map(|i| Some(Self::number_tensor(Number::Int(*i)))).collect()),
            Arg::Floats(floats) => {
                Ok(floats.iter().map(|f| Some(Self::number_tensor(Number::Float(*f)))).collect())
            }
            _ => self.wrong(index, "a list of tensors"),
        }
    }

    /// The tensor's elements in `dtype`, in the tensor's own dimensions. A host operand becomes a run-time
    /// parameter of that dtype.
    pub fn value(&mut self, tensor: &Tensor, dtype: DType) -> Result<Value> {
        match tensor.source {
            Source::Device(value) => convert::convert(self.b, value, dtype),
            Source::Constant(number) => convert::constant(self.b, number, dtype),
            // The host has no float8: the device rounds it.
            Source::Host(_) if dtype.is_float8() => {
                let value = self.value(tensor, DType::Float32)?;
                convert::convert(self.b, value, dtype)
            }
            Source::Host(input) => {
                let param = HostParam { input, dtype };
                if let Some((_, value)) = self.state.host_params.iter().find(|(known, _)| *known == param) {
                    return Ok(*value);
                }
                let value = self.b.parameter(TensorType::scalar(dtype.element_type()));
                self.state.host_params.push((param, value));
                Ok(value)
            }
        }
    }

    /// [`Call::value`] expanded to `dims` by PyTorch's broadcasting rule.
    pub fn broadcast(&mut self, tensor: &Tensor, dtype: DType, dims: &[i64]) -> Result<Value> {
        let value = self.value(tensor, dtype)?;
        convert::broadcast_to(self.b, value, dims)
    }

    /// Converts a value of this program with PyTorch's casting rules.
    pub fn convert(&mut self, value: Value, dtype: DType) -> Result<Value> {
        convert::convert(self.b, value, dtype)
    }

    /// A constant of the given dimensions, every element `number` in `dtype`.
    pub fn full(&mut self, number: Number, dtype: DType, dims: &[i64]) -> Result<Value> {
        let value = convert::constant(self.b, number, dtype)?;
        convert::broadcast_to(self.b, value, dims)
    }

    /// `at::result_type` of the operands.
    pub fn result_type(&self, tensors: &[&Tensor]) -> Result<DType> {
        result_type(tensors.iter().map(|tensor| tensor.participant()), self.modes.default_dtype).ok_or_else(
            || LoweringError::Promotion { dtypes: tensors.iter().map(|tensor| tensor.dtype).collect() },
        )
    }

    /// A `Scalar` argument as a 0-d operand, whether its value is known here or only at run time.
    pub fn scalar(&mut self, index: usize, dtype: DType) -> Result<Value> {
        let tensor = self.tensor(index)?;
        self.value(&tensor, dtype)
    }

    /// Whether a `Scalar` argument is known to be 1; see [`OpDef::ones`].
    pub fn is_one(&self, index: usize) -> bool {
        match self.node.args.get(index) {
            Some(Arg::Number(Number::Int(1) | Number::Bool(true))) => true,
            Some(Arg::Number(Number::Float(value))) => *value == 1.0,
            _ => false,
        }
    }

    pub fn opt_scalar(&mut self, index: usize, dtype: DType) -> Result<Option<Value>> {
        match self.opt_tensor(index)? {
            Some(tensor) => self.value(&tensor, dtype).map(Some),
            None => Ok(None),
        }
    }

    /// The value of a `Scalar` argument that the operator declares an attribute, or of any other number.
    pub fn number(&self, index: usize) -> Result<Number> {
        match self.arg(index)? {
            Arg::Number(number) => Ok(*number),
            Arg::Tensor(_) if !self.def.attributes.contains(&index) => {
                Err(LoweringError::UndeclaredAttribute { index })
            }
            _ => self.wrong(index, "a number"),
        }
    }

    pub fn opt_number(&self, index: usize) -> Result<Option<Number>> {
        if self.is_none(index) { Ok(None) } else { self.number(index).map(Some) }
    }

    pub fn int(&self, index: usize) -> Result<i64> {
        match self.number(index)? {
            Number::Int(value) => Ok(value),
            Number::Bool(value) => Ok(i64::from(value)),
            _ => self.wrong(index, "an integer"),
        }
    }

    pub fn opt_int(&self, index: usize) -> Result<Option<i64>> {
        if self.is_none(index) { Ok(None) } else { self.int(index).map(Some) }
    }

    pub fn float(&self, index: usize) -> Result<f64> {
        match self.number(index)? {
            Number::Float(value) => Ok(value),
            Number::Int(value) => Ok(value as f64),
            Number::Bool(value) => Ok(f64::from(u8::from(value))),
            Number::Complex(..) => self.wrong(index, "a real number"),
        }
    }

    pub fn opt_float(&self, index: usize) -> Result<Option<f64>> {
        if self.is_none(index) { Ok(None) } else { self.float(index).map(Some) }
    }

    pub fn bool(&self, index: usize) -> Result<bool> {
        match self.number(index)? {
            Number::Bool(value) => Ok(value),
            Number::Int(value) => Ok(value != 0),
            _ => self.wrong(index, "a bool"),
        }
    }

    pub fn opt_bool(&self, index: usize) -> Result<Option<bool>> {
        if self.is_none(index) { Ok(None) } else { self.bool(index).map(Some) }
    }

    /// A list of integers; a single integer counts as a list of one, as in the schemas `int[2]`.
    pub fn ints(&self, index: usize) -> Result<Vec<i64>> {
        match self.arg(index)? {
            Arg::Ints(ints) => Ok(ints.clone()),
            Arg::Number(Number::Int(value)) => Ok(vec![*value]),
            // An empty list carries no element type.
            Arg::Tensors(list) if list.is_empty() => Ok(Vec::new()),
            Arg::Numbers(list) if list.is_empty() => Ok(Vec::new()),
            Arg::Floats(list) if list.is_empty() => Ok(Vec::new()),
            Arg::Bools(list) if list.is_empty() => Ok(Vec::new()),
            _ => self.wrong(index, "a list of integers"),
        }
    }

    pub fn opt_ints(&self, index: usize) -> Result<Option<Vec<i64>>> {
        if self.is_none(index) { Ok(None) } else { self.ints(index).map(Some) }
    }

    pub fn floats(&self, index: usize) -> Result<Vec<f64>> {
        match self.arg(index)? {
            Arg::Floats(floats) => Ok(floats.clone()),
            Arg::Ints(ints) => Ok(ints.iter().map(|i| *i as f64).collect()),
            _ => self.wrong(index, "a list of floats"),
        }
    }

    pub fn bools(&self, index: usize) -> Result<Vec<bool>> {
        match self.arg(index)? {
            Arg::Bools(bools) => Ok(bools.clone()),
            Arg::Ints(list) if list.is_empty() => Ok(Vec::new()),
            _ => self.wrong(index, "a list of bools"),
        }
    }

    pub fn str(&self, index: usize) -> Result<&str> {
        match self.arg(index)? {
            Arg::Str(text) => Ok(text),
            _ => self.wrong(index, "a string"),
        }
    }

    pub fn opt_str(&self, index: usize) -> Result<Option<&str>> {
        if self.is_none(index) { Ok(None) } else { self.str(index).map(Some) }
    }

    /// An optional dtype argument.
    pub fn dtype(&self, index: usize) -> Result<Option<DType>> {
        let Some(number) = self.opt_int(index)? else { return Ok(None) };
        match i8::try_from(number).ok().and_then(DType::from_c10) {
            Some(dtype) => Ok(Some(dtype)),
            None => Err(LoweringError::unsupported(format!("scalar type {number}"))),
        }
    }

    /// A dimension argument counted from 0; `rank` of the tensor it belongs to (0-d tensors count as 1-d).
    pub fn dim(&self, index: usize, rank: usize) -> Result<usize> {
        wrap_dim(self.int(index)?, rank)
    }

    /// The arguments as the graph has them, to hand to [`Call::delegate`].
    pub fn args(&self) -> &[Arg] {
        &self.node.args
    }

    /// Lowers another operator in place of this one: `outputs` are the metadata of its results.
    pub fn delegate(
        &mut self,
        op: &'static str,
        args: Vec<Arg>,
        outputs: Vec<Option<TensorMeta>>,
    ) -> Result<Outputs> {
        let node = Node { op: op.into(), args, outputs };
        lower_node(self.b, self.graph, &node, self.modes, self.values, self.state)
            .map_err(|source| LoweringError::Node { op: node.op, source: Box::new(source) })
    }

    pub fn output_metas(&self) -> &[Option<TensorMeta>] {
        &self.node.outputs
    }

    pub fn outputs(&self) -> usize {
        self.node.outputs.len()
    }

    /// Metadata of output `k`, from PyTorch's Meta kernel.
    pub fn out(&self, k: usize) -> Result<&TensorMeta> {
        let meta = self.node.outputs.get(k).and_then(Option::as_ref);
        meta.ok_or(LoweringError::OutputPresence { index: k })
    }

    /// Whether tensor argument `index` is contiguous, as PyTorch sees it.
    pub fn is_contiguous(&self, index: usize) -> bool {
        let meta = match self.node.args.get(index) {
            Some(Arg::Tensor(ValueRef::Input(input))) => {
                self.graph.inputs.get(*input).map(|input| &input.meta)
            }
            Some(Arg::Tensor(ValueRef::Node(node, output))) => {
                self.graph.nodes.get(*node).and_then(|node| node.outputs.get(*output)?.as_ref())
            }
            _ => None,
        };
        meta.is_some_and(TensorMeta::is_contiguous)
    }

    /// The generator's state for this operator, which draws `increment` offsets. Several operators of one graph get
    /// consecutive offsets, in node order.
    pub fn rng(&mut self, increment: u64) -> Result<RngState> {
        let scalar = TensorType::scalar(DType::UInt64.element_type());
        let rng = match self.state.rng {
            Some(rng) => rng,
            None => {
                Rng { seed: self.b.parameter(scalar.clone()), offset: self.b.parameter(scalar), increment: 0 }
            }
        };
        self.state.rng = Some(Rng { increment: rng.increment + increment, ..rng });
        let offset = if rng.increment == 0 {
            rng.offset
        } else {
            let skipped = self.b.constant(DType::UInt64.element_type(), rng.increment)?;
            self.b.add(rng.offset, skipped)?
        };
        Ok(RngState { seed: rng.seed, offset })
    }

    /// Makes the program report `flag` (0-d bool, true = failed) and the runtime raise `message`.
    pub fn check(&mut self, flag: Value, kind: CheckKind, message: impl Into<String>) {
        self.state.checks.push((Check { message: message.into(), kind }, flag));
    }

    /// A check that names where it failed: `value` is a 0-d int64, 0 where all is well, else a number for `{number}` in
    /// the message and, in the upper 32 bits, one for `{batch}`, or a number of any size for `{index}`. The message must
    /// have one of them.
    pub fn check_number(&mut self, value: Value, kind: CheckKind, message: impl Into<String>) {
        self.check(value, kind, message);
    }

    /// A check that no element is zero: here for a constant, before the launch for a host operand, else on the
    /// device.
    pub fn check_nonzero(
        &mut self,
        tensor: &Tensor,
        dtype: DType,
        kind: CheckKind,
        message: &str,
    ) -> Result<()> {
        match tensor.source {
            Source::Constant(number) if convert::is_zero(number, dtype) => {
                Err(LoweringError::InvalidArgument { kind, message: message.into() })
            }
            Source::Constant(_) => Ok(()),
            Source::Host(input) => {
                let check = Check { message: message.into(), kind };
                self.state.nonzero_params.push((HostParam { input, dtype }, check));
                Ok(())
            }
            Source::Device(value) => {
                let value = convert::convert(self.b, value, dtype)?;
                let zero = convert::splat(self.b, value, Number::Int(0))?;
                let is_zero = self.b.compare(value, zero, Direction::Eq)?;
                let flag = self.any(is_zero)?;
                self.check(flag, kind, message);
                Ok(())
            }
        }
    }

    /// Whether any element of a bool value is true, as a 0-d bool.
    pub fn any(&mut self, value: Value) -> Result<Value> {
        let dims: Vec<i64> = (0..self.b.rank(value) as i64).collect();
        Ok(self.b.reduce_or(value, &dims)?)
    }
}

/// A dimension counted from 0; 0-d tensors accept -1 and 0.
pub fn wrap_dim(dim: i64, rank: usize) -> Result<usize> {
    let rank = rank.max(1) as i64;
    if dim < -rank || dim >= rank {
        return Err(LoweringError::InvalidArgument {
            kind: CheckKind::Index,
            message: format!(
                "Dimension out of range (expected to be in range of [{}, {}], but got {dim})",
                -rank,
                rank - 1
            ),
        });
    }
    Ok(if dim < 0 { dim + rank } else { dim } as usize)
}
