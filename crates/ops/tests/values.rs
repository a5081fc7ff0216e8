//! Runs operators on a CPU plugin and compares with what torch gave for the same arguments (`values/*.txt`, written by
//! `values/generate.py`).
//!
//! One line is one call: operator, arguments, `->`, results. Arguments are tensors `float32[2,2]:1,2,3,4`, run-time
//! scalars `@0.5`, numbers, lists `(1,2)`, lists of tensors `{a;none;b}`, and `none`. A failed check has
//! `error Index message` for its results.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../pjrt/tests/support/mod.rs"]
mod support;

use ops::{
    Arg, DType, Dims, Graph, Input, InputKind, Lowered, Modes, Node, Number, TensorMeta, ValueRef,
    lower_graph,
};
use pjrt::{CompileOptions, HostSource};
use stablehlo::{Builder, TensorType};

/// A tensor with its elements as f64, which holds every value of the files.
#[derive(Clone, Debug)]
struct Host {
    meta: TensorMeta,
    values: Vec<f64>,
}

fn host(dtype: DType, sizes: Dims, values: Vec<f64>) -> Host {
    let strides = (0..sizes.len()).map(|dim| sizes[dim + 1..].iter().product()).collect();
    Host { meta: TensorMeta { dtype, sizes, strides }, values }
}

fn parse_tensor(text: &str) -> Option<Host> {
    let (dtype, rest) = text.split_once('[')?;
    let dtype = DType::ALL.into_iter().find(|d| d.name() == dtype)?;
    let (sizes, values) = rest.split_once("]:")?;
    let numbers =
        |list: &str| list.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let sizes = numbers(sizes).iter().map(|n| n.parse().unwrap()).collect();
    let values = numbers(values).iter().map(|n| n.parse().unwrap()).collect();
    Some(host(dtype, sizes, values))
}

fn parse_number(text: &str) -> Number {
    match text {
        "true" => Number::Bool(true),
        "false" => Number::Bool(false),
        _ => match text.parse() {
            Ok(int) => Number::Int(int),
            Err(_) => Number::Float(text.parse().unwrap_or_else(|_| panic!("{text} is no number"))),
        },
    }
}

fn parse_list(text: &str) -> Arg {
    let items: Vec<Number> = text.split(',').filter(|n| !n.is_empty()).map(parse_number).collect();
    match items.first() {
        Some(Number::Bool(_)) => Arg::Bools(items.iter().map(|n| *n == Number::Bool(true)).collect()),
        Some(Number::Float(_)) => Arg::Floats(
            items.iter().map(|n| if let Number::Float(v) = n { *v } else { panic!("{text}") }).collect(),
        ),
        _ => Arg::Ints(
            items.iter().map(|n| if let Number::Int(v) = n { *v } else { panic!("{text}") }).collect(),
        ),
    }
}

/// A run-time scalar in the dtype of Python's numbers.
fn scalar(number: Number) -> Host {
    match number {
        Number::Bool(v) => host(DType::Bool, Dims::new(), vec![f64::from(u8::from(v))]),
        Number::Int(v) => host(DType::Int64, Dims::new(), vec![v as f64]),
        Number::Float(v) => host(DType::Float64, Dims::new(), vec![v]),
        Number::Complex(..) => panic!("complex scalars have no spelling here"),
    }
}

struct Case {
    graph: Graph,
    inputs: Vec<Host>,
    expected: Result<Vec<Option<Host>>, String>,
}

