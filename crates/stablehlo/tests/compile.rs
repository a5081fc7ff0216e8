//! Compiles the text of every operation with a CPU plugin and compares the result types that the
//! plugin reports with those that the builder inferred.

#![allow(clippy::unwrap_used)]

mod samples;
#[path = "../../pjrt/tests/support/mod.rs"]
mod support;

use samples::*;
use stablehlo::{Builder, ElementType, Module, TensorType};

fn compile(name: &str, module: &Module) -> Result<(), String> {
    // Values do not matter here, so the cheapest compilation will do.
    let options = pjrt::CompileOptions::portable().with_override("xla_backend_optimization_level", 0i64);
    let executable = support::client()
        .compile(module.text(), &options)
        .map_err(|e| format!("{name}: {e}\n{}", module.text()))?;
    let reported: Vec<TensorType> = executable
        .output_types()
        .iter()
        .map(|(elem, dims)| {
            let elem =
                ElementType::ALL.into_iter().find(|e| format!("{e:?}") == format!("{elem:?}")).unwrap();
            TensorType::new(elem, dims)
        })
        .collect();
    match reported == module.results() {
        true => Ok(()),
        false => Err(format!("{name}: inferred {:?}, reported {reported:?}", module.results())),
    }
}

#[test]
fn every_sample_compiles() {
    let failures: Vec<String> =
        all().iter().filter_map(|(name, module)| compile(name, module).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// What the builder accepts of an element type, the plugin accepts too; also without elements.
#[test]
fn every_accepted_element_type_compiles() {
    let mut failures = Vec::new();
    let empty =
        [ElementType::F32, ElementType::S32, ElementType::Pred, ElementType::C64].map(|e| (e, [0, 3]));
    for (elem, dims) in ElementType::ALL.map(|e| (e, [2, 3])).into_iter().chain(empty) {
        let mut b = Builder::new("accepted");
        let (x, y) = (b.parameter(tensor(elem, &dims)), b.parameter(tensor(elem, &dims)));
        let mut results = Vec::new();
        let unary = [FLOAT_UNARY, CHLO_UNARY, INTEGER_UNARY, COMPLEX_UNARY];
        let binary = [FLOAT_BINARY, INTEGER_BINARY, PRED_BINARY, COMPLEX_BINARY];
        results.extend(unary.into_iter().flatten().filter_map(|(_, f)| f(&mut b, x).ok()));
        results.extend(binary.into_iter().flatten().filter_map(|(_, f)| f(&mut b, x, y).ok()));
        for other in ElementType::ALL {
            results.extend([b.convert(x, other), b.bitcast_convert(x, other)].into_iter().flatten());
        }
        results
            .extend([b.min_value(elem), b.max_value(elem), b.zero(elem), b.one(elem)].into_iter().flatten());
        let folds =
            [b.reduce_add(x, &[0]), b.reduce_mul(x, &[1]), b.reduce_max(x, &[0, 1]), b.reduce_or(x, &[1])];
        results.extend(folds.into_iter().flatten());
        let module = b.finish(&results).unwrap();
        stablehlo::verify(&module).unwrap();
        failures.extend(compile(elem.mlir(), &module).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
