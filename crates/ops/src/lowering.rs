//! From a graph of operators to operations of one StableHLO program.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Graph, Node, ValueRef};
use crate::registry;

type Result<T> = std::result::Result<T, LoweringError>;

/// `torch.set_float32_matmul_precision`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    #[default]
    Highest,
    High,
    Medium,
}

/// Global modes that change programs; part of the plan's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Modes {
    pub matmul_precision: Precision,
    /// `torch.use_deterministic_algorithms`
    pub deterministic: bool,
    /// `torch.get_default_dtype()`: the dtype of Python floats in type promotion.
    pub default_dtype: DType,
}

impl Default for Modes {
    fn default() -> Self {
        Self { matmul_precision: Precision::Highest, deterministic: false, default_dtype: DType::Float32 }
    }
}

/// A run-time 0-d operand: input `input` of the graph, converted on the host to `dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostParam {
    pub input: usize,
    pub dtype: DType,
}

/// What to raise when a flag of the program comes back true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub message: String,
    pub kind: CheckKind,
}

/// Two 0-d ui64 parameters, and by how much the program advances the generator's offset.
#[derive(Clone, Copy, Debug)]
pub struct Rng {
    pub seed: Value,
    pub offset: Value,
    pub increment: u64,
}

#[derive(Clone, Debug)]
pub struct Lowered {
    /// Row-major values with the dtypes and sizes of the graph's outputs.
    pub outputs: Vec<Option<Value>>,
    /// Parameters added for host inputs, in the order of their creation.
    pub host_params: Vec<(HostParam, Value)>,
    pub rng: Option<Rng>,
    /// Flags (0-d bool, true = failed; see also [`Call::check_number`]), to be returned by the program as well.
    pub checks: Vec<(Check, Value)>,
    /// The caller raises before it runs the program if the value of the parameter is zero.
    pub nonzero_params: Vec<(HostParam, Check)>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub host_params: Vec<(HostParam, Value)>,
    pub rng: Option<Rng>,
    pub checks: Vec<(Check, Value)>,
    pub nonzero_params: Vec<(HostParam, Check)>,
}

/// The values known so far.
#[derive(Debug)]
pub(crate) struct Values {
    inputs: Vec<Option<Value>>,
    nodes: Vec<Outputs>,
}

impl Values {
    pub fn input(&self, index: usize) -> Result<Value> {
        let value = self.inputs.get(index).copied().flatten();
        value.ok_or(LoweringError::BadReference { what: "device input", index })
    }

    pub fn node(&self, node: usize, output: usize) -> Result<Value> {
        let value = self.nodes.get(node).and_then(|outputs| outputs.0.get(output).copied().flatten());
        value.ok_or(LoweringError::BadReference { what: "value of node", index: node })
    }
}

/// Emits the graph's operators into `b`.
///
/// `device_inputs[i]` is the row-major value of input `i`, with the sizes and dtype of its metadata, for
/// `InputKind::Device`, and `None` for host inputs: those become parameters of `b`, as does the generator's state.
pub fn lower_graph(
    b: &mut Builder,
    graph: &Graph,
    device_inputs: &[Option<Value>],
    modes: &Modes,
) -> Result<Lowered> {
    let mut state = State::default();
    let mut values = Values { inputs: device_inputs.to_vec(), nodes: Vec::with_capacity(graph.nodes.len()) };
    for node in &graph.nodes {
        let outputs = lower_node(b, graph, node, modes, &values, &mut state)
            .map_err(|source| LoweringError::Node { op: node.op.clone(), source: Box::new(source) })?;
        values.nodes.push(outputs);
    }
    let mut outputs = Vec::with_capacity(graph.outputs.len());
    for output in &graph.outputs {
        outputs.push(match *output {
            None => None,
            Some(ValueRef::Input(index)) => Some(values.input(index)?),
            Some(ValueRef::Node(node, output)) => Some(values.node(node, output)?),
        });
    }
    let State { host_params, rng, checks, nonzero_params } = state;
    Ok(Lowered { outputs, host_params, rng, checks, nonzero_params })
}

pub(crate) fn lower_node(
    b: &mut Builder,
    graph: &Graph,
    node: &Node,
    modes: &Modes,
    values: &Values,
    state: &mut State,
) -> Result<Outputs> {
    let def = registry::find(&node.op).ok_or(LoweringError::UnknownOperator)?;
    let outputs = (def.lower)(&mut Call { b, graph, modes, node, def, values, state })?;
    check_outputs(b, node, &outputs)?;
    Ok(outputs)
}