fn parse(line: &str) -> Case {
    let (call, results) = line.split_once(" -> ").unwrap();
    let mut words = call.split(' ');
    let op = words.next().unwrap();
    let def = ops::find(op).unwrap_or_else(|| panic!("{op} has no lowering"));
    let (mut inputs, mut kinds, mut args) = (Vec::new(), Vec::new(), Vec::new());
    for (index, word) in words.enumerate() {
        let mut input = |tensor: Host, kind: InputKind| {
            inputs.push(tensor);
            kinds.push(kind);
            Arg::Tensor(ValueRef::Input(inputs.len() - 1))
        };
        args.push(if word == "none" {
            Arg::None
        } else if let Some(tensor) = parse_tensor(word) {
            input(tensor, InputKind::Device)
        } else if let Some(list) = word.strip_prefix('{') {
            let entries = list.trim_end_matches('}').split(';');
            Arg::Tensors(
                entries
                    .map(|entry| match input(parse_tensor(entry)?, InputKind::Device) {
                        Arg::Tensor(reference) => Some(reference),
                        _ => None,
                    })
                    .collect(),
            )
        } else if let Some(list) = word.strip_prefix('(') {
            parse_list(list.trim_end_matches(')'))
        } else if let Some(text) = word.strip_prefix('\'') {
            Arg::Str(text.trim_end_matches('\'').to_owned())
        } else if let Some(number) = word.strip_prefix('@').map(parse_number) {
            let one = matches!(number, Number::Int(1)) && def.ones.contains(&index);
            match one || def.attributes.contains(&index) {
                true => Arg::Number(number),
                false => input(scalar(number), InputKind::Host { wrapped: true }),
            }
        } else {
            Arg::Number(parse_number(word))
        });
    }
    let mut failed = None;
    let expected: Result<Vec<Option<Host>>, String> = match results.strip_prefix("error ") {
        Some(error) => {
            let typed = error.split_once(' ').and_then(|(result, rest)| Some((parse_tensor(result)?, rest)));
            failed = typed.as_ref().map(|(result, _)| vec![Some(result.meta.clone())]);
            Err(typed.map_or(error, |(_, rest)| rest).to_owned())
        }
        None => Ok(results.split(' ').map(parse_tensor).collect()),
    };
    // A failed check has the results of a call that does not fail: what the line says, else float32 scalars.
    let metas: Vec<Option<TensorMeta>> = match &expected {
        Ok(outputs) => outputs.iter().map(|o| o.as_ref().map(|o| o.meta.clone())).collect(),
        Err(_) if failed.is_some() => failed.unwrap_or_default(),
        Err(_) => vec![Some(host(DType::Float32, Dims::new(), Vec::new()).meta); error_outputs(op)],
    };
    let graph = Graph {
        inputs: inputs
            .iter()
            .zip(kinds)
            .map(|(input, kind)| Input { meta: input.meta.clone(), kind })
            .collect(),
        outputs: metas.iter().enumerate().map(|(k, m)| m.as_ref().map(|_| ValueRef::Node(0, k))).collect(),
        nodes: vec![Node { op: op.into(), args, outputs: metas }],
    };
    Case { graph, inputs, expected }
}

fn error_outputs(op: &str) -> usize {
    if op.starts_with("aten::nll_loss") { 2 } else { 1 }
}

fn bytes(values: &[f64], dtype: DType) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&v| match dtype {
            DType::Float64 => v.to_le_bytes().to_vec(),
            DType::Float32 => (v as f32).to_le_bytes().to_vec(),
            DType::BFloat16 => half::bf16::from_f64(v).to_le_bytes().to_vec(),
            DType::Float16 => half::f16::from_f64(v).to_le_bytes().to_vec(),
            _ => (v as i64).to_le_bytes()[..dtype.size()].to_vec(),
        })
        .collect()
}

fn elements(bytes: &[u8], dtype: DType) -> Vec<f64> {
    bytes
        .chunks(dtype.size())
        .map(|b| match dtype {
            DType::Float64 => f64::from_le_bytes(b.try_into().unwrap()),
            DType::Float32 => f32::from_le_bytes(b.try_into().unwrap()).into(),
            DType::BFloat16 => half::bf16::from_le_bytes(b.try_into().unwrap()).into(),
            DType::Float16 => half::f16::from_le_bytes(b.try_into().unwrap()).into(),
            DType::Int64 => i64::from_le_bytes(b.try_into().unwrap()) as f64,
            DType::Int32 => i32::from_le_bytes(b.try_into().unwrap()).into(),
            DType::Int8 => f64::from(b[0] as i8),
            DType::UInt8 | DType::Bool => b[0].into(),
            other => panic!("{other} in a result"),
        })
        .collect()
}

fn upload(values: &[f64], dtype: DType, sizes: &[i64]) -> pjrt::Buffer {
    let elem = format!("{:?}", dtype.element_type());
    let elem = pjrt::ElementType::ALL.into_iter().find(|e| format!("{e:?}") == elem).unwrap();
    let device = &support::client().devices()[0];
    let bytes = bytes(values, dtype);
    support::client().buffer_from_host(HostSource::Copy(&bytes), elem, sizes, device).unwrap()
}

