//! Builds the program of a call: reads each view, lowers the operator, writes results into the storages they belong to.

use ops::{DType, Dims, Graph, TensorMeta, ValueRef};
use smallvec::SmallVec;
use stablehlo::{Builder, Direction, ElementType, TensorType, Value};

use crate::bitcast;
use crate::call::{self, Call, Tensor};
use crate::error::{Error, Result};
use crate::layout::{self, Layout};
use crate::node::CallGraph;
use crate::plan::{CheckInfo, MetaResult, Operand, Recorded, Sink};
use crate::signature::{self, Placement, Signature};
use crate::storage::Contents;
use crate::strided::{self, Start, View};

pub struct Program {
    pub recorded: Recorded,
    /// Empty when there is nothing to run.
    pub text: String,
}

// A call has few slots: boxing the large variant would buy nothing.
#[allow(clippy::large_enum_variant)]
enum Slot<'a> {
    Device {
        tensor: Tensor<'a>,
        class: usize,
        /// Unknown for uninitialised storages.
        placement: Option<Placement>,
        first_start: usize,
    },
    Host {
        index: usize,
    },
}

struct Base {
    layout: Layout,
    value: Value,
    parameter: Option<Value>,
    written: bool,
}

struct Planner<'a> {
    b: Builder,
    signature: &'a Signature,
    slots: Vec<Slot<'a>>,
    parameters: Vec<(Value, Operand)>,
    bases: Vec<Option<Base>>,
    op: &'a str,
}

/// Lowers `graph` over the call's tensors into one program.
pub fn plan(
    call: &Call,
    signature: &Signature,
    metas: &MetaResult,
    graph: &CallGraph,
) -> Result<Program, PlanError> {
    let mut planner = Planner {
        b: Builder::new("tpu"),
        signature,
        slots: slots(call, signature)?,
        parameters: Vec::new(),
        bases: (0..signature.storages.len()).map(|_| None).collect(),
        op: &call.op.name,
    };
    planner.run(call, metas, graph)
}

/// Why a plan could not be made.
#[derive(Debug)]
pub enum PlanError {
    /// The lowering does not cover this form of the operator.
    Unsupported(String),
    Failed(Error),
}

impl From<Error> for PlanError {
    fn from(error: Error) -> Self {
        PlanError::Failed(error)
    }
}

fn slots<'a>(call: &'a Call, signature: &Signature) -> Result<Vec<Slot<'a>>> {
    let mut slots = Vec::new();
    let mut first_start = 0;
    let mut error = None;
    call::for_each_tensor(call.args, &mut |_, value| match value {
        call::Value::Tensor(tensor) => match device_slot(*tensor, signature, &mut first_start) {
            Ok(slot) => slots.push(slot),
            Err(e) => error = Some(e),
        },
        _ => slots.push(Slot::Host { index: 0 }),
    });
    number_hosts(call, &mut slots);
    error.map_or(Ok(slots), Err)
}

/// Host tensors and Scalar arguments share one numbering, in argument order.
fn number_hosts(call: &Call, slots: &mut [Slot]) {
    fn walk(
        call: &Call,
        index: usize,
        value: &call::Value,
        slot: &mut usize,
        host: &mut usize,
        slots: &mut [Slot],
    ) {
        match value {
            call::Value::Tensor(_) => *slot += 1,
            call::Value::Host(_) => {
                slots[*slot] = Slot::Host { index: *host };
                *slot += 1;
                *host += 1;
            }
            call::Value::Number { number, is_scalar } if call.op.is_operand(index, *number, *is_scalar) => {
                *host += 1
            }
            call::Value::List(list) => {
                list.iter().for_each(|item| walk(call, index, item, slot, host, slots))
            }
            _ => {}
        }
    }
    let (mut slot, mut host) = (0, 0);
    for (index, value) in call.args.iter().enumerate() {
        walk(call, index, value, &mut slot, &mut host, slots);
    }
}

