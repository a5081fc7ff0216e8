//! Graphs from Python: PyTorch's decompositions of single operators, and whole traced functions.

use std::sync::OnceLock;

use ops::{Arg, DType, Dims, Graph, Input, InputKind, Node, Number, TensorMeta, ValueRef};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyFloat, PyInt, PyList, PyTuple};
use runtime::call::{Call, HostTensor, Tensor, Value};
use runtime::hooks::Traced;
use runtime::{CallGraph, Error};

/// The Python side of a plan miss, set by `set_tracer`.
pub struct Tracer {
    pub trace: Py<PyAny>,
    pub meta_tensor: Py<PyAny>,
    pub refuse: Option<Py<PyAny>>,
}

pub static TRACER: OnceLock<Tracer> = OnceLock::new();

/// Leaves the exception set on this thread, for the boundary to raise.
pub fn raise(py: Python<'_>, error: PyErr) -> Error {
    error.restore(py);
    Error::Interrupted
}

pub fn trace(call: &Call) -> runtime::Result<Traced> {
    let Some(tracer) = TRACER.get() else {
        return Ok(Traced::Missing("no tracer is registered".to_owned()));
    };
    Python::attach(|py| trace_attached(py, tracer, call).map_err(|error| raise(py, error)))
}

fn trace_attached(py: Python<'_>, tracer: &Tracer, call: &Call) -> PyResult<Traced> {
    let mut kinds = Vec::new();
    runtime::call::for_each_tensor(call.args, &mut |_, value| {
        kinds.push(match value {
            Value::Host(_) => InputKind::Host { wrapped: false },
            _ => InputKind::Device,
        });
    });
    let args = arguments(py, tracer, call, |index| !call.op.drops_argument(index))?;
    let traced = tracer.trace.bind(py).call1((with_default_overload(&call.op.functional), args))?;
    let (graph, missing, reason): (Option<Bound<'_, PyTuple>>, Vec<String>, Option<String>) =
        traced.extract()?;
    let Some(graph) = graph else {
        let mut text = reason.unwrap_or_else(|| "PyTorch has no decomposition for it".to_owned());
        if !missing.is_empty() {
            text = format!("{text} (no lowering for {})", missing.join(", "));
        }
        return Ok(Traced::Missing(text));
    };
    let parsed = parse(&graph, |slot| kinds.get(slot).cloned().unwrap_or(InputKind::Device))?;
    Ok(Traced::Graph(CallGraph {
        graph: parsed.graph,
        slots: parsed.slots,
        mutated_first: !call.op.has_functional && call.op.mutated != 0,
    }))
}

/// [`runtime::hooks::Hooks::refuse`]
pub fn refuse(call: &Call) -> runtime::Result<()> {
    let Some(tracer) = TRACER.get() else { return Ok(()) };
    Python::attach(|py| refuse_attached(py, tracer, call).map_err(|error| raise(py, error)))
}

fn refuse_attached(py: Python<'_>, tracer: &Tracer, call: &Call) -> PyResult<()> {
    let Some(refuse) = &tracer.refuse else { return Ok(()) };
    let args = arguments(py, tracer, call, |_| true)?;
    refuse.bind(py).call1((with_default_overload(&call.op.name), args)).map(drop)
}

fn arguments<'py>(
    py: Python<'py>,
    tracer: &Tracer,
    call: &Call,
    is_wanted: impl Fn(usize) -> bool,
) -> PyResult<Bound<'py, PyList>> {
    let args = PyList::empty(py);
    for (_, arg) in call.args.iter().enumerate().filter(|(index, _)| is_wanted(*index)) {
        args.append(to_python(py, tracer, arg)?)?;
    }
    Ok(args)
}

/// Graphs write `aten::relu.default`; the dispatcher and our table write `aten::relu`.
fn with_default_overload(name: &str) -> String {
    if name.contains('.') { name.to_owned() } else { format!("{name}.default") }
}

fn to_python<'py>(py: Python<'py>, tracer: &Tracer, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    let meta = |dtype: DType, sizes: &[i64], strides: &[i64]| {
        tracer.meta_tensor.bind(py).call1((sizes, strides, i32::from(dtype.to_c10())))
    };
    match value {
        Value::None | Value::Device | Value::Generator(_) | Value::Other => Ok(py.None().into_bound(py)),
        Value::Tensor(Tensor { dtype, sizes, strides, .. }) => meta(*dtype, sizes, strides),
        Value::Host(HostTensor { wrapped: true, number, .. }) => number_to_python(py, *number),
        Value::Host(HostTensor { dtype, sizes, strides, .. }) => meta(*dtype, sizes, strides),
        Value::Number { number, .. } => number_to_python(py, *number),
        Value::Str(s) => Ok(s.into_pyobject(py)?.into_any()),
        Value::Ints(ints) => Ok(ints.into_pyobject(py)?.into_any()),
        Value::Floats(floats) => Ok(floats.into_pyobject(py)?.into_any()),
        Value::Bools(bools) => Ok(PyList::new(py, bools.iter().map(|&b| b != 0))?.into_any()),
        Value::List(list) => {
            let items = PyList::empty(py);
            for item in list {
                items.append(to_python(py, tracer, item)?)?;
            }
            Ok(items.into_any())
        }
    }
}

fn number_to_python<'py>(py: Python<'py>, number: Number) -> PyResult<Bound<'py, PyAny>> {
    Ok(match number {
        Number::Bool(b) => b.into_pyobject(py)?.to_owned().into_any(),
        Number::Int(i) => i.into_pyobject(py)?.into_any(),
        Number::Float(f) => f.into_pyobject(py)?.into_any(),
        Number::Complex(re, im) => PyComplex::from_doubles(py, re, im).into_any(),
    })
}