/// The generator's state for random operators; the results in `random.txt` are for these.
const SEED: u64 = 0x0123_4567_89AB_CDEF;
const OFFSET: u64 = 0xFFFF_FFFF;

fn upload_state(value: u64) -> pjrt::Buffer {
    let device = &support::client().devices()[0];
    let bytes = value.to_le_bytes();
    support::client().buffer_from_host(HostSource::Copy(&bytes), pjrt::ElementType::U64, &[], device).unwrap()
}

/// Results, or the check that failed.
fn run(case: &Case) -> Result<Vec<Host>, String> {
    let mut b = Builder::new("test");
    let device: Vec<_> = case
        .graph
        .inputs
        .iter()
        .map(|input| match input.kind {
            InputKind::Device => {
                Some(b.parameter(TensorType::new(input.meta.dtype.element_type(), &input.meta.sizes)))
            }
            InputKind::Host { .. } => None,
        })
        .collect();
    let lowered = lower_graph(&mut b, &case.graph, &device, &Modes::default()).unwrap();
    let Lowered { outputs, host_params, rng, checks, .. } = &lowered;
    let flags = checks.iter().map(|(_, flag)| *flag);
    let results: Vec<_> = outputs.iter().flatten().copied().chain(flags).collect();
    let module = b.finish(&results).unwrap();
    // By default the CPU's maximum and minimum lose NaN.
    let options = CompileOptions::portable().with_override("xla_cpu_enable_fast_min_max", false);
    let executable = support::compile_with(module.text(), &options);
    let mut buffers = Vec::new();
    for (input, parameter) in case.inputs.iter().zip(&device) {
        if parameter.is_some() {
            buffers.push(upload(&input.values, input.meta.dtype, &input.meta.sizes));
        }
    }
    // The order in which the lowering made these parameters; no random operator here has both.
    if rng.is_some() {
        assert!(host_params.is_empty());
        buffers.extend([SEED, OFFSET].map(upload_state));
    }
    for (param, _) in host_params {
        buffers.push(upload(&case.inputs[param.input].values, param.dtype, &[]));
    }
    let results = support::run(&executable, &buffers.iter().collect::<Vec<_>>()).unwrap();
    let metas: Vec<_> = case.graph.nodes[0].outputs.iter().flatten().collect();
    let mut read = results.iter().map(|buffer| {
        let mut bytes = vec![0; buffer.host_bytes().unwrap()];
        buffer.read_into(&mut bytes).unwrap();
        bytes
    });
    let hosts: Vec<Host> = metas
        .into_iter()
        .map(|meta| host(meta.dtype, meta.sizes.clone(), elements(&read.next().unwrap(), meta.dtype)))
        .collect();
    match checks.iter().zip(read).find(|(_, flag)| flag[0] != 0) {
        Some(((check, _), _)) => Err(format!("{:?} {}", check.kind, check.message)),
        None => Ok(hosts),
    }
}

fn close(got: f64, want: f64, dtype: DType) -> bool {
    let tolerance = match dtype {
        DType::Float64 => 1e-9,
        DType::Float32 => 1e-5,
        DType::Float16 => 2e-3,
        DType::BFloat16 => 1.6e-2,
        _ => 0.0,
    };
    got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance * want.abs().max(1.0)
}

fn same(got: &Host, want: &Host) -> bool {
    let mut pairs = got.values.iter().zip(&want.values);
    got.values.len() == want.values.len() && pairs.all(|(&x, &y)| close(x, y, want.meta.dtype))
}

fn check(file: &str) {
    let mut failures = Vec::new();
    for line in file.lines().filter(|line| !line.starts_with('#')) {
        let case = parse(line);
        let ok = match (run(&case), &case.expected) {
            (Err(got), Err(want)) => got == *want,
            (Ok(got), Ok(want)) => got.iter().zip(want.iter().flatten()).all(|(got, want)| same(got, want)),
            _ => false,
        };
        if !ok {
            failures.push(format!("{line}\n  got {:?}", run(&case)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

macro_rules! families {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            check(include_str!(concat!("values/", stringify!($name), ".txt")));
        })+
    };
}

families! {
    matmul grouped_matmul softmax normalization batch_norm convolution max_pooling avg_pooling losses resampling recurrent
    attention histogram grad_scaling optimizers
    unary special binary division ternary activations reductions scans creation
    views movement indexing scatter sorting random
    distances embeddings incomplete_gamma sampling
}