/// The host number of each graph input that is a Scalar argument, in graph input order.
fn scalar_hosts(call: &Call) -> Vec<usize> {
    fn walk(call: &Call, index: usize, value: &call::Value, host: &mut usize, found: &mut Vec<usize>) {
        match value {
            call::Value::Host(_) => *host += 1,
            call::Value::Number { number, is_scalar } if call.op.is_operand(index, *number, *is_scalar) => {
                found.push(*host);
                *host += 1;
            }
            call::Value::List(list) => list.iter().for_each(|item| walk(call, index, item, host, found)),
            _ => {}
        }
    }
    let (mut host, mut found) = (0, Vec::new());
    for (index, value) in call.args.iter().enumerate() {
        walk(call, index, value, &mut host, &mut found);
    }
    found
}

fn device_slot<'a>(tensor: Tensor<'a>, signature: &Signature, first_start: &mut usize) -> Result<Slot<'a>> {
    let class = signature
        .storages
        .iter()
        .position(|bound| std::sync::Arc::ptr_eq(&bound.storage, tensor.storage))
        .ok_or_else(|| Error::internal("a tensor is missing from its signature"))?;
    let start = *first_start;
    let placement = match &signature.storages[class].contents {
        Contents::Buffer(held) => {
            let fixed = || {
                signature::place_fixed(held.layout, tensor.dtype, tensor.sizes, tensor.strides, tensor.offset)
            };
            if tensor.offset == 0 {
                Some(fixed())
            } else {
                let placement = signature::place(held.layout, &tensor)?;
                *first_start += placement.starts.iter().filter(|(_, operand)| *operand).count();
                Some(if signature.is_entangled(class) { fixed() } else { placement })
            }
        }
        _ => None,
    };
    Ok(Slot::Device { tensor, class, placement, first_start: start })
}

