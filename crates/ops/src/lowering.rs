//! What a lowering sees: the call's arguments as StableHLO values and attributes, and the builder.
// Contract sketch (to be implemented by the owner of this crate):
//
// pub struct HostParam { pub input: usize, pub dtype: DType }   // run-time 0-d operand, converted on the host to dtype
// pub struct Check { pub message: String, pub kind: CheckKind } // CheckKind::Index: raises IndexError; flag is an extra i1 output, true = failed
// pub struct Lowered { pub outputs: Vec<Option<Value>>, pub host_params: Vec<(HostParam, Value)>, pub rng: Option<Rng{seed: Value /*ui64*/, offset: Value /*ui64*/, increment: u64}>, pub checks: Vec<(Check, Value)> }
//
// pub fn lower_graph(b: &mut stablehlo::Builder, graph: &Graph, device_inputs: &[Option<Value>], modes: &Modes) -> Result<Lowered, LoweringError>
//   device_inputs[i]: the logical (row-major, sizes = meta.sizes) value of input i when InputKind::Device, None for Host.
//   Host inputs become builder parameters on demand (b.parameter(type)) in the dtype that the lowering computes in.
//   outputs: logical row-major values with the sizes and dtype of the graph's outputs' metas (checked).
// pub struct Modes { pub matmul_precision: Precision, pub deterministic: bool, ... }
//
// pub struct OpDef { pub name: &'static str /* functional overload "aten::add.Tensor" */, pub lower: fn(&mut Call) -> Result<Outputs, LoweringError>,
//                    pub attributes: &'static [usize] /* Scalar args whose VALUE is part of the program */, pub kernel: Explicit | Fallback ... }
// pub fn find(name: &str) -> Option<&'static OpDef>;  pub fn all() -> impl Iterator<Item=&'static OpDef>
