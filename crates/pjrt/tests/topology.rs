//! Ahead-of-time compilation through libtpu, which needs no TPU. `TORCH_PJRT_TEST_LIBTPU` names the library:
//!
//!     TORCH_PJRT_TEST_LIBTPU=.../libtpu/libtpu.so cargo test -p pjrt --test topology -- --ignored

#![allow(clippy::unwrap_used)]

mod support;

use std::path::PathBuf;

use pjrt::{AHEAD_OF_TIME_ENVIRONMENT, Code, CompileOptions, OptionValue, Plugin, Topology};

#[test]
#[ignore = "needs libtpu"]
fn compiles_for_a_tpu_that_is_not_there() {
    for (name, value) in AHEAD_OF_TIME_ENVIRONMENT {
        // SAFETY: the only test of this process.
        unsafe { std::env::set_var(name, value) };
    }
    let path = std::env::var_os("TORCH_PJRT_TEST_LIBTPU").expect("TORCH_PJRT_TEST_LIBTPU names libtpu.so");
    let plugin = Plugin::load(&PathBuf::from(path)).unwrap();
    let topology = Topology::create(&plugin, "v5e:2x2", &[]).unwrap();
    assert_eq!(topology.num_devices().unwrap(), 4);

    let text = support::add("1024x", " {tf.aliasing_output = 0 : i32}");
    let compiled = topology.compile(&text, &CompileOptions::default()).unwrap();
    assert_eq!(compiled.output_types().unwrap()[0].1.as_slice(), [1024]);
    let stats = compiled.memory_stats().unwrap();
    assert_eq!((stats.arguments, stats.outputs, stats.aliased), (8192, 4096, 4096), "{stats:?}");
    let costs = compiled.cost_analysis().unwrap();
    assert!(costs.contains(&("flops".to_owned(), OptionValue::Float(1024.))), "{costs:?}");
    let program = compiled.optimized_program().unwrap();
    assert_eq!(program.format, "hlo_with_config");
    assert!(program.code.windows(16).any(|window| window == b"estimated_cycles"));

    let huge = support::add("8589934592x", "");
    let error = topology.compile(&huge, &CompileOptions::default()).unwrap_err();
    assert_eq!(error.code(), Some(Code::ResourceExhausted), "{error}");
    assert!(Topology::create(&plugin, "v99:2x2", &[]).is_err());
}