impl Planner<'_> {
    fn run(&mut self, call: &Call, metas: &MetaResult, call_graph: &CallGraph) -> Result<Program, PlanError> {
        let graph = &call_graph.graph;
        let scalars = scalar_hosts(call);
        let mut scalars = scalars.iter();
        let mut inputs = Vec::with_capacity(graph.inputs.len());
        let mut hosts = Vec::with_capacity(graph.inputs.len());
        for &slot in &call_graph.slots {
            match self.slots.get(slot) {
                None => {
                    inputs.push(None);
                    hosts.push(scalars.next().copied().unwrap_or(0));
                }
                Some(Slot::Host { index }) => {
                    inputs.push(None);
                    hosts.push(*index);
                }
                Some(Slot::Device { .. }) => {
                    let value = self.read(slot)?;
                    inputs.push(Some(value));
                    hosts.push(0);
                }
            }
        }
        let lowered =
            ops::lower_graph(&mut self.b, graph, &inputs, &call.modes.unpack()).map_err(|source| {
                if source.is_unsupported() {
                    PlanError::Unsupported(source.to_string())
                } else {
                    PlanError::Failed(lowering_error(self.op, source))
                }
            })?;
        for (param, value) in &lowered.host_params {
            self.parameters.push((*value, Operand::Host(hosts[param.input] as u32, param.dtype)));
        }
        if let Some(rng) = &lowered.rng {
            self.parameters.push((rng.seed, Operand::Seed));
            self.parameters.push((rng.offset, Operand::RngOffset));
        }
        let (fresh, mutated) =
            self.split_outputs(graph, &lowered.outputs, metas, call_graph.mutated_first)?;
        let mut results = Vec::new();
        let mut sinks = Vec::new();
        for (k, (value, meta)) in fresh.iter().enumerate() {
            if let (Some(value), Some(meta)) = (value, meta)
                && !meta.sizes.contains(&0)
            {
                let (value, layout) = self.store_fresh(*value, meta)?;
                results.push(value);
                sinks.push(Sink::Fresh(k as u32, layout));
            }
        }
        // Nothing is written where the new value is the old one. Memory that nobody has written has no old value,
        // though reading it gives one.
        let is_unchanged = |slots: &[Slot<'_>], slot: usize, value: Value| {
            matches!(slots[slot], Slot::Device { placement: Some(_), .. })
                && call_graph
                    .slots
                    .iter()
                    .zip(&inputs)
                    .any(|(&read, &old)| read == slot && old == Some(value))
        };
        let is_atomic = lowered.checks.is_empty()
            || !call.op.is_in_place()
            || call.op.lowering.is_some_and(|def| def.atomic);
        for ((slot, _), value) in metas.mutated.iter().zip(mutated) {
            if let Some(mut value) = value.filter(|value| !is_unchanged(&self.slots, *slot, *value)) {
                if !is_atomic {
                    value = self.unless_failed(*slot, value, &lowered.checks)?;
                }
                self.write(*slot, value)?;
            }
        }
        let rng_increment = lowered.rng.map_or(0, |rng| rng.increment);
        let outputs = fresh.into_iter().map(|(_, meta)| meta).collect();
        let checks = lowered.checks.into_iter().unzip();
        let nonzero_hosts = lowered
            .nonzero_params
            .into_iter()
            .map(|(param, check)| (hosts[param.input] as u32, check_info(check)))
            .collect();
        let mut program =
            self.finish(outputs, results, sinks, checks, rng_increment).map_err(PlanError::Failed)?;
        program.recorded.nonzero_hosts = nonzero_hosts;
        program.recorded.bounded.clone_from(&metas.bounded);
        Ok(program)
    }

    /// The new value of an in-place operator's tensor, and the old one when a check fails.
    fn unless_failed(&mut self, slot: usize, value: Value, checks: &[(ops::Check, Value)]) -> Result<Value> {
        let old = self.read(slot)?;
        self.select_unless_failed(old, value, checks).map_err(|source| self.build_error(source))
    }

    fn select_unless_failed(
        &mut self,
        old: Value,
        value: Value,
        checks: &[(ops::Check, Value)],
    ) -> Result<Value, stablehlo::Error> {
        let mut value = value;
        let sizes = Dims::from_slice(self.b.dims(value));
        let elem = self.b.elem(value);
        let old = if self.b.elem(old) == elem { old } else { self.b.convert(old, elem)? };
        for &(_, flag) in checks {
            let kind = self.b.elem(flag);
            let failed = if kind == ElementType::Pred {
                flag
            } else {
                let fine = self.b.zero(kind)?;
                self.b.compare(flag, fine, Direction::Ne)?
            };
            let failed = self.b.broadcast_scalar(failed, &sizes)?;
            value = self.b.select(failed, old, value)?;
        }
        Ok(value)
    }

    /// Fresh results with their metadata, and the new values of the mutated tensors.
    #[allow(clippy::type_complexity)]
    fn split_outputs(
        &self,
        graph: &Graph,
        outputs: &[Option<Value>],
        metas: &MetaResult,
        mutated_first: bool,
    ) -> Result<(Vec<(Option<Value>, Option<TensorMeta>)>, Vec<Option<Value>>)> {
        let mutated = metas.mutated.len();
        let fresh = outputs.len().checked_sub(mutated).ok_or_else(|| {
            Error::internal(format!("{}: {} results for {mutated} mutated tensors", self.op, outputs.len()))
        })?;
        let (fresh_at, mutated_at) = if mutated_first { (mutated, 0) } else { (0, fresh) };
        let metas = graph.outputs[fresh_at..fresh_at + fresh].iter().map(|output| match output {
            None => None,
            Some(ValueRef::Input(index)) => Some(graph.inputs[*index].meta.clone()),
            Some(ValueRef::Node(node, k)) => graph.nodes[*node].outputs[*k].clone(),
        });
        let fresh = outputs[fresh_at..fresh_at + fresh].iter().copied().zip(metas).collect();
        Ok((fresh, outputs[mutated_at..mutated_at + mutated].to_vec()))
    }

    fn finish(
        &mut self,
        outputs: Vec<Option<TensorMeta>>,
        mut results: Vec<Value>,
        mut sinks: Vec<Sink>,
        (checks, flags): (Vec<ops::Check>, Vec<Value>),
        rng_increment: u64,
    ) -> Result<Program> {
        self.parameters.sort_by_key(|(value, _)| *value);
        let mut donated = Vec::new();
        for (class, base) in self.bases.iter().enumerate() {
            let Some(base) = base.as_ref().filter(|base| base.written) else { continue };
            if let Some(parameter) = base.parameter
                && self.b.ty(parameter) == self.b.ty(base.value)
                && let Some(index) = self.parameters.iter().position(|(value, _)| *value == parameter)
            {
                self.b.alias(index, results.len());
                donated.push(index as u32);
            }
            results.push(base.value);
            sinks.push(Sink::Storage(class as u32, base.layout.clone()));
        }
        results.extend(flags);
        let builder = std::mem::replace(&mut self.b, Builder::new("tpu"));
        let text = if results.is_empty() {
            String::new()
        } else {
            builder.finish(&results).map_err(|source| self.build_error(source))?.into_text()
        };
        let recorded = Recorded {
            outputs,
            operands: self.parameters.iter().map(|(_, operand)| *operand).collect(),
            donated,
            sinks,
            checks: checks.into_iter().map(check_info).collect(),
            rng_increment,
            program: (!text.is_empty()).then(|| *blake3::hash(text.as_bytes()).as_bytes()),
            ..Recorded::default()
        };
        Ok(Program { recorded, text })
    }

    fn build_error(&self, source: stablehlo::Error) -> Error {
        Error::Build { op: self.op.to_owned(), source: std::sync::Arc::new(source) }
    }

    /// The base buffer of a storage as it is now in the program.
    fn base(&mut self, class: usize, tensor: &Tensor) -> Result<(Value, Layout)> {
        if let Some(base) = &self.bases[class] {
            return Ok((base.value, base.layout.clone()));
        }
        let bound = &self.signature.storages[class];
        let (value, layout, parameter) = match &bound.contents {
            Contents::Buffer(held) => {
                let layout = layout::get(held.layout).clone();
                let value = self.b.parameter(layout.tensor_type());
                self.parameters.push((value, Operand::Base(class as u32)));
                (value, layout, Some(value))
            }
            Contents::Empty(declared) => {
                let layout = match declared {
                    Some(layout) => layout::get(*layout).clone(),
                    None => undeclared_layout(bound.storage.nbytes(), tensor.dtype),
                };
                let ty = layout.tensor_type();
                let zeros = self.b.splat(ty.elem, &ty.dims, 0i64).map_err(|e| self.build_error(e))?;
                (zeros, layout, None)
            }
            Contents::Failed(error) => return Err((**error).clone()),
        };
        self.bases[class] = Some(Base { layout: layout.clone(), value, parameter, written: false });
        Ok((value, layout))
    }

    fn read(&mut self, slot: usize) -> Result<Value> {
        let Slot::Device { tensor, class, placement, first_start } = &self.slots[slot] else {
            return Err(Error::internal("a host tensor is not read from a buffer"));
        };
        let (tensor, class, placement, first_start) = (*tensor, *class, placement.clone(), *first_start);
        let (base, layout) = self.base(class, &tensor)?;
        let placement = placement.unwrap_or_else(|| fixed_placement(&layout, &tensor));
        let view = self.view(&tensor, &layout, &placement, first_start);
        let value = strided::read(&mut self.b, base, &layout, &view).map_err(|e| self.build_error(e))?;
        self.resolve_flags(value, &tensor).map_err(|e| self.build_error(e))
    }

    fn resolve_flags(&mut self, value: Value, tensor: &Tensor) -> Result<Value, stablehlo::Error> {
        let mut value = value;
        if tensor.conj && tensor.dtype.is_complex() {
            value = bitcast::conjugate(&mut self.b, value)?;
        }
        if tensor.neg {
            value = self.b.negate(value)?;
        }
        Ok(value)
    }

    fn view<'t>(
        &mut self,
        tensor: &Tensor<'t>,
        layout: &Layout,
        placement: &'t Placement,
        first_start: usize,
    ) -> View<'t> {
        let (elem, dtype) = if layout.elements() <= i64::from(i32::MAX) {
            (ElementType::S32, DType::Int32)
        } else {
            (ElementType::S64, DType::Int64)
        };
        let mut next = first_start as u32;
        let mut starts = Vec::with_capacity(placement.starts.len());
        for &(start, operand) in &placement.starts {
            if !operand {
                starts.push(Start::Static(start));
                continue;
            }
            let known =
                self.parameters.iter().find(|(_, o)| *o == Operand::Start(next, dtype)).map(|(v, _)| *v);
            let value = known.unwrap_or_else(|| {
                let value = self.b.parameter(TensorType::scalar(elem));
                self.parameters.push((value, Operand::Start(next, dtype)));
                value
            });
            starts.push(Start::Operand(value));
            next += 1;
        }
        View {
            dtype: tensor.dtype,
            sizes: tensor.sizes,
            strides: tensor.strides,
            recipe: &placement.recipe,
            starts,
        }
    }

    /// A new storage's buffer: the dense tensor in memory order.
    fn store_fresh(&mut self, value: Value, meta: &TensorMeta) -> Result<(Value, Layout)> {
        let stored = match layout::memory_order(&meta.sizes, &meta.strides) {
            Some(order) => self.in_memory_order(value, meta.dtype, &order),
            None => {
                let nbytes = storage_elements(&meta.sizes, &meta.strides);
                let layout = Layout::dense(meta.dtype, Dims::from_slice(&[nbytes]));
                let ty = layout.tensor_type();
                let tensor_view = (meta.dtype, &meta.sizes[..], &meta.strides[..]);
                self.b.splat(ty.elem, &ty.dims, 0i64).and_then(|base| {
                    let id = layout::intern(layout.clone());
                    let placement =
                        signature::place_fixed(id, tensor_view.0, tensor_view.1, tensor_view.2, 0);
                    let view = View {
                        dtype: tensor_view.0,
                        sizes: tensor_view.1,
                        strides: tensor_view.2,
                        recipe: &placement.recipe,
                        starts: placement.starts.iter().map(|(start, _)| Start::Static(*start)).collect(),
                    };
                    Ok((strided::write(&mut self.b, base, &layout, &view, value)?, layout))
                })
            }
        };
        stored.map_err(|e| self.build_error(e))
    }

    fn in_memory_order(
        &mut self,
        value: Value,
        dtype: DType,
        order: &[usize],
    ) -> Result<(Value, Layout), stablehlo::Error> {
        let permutation: SmallVec<[i64; 6]> = order.iter().map(|&d| d as i64).collect();
        let stored = strided::transpose_if_needed(&mut self.b, value, &permutation)?;
        let dims = Dims::from_slice(self.b.dims(stored));
        Ok((stored, Layout::dense(dtype, dims)))
    }

    /// Writes the new value of a mutated tensor into its storage.
    fn write(&mut self, slot: usize, value: Value) -> Result<()> {
        let Slot::Device { tensor, class, placement, first_start } = &self.slots[slot] else {
            return Err(Error::Runtime(format!(
                "{}: a CPU tensor cannot be the output of a tpu operator",
                self.op
            )));
        };
        let (tensor, class, placement, first_start) = (*tensor, *class, placement.clone(), *first_start);
        if tensor.sizes.contains(&0) {
            return Ok(());
        }
        let elem = tensor.dtype.element_type();
        let mut value = if self.b.elem(value) == elem {
            value
        } else {
            self.b.convert(value, elem).map_err(|e| self.build_error(e))?
        };
        value = self.resolve_flags(value, &tensor).map_err(|e| self.build_error(e))?;
        let nbytes = self.signature.storages[class].storage.nbytes();
        let covers = tensor.offset == 0 && tensor.numel() as usize * tensor.dtype.size() == nbytes;
        if covers && let Some(order) = layout::memory_order(tensor.sizes, tensor.strides) {
            let (value, layout) =
                self.in_memory_order(value, tensor.dtype, &order).map_err(|e| self.build_error(e))?;
            let parameter = self.bases[class].as_ref().and_then(|base| base.parameter);
            self.bases[class] = Some(Base { layout, value, parameter, written: true });
            return Ok(());
        }
        let rewritten = self.bases[class].as_ref().is_some_and(|base| base.written);
        let (base, layout) = self.base(class, &tensor)?;
        let (base, layout) =
            self.bytes_if_bool(base, layout, tensor.dtype).map_err(|e| self.build_error(e))?;
        let placement = placement.filter(|_| !rewritten).unwrap_or_else(|| fixed_placement(&layout, &tensor));
        let mut view = self.view(&tensor, &layout, &placement, first_start);
        if tensor.dtype == DType::Bool && layout.dtype != DType::Bool {
            value = self.b.convert(value, ElementType::U8).map_err(|e| self.build_error(e))?;
            view.dtype = DType::UInt8;
        }
        let written =
            strided::write(&mut self.b, base, &layout, &view, value).map_err(|e| self.build_error(e))?;
        if let Some(state) = &mut self.bases[class] {
            state.value = written;
            state.layout = layout;
            state.written = true;
        }
        Ok(())
    }

    /// A byte keeps what a bool cannot, so bytes are what the two share: a buffer of bools that is written through
    /// another dtype becomes bytes, and bools are written to other buffers as bytes.
    fn bytes_if_bool(
        &mut self,
        base: Value,
        layout: Layout,
        written: DType,
    ) -> Result<(Value, Layout), stablehlo::Error> {
        if layout.dtype != DType::Bool || written == DType::Bool {
            return Ok((base, layout));
        }
        Ok((self.b.convert(base, ElementType::U8)?, Layout { dtype: DType::UInt8, ..layout }))
    }
}

