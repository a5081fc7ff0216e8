//! Programs as text, and their compilation for machines that are not here.

use std::path::PathBuf;
use std::time::Instant;

use ops::{InputKind, ValueRef};
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use stablehlo::{Builder, TensorType};

use crate::{detached, hlo, of_torch, trace};

/// Lowers a traced graph to StableHLO; every input becomes a parameter in order.
#[pyfunction]
pub fn lower_to_text<'py>(py: Python<'py>, graph: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyDict>> {
    let parsed = trace::parse(graph, |_| InputKind::Device)?;
    let mut b = Builder::new("main");
    let inputs: Vec<_> = parsed
        .graph
        .inputs
        .iter()
        .map(|input| Some(b.parameter(TensorType::new(input.meta.dtype.element_type(), &input.meta.sizes))))
        .collect();
    let lowered =
        ops::lower_graph(&mut b, &parsed.graph, &inputs, &ops::Modes::default()).map_err(|error| {
            if error.is_unsupported() {
                PyNotImplementedError::new_err(error.to_string())
            } else {
                PyRuntimeError::new_err(error.to_string())
            }
        })?;
    let outputs: Vec<_> = lowered.outputs.iter().flatten().copied().collect();
    let flags = lowered.checks.iter().map(|(_, flag)| *flag);
    let results: Vec<_> = outputs.iter().copied().chain(flags).collect();
    let module = b.finish(&results).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    let hosts: Vec<_> =
        lowered.host_params.iter().map(|(p, _)| (p.input, i32::from(p.dtype.to_c10()))).collect();
    let result = PyDict::new(py);
    result.set_item("text", module.text())?;
    result.set_item("host_inputs", hosts)?;
    result.set_item("uses_rng", lowered.rng.is_some())?;
    result.set_item("results", outputs.len())?;
    let passed_through =
        parsed.graph.outputs.iter().filter(|o| matches!(o, Some(ValueRef::Input(_)))).count();
    result.set_item("passed_through", passed_through)?;
    Ok(result)
}

/// Compiles StableHLO text ahead of time for a TPU topology; needs libtpu, no TPU.
#[pyfunction]
pub fn compile_for_topology<'py>(
    py: Python<'py>,
    text: &str,
    topology: &str,
    libtpu_path: PathBuf,
) -> PyResult<Bound<'py, PyDict>> {
    let started = Instant::now();
    let (text, topology) = (text.to_owned(), topology.to_owned());
    let compile = move || -> pjrt::Result<_> {
        let plugin = pjrt::Plugin::load(&libtpu_path)?;
        let topology = pjrt::Topology::create(&plugin, &topology, &[])?;
        let options = pjrt::CompileOptions::default();
        Ok((topology.compile(&text, &options)?, topology.num_devices()?))
    };
    let (compiled, devices) =
        detached(py, || runtime::compile_on_thread(compile))?.map_err(|error| match error.code() {
            Some(pjrt::Code::ResourceExhausted) => of_torch(py, "OutOfMemoryError", error.to_string()),
            _ => PyRuntimeError::new_err(error.to_string()),
        })?;
    let pjrt_error = |error: pjrt::Error| PyRuntimeError::new_err(error.to_string());
    let memory = compiled.memory_stats().map_err(pjrt_error)?;
    let optimized = compiled.optimized_program().map_err(pjrt_error)?;
    let flops = compiled.cost_analysis().ok().and_then(|costs| {
        costs.into_iter().find_map(|(name, value)| match value {
            pjrt::OptionValue::Float(flops) if name == "flops" => Some(flops),
            _ => None,
        })
    });
    let result = PyDict::new(py);
    result.set_item("peak_memory", memory.peak)?;
    result.set_item("argument_bytes", memory.arguments)?;
    result.set_item("output_bytes", memory.outputs)?;
    result.set_item("temp_bytes", memory.temporaries)?;
    result.set_item("code_bytes", memory.generated_code)?;
    result.set_item("flops", flops)?;
    let instructions = hlo::instructions(&optimized.code)
        .map_err(|error| PyRuntimeError::new_err(format!("the optimised module is unreadable: {error}")))?
        .into_iter()
        .map(|i| (i.computation, i.name, i.opcode, i.shape, i.operands, i.dimensions, i.calls))
        .collect::<Vec<_>>();
    result.set_item("instructions", instructions)?;
    result.set_item("compile_seconds", started.elapsed().as_secs_f64())?;
    result.set_item("devices", devices)?;
    Ok(result)
}

/// Starts or stops the recording of the programs that operators run: (operator, StableHLO text) of each since the last
/// call.
#[pyfunction]
pub fn record_programs(recording: bool) -> Vec<(String, String)> {
    runtime::record::programs(recording).into_iter().map(|program| (program.op, program.text)).collect()
}