/// (node, output) as Python writes it; node -1 is the graph's inputs.
type PyRef = (i64, usize);
type GraphTuple<'py> = (Vec<Bound<'py, PyTuple>>, Vec<Bound<'py, PyTuple>>, Vec<Option<PyRef>>);
type NodeTuple<'py> = (String, Vec<Bound<'py, PyTuple>>, Vec<Option<Bound<'py, PyAny>>>);

pub struct Parsed {
    pub graph: Graph,
    /// The slot of each input.
    pub slots: Vec<usize>,
}

/// Reads a `TracedGraph` (see `_core.pyi`). Constants become nodes.
pub fn parse(graph: &Bound<'_, PyTuple>, kind_of: impl Fn(usize) -> InputKind) -> PyResult<Parsed> {
    let (inputs, nodes, outputs): GraphTuple = graph.extract()?;
    let mut parsed = Parsed { graph: Graph::default(), slots: Vec::new() };
    let mut references = Vec::with_capacity(inputs.len());
    for input in &inputs {
        let kind: String = input.get_item(0)?.extract()?;
        let meta = meta(&input.get_item(2)?)?;
        if kind == "constant" {
            let data: Bound<'_, PyBytes> = input.get_item(1)?.extract()?;
            references.push(ValueRef::Node(parsed.graph.nodes.len(), 0));
            parsed.graph.nodes.push(constant(data.as_bytes(), meta));
        } else {
            let slot: usize = input.get_item(1)?.extract()?;
            references.push(ValueRef::Input(parsed.slots.len()));
            parsed.graph.inputs.push(Input { meta, kind: kind_of(slot) });
            parsed.slots.push(slot);
        }
    }
    let first = parsed.graph.nodes.len();
    let resolve = |(node, index): (i64, usize)| -> PyResult<ValueRef> {
        if node >= 0 {
            return Ok(ValueRef::Node(first + node as usize, index));
        }
        references
            .get(index)
            .copied()
            .ok_or_else(|| PyValueError::new_err(format!("there is no input {index}")))
    };
    for node in &nodes {
        let (op, args, metas): NodeTuple = node.extract()?;
        let op = op.strip_suffix(".default").unwrap_or(&op);
        let args = args.iter().map(|a| arg(a, &resolve)).collect::<PyResult<_>>()?;
        let outputs = metas.iter().map(|m| m.as_ref().map(meta_of).transpose()).collect::<PyResult<_>>()?;
        parsed.graph.nodes.push(Node { op: op.into(), args, outputs });
    }
    for output in outputs {
        parsed.graph.outputs.push(output.map(resolve).transpose()?);
    }
    Ok(parsed)
}

fn meta_of(value: &Bound<'_, PyAny>) -> PyResult<TensorMeta> {
    meta(value)
}

fn meta(value: &Bound<'_, PyAny>) -> PyResult<TensorMeta> {
    let (dtype, sizes, strides): (i8, Vec<i64>, Vec<i64>) = value.extract()?;
    let dtype =
        DType::from_c10(dtype).ok_or_else(|| PyValueError::new_err(format!("unknown dtype {dtype}")))?;
    Ok(TensorMeta { dtype, sizes: Dims::from_vec(sizes), strides: Dims::from_vec(strides) })
}

fn constant(data: &[u8], meta: TensorMeta) -> Node {
    let numbers = data
        .chunks_exact(meta.dtype.size())
        // SAFETY: each chunk is one element.
        .map(|element| unsafe { crate::convert::read_number(element.as_ptr(), meta.dtype) })
        .collect();
    Node { op: "prims::constant".into(), args: vec![Arg::Numbers(numbers)], outputs: vec![Some(meta)] }
}

fn number(value: &Bound<'_, PyAny>) -> PyResult<Number> {
    if value.is_instance_of::<PyBool>() {
        Ok(Number::Bool(value.extract()?))
    } else if value.is_instance_of::<PyInt>() {
        Ok(Number::Int(value.extract()?))
    } else if value.is_instance_of::<PyFloat>() {
        Ok(Number::Float(value.extract()?))
    } else {
        let complex = value.cast::<PyComplex>()?;
        Ok(Number::Complex(complex.getattr("real")?.extract()?, complex.getattr("imag")?.extract()?))
    }
}

fn arg(arg: &Bound<'_, PyTuple>, resolve: &dyn Fn((i64, usize)) -> PyResult<ValueRef>) -> PyResult<Arg> {
    let kind: String = arg.get_item(0)?.extract()?;
    let value = || arg.get_item(1);
    Ok(match kind.as_str() {
        "none" => Arg::None,
        "o" => Arg::Opaque,
        "t" => Arg::Tensor(resolve(value()?.extract()?)?),
        "ts" => {
            let references: Vec<Option<(i64, usize)>> = value()?.extract()?;
            Arg::Tensors(references.into_iter().map(|r| r.map(resolve).transpose()).collect::<PyResult<_>>()?)
        }
        "n" => Arg::Number(number(&value()?)?),
        "ns" => {
            let list: Vec<Bound<'_, PyAny>> = value()?.extract()?;
            Arg::Numbers(list.iter().map(number).collect::<PyResult<_>>()?)
        }
        "is" => Arg::Ints(value()?.extract()?),
        "fs" => Arg::Floats(value()?.extract()?),
        "bs" => Arg::Bools(value()?.extract()?),
        "s" => Arg::Str(value()?.extract()?),
        other => return Err(PyValueError::new_err(format!("unknown argument kind {other:?}"))),
    })
}