fn check_info(check: ops::Check) -> CheckInfo {
    CheckInfo { kind: check.kind, message: check.message }
}

fn fixed_placement(layout: &Layout, tensor: &Tensor) -> Placement {
    let id = layout::intern(layout.clone());
    signature::place_fixed(id, tensor.dtype, tensor.sizes, tensor.strides, tensor.offset)
}

/// The buffer of an uninitialised storage that is written in part before it has a shape.
fn undeclared_layout(nbytes: usize, dtype: DType) -> Layout {
    if nbytes.is_multiple_of(dtype.size()) {
        Layout::dense(dtype, Dims::from_slice(&[(nbytes / dtype.size()) as i64]))
    } else {
        Layout::dense(DType::UInt8, Dims::from_slice(&[nbytes as i64]))
    }
}

/// Elements from the first to the last that a strided tensor touches.
pub fn storage_elements(sizes: &[i64], strides: &[i64]) -> i64 {
    if sizes.contains(&0) {
        return 0;
    }
    1 + sizes.iter().zip(strides).map(|(n, stride)| (n - 1) * stride).sum::<i64>()
}

pub fn lowering_error(op: &str, source: ops::LoweringError) -> Error {
    match source.user_error() {
        Some(kind) => crate::check::user_error(kind, source.to_string()),
        None => Error::Lowering { op: op.to_owned(), source: std::sync::Arc::new(source) },
    }
}