fn check_outputs(b: &Builder, node: &Node, outputs: &Outputs) -> Result<()> {
    if outputs.0.len() != node.outputs.len() {
        return Err(LoweringError::OutputCount { expected: node.outputs.len(), got: outputs.0.len() });
    }
    for (index, (value, meta)) in outputs.0.iter().zip(&node.outputs).enumerate() {
        match (value, meta) {
            (None, None) => {}
            (Some(value), Some(meta)) => {
                let ty = b.ty(*value);
                if ty.elem != meta.dtype.element_type() || ty.dims[..] != meta.sizes[..] {
                    return Err(LoweringError::OutputMismatch {
                        index,
                        dtype: meta.dtype,
                        sizes: meta.sizes.clone(),
                        got_type: format!("{:?}", ty.elem),
                        got_sizes: ty.dims.to_vec(),
                    });
                }
            }
            // A lowering may give a value that nobody asked for (an output mask, say).
            (Some(_), None) => {}
            (None, Some(_)) => return Err(LoweringError::OutputPresence { index }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use stablehlo::TensorType;

    use super::*;
    use crate::graph::{Arg, Dims, Input, InputKind, Number, TensorMeta};

    fn meta(dtype: DType, sizes: &[i64]) -> TensorMeta {
        TensorMeta { dtype, sizes: Dims::from_slice(sizes), strides: Dims::new() }
    }

    /// Tensors first, then host numbers, then one node over the given arguments.
    struct Test {
        graph: Graph,
        args: Vec<Arg>,
    }

    impl Test {
        fn new() -> Self {
            Test { graph: Graph::default(), args: Vec::new() }
        }

        fn input(mut self, meta: TensorMeta, kind: InputKind) -> Self {
            self.args.push(Arg::Tensor(ValueRef::Input(self.graph.inputs.len())));
            self.graph.inputs.push(Input { meta, kind });
            self
        }

        fn tensor(self, dtype: DType, sizes: &[i64]) -> Self {
            self.input(meta(dtype, sizes), InputKind::Device)
        }

        fn scalar(self, dtype: DType) -> Self {
            self.input(meta(dtype, &[]), InputKind::Host { wrapped: true })
        }

        fn arg(mut self, arg: Arg) -> Self {
            self.args.push(arg);
            self
        }

        fn int(self, value: i64) -> Self {
            self.arg(Arg::Number(Number::Int(value)))
        }

        fn lower(mut self, op: &str, dtype: DType, sizes: &[i64]) -> Result<(Lowered, String)> {
            let outputs = vec![Some(meta(dtype, sizes))];
            self.graph.nodes.push(Node { op: op.into(), args: self.args, outputs });
            self.graph.outputs.push(Some(ValueRef::Node(0, 0)));
            let mut b = Builder::new("test");
            let parameter = |input: &Input| match input.kind {
                InputKind::Device => {
                    Some(b.parameter(TensorType::new(input.meta.dtype.element_type(), &input.meta.sizes)))
                }
                InputKind::Host { .. } => None,
            };
            let inputs: Vec<_> = self.graph.inputs.iter().map(parameter).collect();
            let lowered = lower_graph(&mut b, &self.graph, &inputs, &Modes::default())?;
            let results: Vec<_> = lowered.outputs.iter().flatten().copied().collect();
            let text = b.finish(&results)?.into_text();
            Ok((lowered, text))
        }
    }

    #[test]
    fn host_scalars_become_parameters_of_the_computing_dtype() {
        let test = Test::new().tensor(DType::BFloat16, &[2]).scalar(DType::Float64).int(1);
        let (lowered, text) = test.lower("aten::add.Tensor", DType::BFloat16, &[2]).unwrap();
        assert_eq!(lowered.host_params[0].0, HostParam { input: 1, dtype: DType::Float32 });
        insta::assert_snapshot!(text, @r#"
        module @test {
          func.func public @main(%arg0: tensor<2xbf16>, %arg1: tensor<f32>) -> (tensor<2xbf16>) {
            %0 = "stablehlo.convert"(%arg0) : (tensor<2xbf16>) -> tensor<2xf32>
            %1 = "stablehlo.broadcast_in_dim"(%arg1) {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<2xf32>
            %2 = stablehlo.add %0, %1 : tensor<2xf32>
            %3 = "stablehlo.convert"(%2) : (tensor<2xf32>) -> tensor<2xbf16>
            func.return %3 : tensor<2xbf16>
          }
        }
        "#);
    }

    #[test]
    fn a_scalar_of_unknown_value_multiplies() {
        let add = || Test::new().tensor(DType::Float32, &[2]).tensor(DType::Float32, &[2]);
        let (_, one) = add().int(1).lower("aten::add.Tensor", DType::Float32, &[2]).unwrap();
        let (_, any) = add().scalar(DType::Int64).lower("aten::add.Tensor", DType::Float32, &[2]).unwrap();
        assert!(!one.contains("multiply"));
        assert!(any.contains("multiply"));
    }

    #[test]
    fn attributes_need_a_value() {
        let test = Test::new().tensor(DType::Float32, &[2, 2]).scalar(DType::Int64);
        let error = test.lower("aten::tril", DType::Float32, &[2, 2]).unwrap_err();
        assert!(error.to_string().starts_with("aten::tril: argument 1 is a run-time scalar"), "{error}");
    }

    #[test]
    fn results_must_have_the_metadata_of_pytorch() {
        let test = Test::new().tensor(DType::Float32, &[2, 3]).int(0);
        let error = test.lower("aten::cumsum", DType::Float32, &[3, 2]).unwrap_err().to_string();
        assert!(error.starts_with("aten::cumsum: output 0: expected float32 of sizes [3, 2]"), "{error}");
    }

    #[test]
    fn zero_divisors() {
        let error =
            Test::new().tensor(DType::Int64, &[2]).int(0).lower("aten::fmod.Scalar", DType::Int64, &[2]);
        assert_eq!(error.unwrap_err().user_error(), Some(CheckKind::ZeroDivision));
        let host = Test::new().tensor(DType::Int64, &[2]).scalar(DType::Int64);
        let (lowered, _) = host.lower("aten::fmod.Scalar", DType::Int64, &[2]).unwrap();
        assert_eq!(lowered.nonzero_params[0].0, HostParam { input: 1, dtype: DType::Int64 });
        assert!(lowered.checks.is_empty());
        let empty = Test::new().tensor(DType::Int64, &[0]).tensor(DType::Int64, &[1]);
        assert!(empty.lower("aten::fmod.Tensor", DType::Int64, &[0]).unwrap().0.checks.is_empty());
    }

    #[test]
    fn unknown_operators_are_unsupported() {
        let error = Test::new().lower("aten::no_such_operator", DType::Int64, &[]).unwrap_err();
        assert!(error.is_unsupported());
        assert_eq!(error.to_string(), "aten::no_such_operator: no lowering for this operator");
    }
}
