//! Compilation, execution, donation, serialisation, several devices.

#![allow(clippy::unwrap_used)]

mod support;

use pjrt::{Client, Code, CompileOptions, Error, ExecuteOptions, OptionValue};
use support::*;

#[test]
fn describes_plugin_and_devices() {
    let client = client();
    let (major, minor) = client.plugin().api_version();
    assert!(major == 0 && minor >= 81);
    let attributes = client.plugin().attributes().unwrap();
    assert!(attributes.iter().any(|(name, _)| name == "stablehlo_current_version"), "{attributes:?}");
    assert_eq!(client.devices().len(), DEVICES);
    for (index, device) in client.devices().iter().enumerate() {
        assert_eq!(device.local_index(), index);
        assert!(!device.kind().is_empty() && !device.debug_string().is_empty());
    }
    if client.platform_name() == "cpu" {
        let error = client.devices()[0].memory_stats().unwrap_err();
        assert_eq!(error.code(), Some(Code::Unimplemented));
    }
}

#[test]
fn adds() {
    let executable = compile(&add("4x", ""));
    assert_eq!(executable.num_outputs(), 1);
    assert_eq!(executable.output_types()[0].1.as_slice(), [4]);
    let (a, b) = (upload(&[1., 2., 3., 4.], &[4]), upload(&[10., 20., 30., 40.], &[4]));
    let outputs = run(&executable, &[&a, &b]).unwrap();
    assert_eq!(download(&outputs[0]), [11., 22., 33., 44.]);
    assert_eq!(outputs[0].dims(), [4]);
}

#[test]
fn no_arguments_and_several_outputs() {
    let executable = compile(&module(
        "() -> (tensor<2xf32>, tensor<f32>, tensor<0x3xf32>)",
        "%0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
         %1 = stablehlo.constant dense<3.0> : tensor<f32>
         %2 = stablehlo.constant dense<0.0> : tensor<0x3xf32>
         return %0, %1, %2 : tensor<2xf32>, tensor<f32>, tensor<0x3xf32>",
    ));
    let outputs = run(&executable, &[]).unwrap();
    assert_eq!(download(&outputs[0]), [1., 2.]);
    assert_eq!(download(&outputs[1]), [3.]);
    assert_eq!(download(&outputs[2]), []);
    assert_eq!(outputs[2].dims(), [0, 3]);
}

#[test]
fn completion_event_follows_the_execution() {
    let executable = compile(&add("4x", ""));
    let a = upload(&[1.; 4], &[4]);
    let device = &client().devices()[0];
    let (outputs, event) = executable
        .execute(&[&a, &a], &ExecuteOptions { device, non_donatable: &[], completion: true })
        .unwrap();
    event.unwrap().await_ready().unwrap();
    assert!(outputs[0].is_ready());
}

#[test]
fn dependent_executions_need_no_waiting() {
    let executable = compile(&add("1048576x", ""));
    let one = upload(&vec![1.; 1 << 20], &[1 << 20]);
    let mut sum = run(&executable, &[&one, &one]).unwrap().remove(0);
    for _ in 0..20 {
        // The previous sum is dropped while it is being read.
        sum = run(&executable, &[&sum, &one]).unwrap().remove(0);
    }
    assert_eq!(download(&sum)[12345], 22.);
}

#[test]
fn donation_hands_the_memory_over() {
    let n = 1 << 16;
    for attribute in [" {tf.aliasing_output = 0 : i32}", " {jax.buffer_donor = true}"] {
        let executable = compile(&add("65536x", attribute));
        let (a, b) = (upload(&vec![1.; n], &[n as i64]), upload(&vec![2.; n], &[n as i64]));
        let address = a.unsafe_pointer().unwrap();
        let outputs = run(&executable, &[&a, &b]).unwrap();
        assert_eq!(download(&outputs[0])[7], 3.);
        assert_eq!(outputs[0].unsafe_pointer().unwrap(), address, "{attribute}");
        assert!(a.is_deleted() && !b.is_deleted());
        assert!(a.ready().await_ready().is_err());
        assert!(run(&executable, &[&a, &b]).is_err());
        assert!(a.read_into(&mut vec![0; 4 * n]).is_err());
        assert!(a.read_scalar(&mut vec![0; 4 * n]).is_err());
    }
}

#[test]
fn non_donatable_arguments_survive() {
    let n = 1 << 16;
    let executable = compile(&add("65536x", " {tf.aliasing_output = 0 : i32}"));
    let (a, b) = (upload(&vec![1.; n], &[n as i64]), upload(&vec![2.; n], &[n as i64]));
    let device = &client().devices()[0];
    let options = ExecuteOptions { device, non_donatable: &[0], completion: false };
    let outputs = executable.execute(&[&a, &b], &options).unwrap().0;
    assert_eq!(download(&outputs[0])[7], 3.);
    assert!(!a.is_deleted());
    assert_ne!(outputs[0].unsafe_pointer().unwrap(), a.unsafe_pointer().unwrap());
    assert!(download(&a).iter().all(|value| *value == 1.));
}

#[test]
fn one_buffer_as_donated_and_plain_argument_is_an_error_or_right() {
    let executable = compile(&add("65536x", " {tf.aliasing_output = 0 : i32}"));
    let a = upload(&vec![1.; 1 << 16], &[1 << 16]);
    match run(&executable, &[&a, &a]) {
        Ok(outputs) => assert_eq!(download(&outputs[0])[7], 2.),
        Err(error) => assert_eq!(error.code(), Some(Code::InvalidArgument), "{error}"),
    }
}

#[test]
fn a_portable_program_runs_on_every_device() {
    let executable = compile(&add("4x", ""));
    let restored = client().deserialize(&executable.serialize().unwrap()).unwrap();
    for executable in [executable, restored] {
        for device in client().devices() {
            let a = upload_to(device, &[1.; 4], &[4]);
            let outputs = executable.execute(&[&a, &a], &options(device)).unwrap().0;
            assert!(outputs[0].is_on(device));
            assert_eq!(download(&outputs[0]), [2.; 4]);
            // What it returns is on that device: it can be the argument of the next.
            let again = executable.execute(&[&outputs[0], &a], &options(device)).unwrap().0;
            assert_eq!(download(&again[0]), [3.; 4]);
        }
    }
}

#[test]
fn arguments_on_another_device_are_refused() {
    let executable = compile(&add("4x", ""));
    let devices = client().devices();
    let (a, b) = (upload_to(&devices[0], &[1.; 4], &[4]), upload_to(&devices[1], &[1.; 4], &[4]));
    let error = executable.execute(&[&a, &b], &options(&devices[0])).unwrap_err();
    assert_eq!(error.code(), Some(Code::InvalidArgument), "{error}");
}

#[test]
fn replicas_reduce_over_devices() {
    let text = "module @m attributes {mhlo.num_replicas = 4 : i32} {
        func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
            %0 = \"stablehlo.all_reduce\"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
                %s = stablehlo.add %x, %y : tensor<f32>
                stablehlo.return %s : tensor<f32> })
                {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<2xf32>) -> tensor<2xf32>
            return %0 : tensor<2xf32> } }";
    let options = CompileOptions { num_replicas: DEVICES, ..Default::default() };
    let executable = compile_with(text, &options);
    let devices = client().devices();
    let ids: Vec<i32> = devices.iter().map(|device| device.id()).collect();
    assert_eq!(executable.device_ids().unwrap(), ids);
    let args: Vec<_> =
        devices.iter().map(|device| upload_to(device, &[device.id() as f32; 2], &[2])).collect();
    let args: Vec<_> = args.iter().map(std::slice::from_ref).map(|list| [&list[0]]).collect();
    let lists: Vec<&[_]> = args.iter().map(|list| list.as_slice()).collect();
    for outputs in executable.execute_sharded(&lists, devices).unwrap() {
        assert_eq!(download(&outputs[0]), [6., 6.]);
    }
    let error = executable.execute_sharded(&lists[..2], &devices[..2]).unwrap_err();
    assert!(matches!(error, Error::DeviceCount { expected: 4, actual: 2 }), "{error}");
}

#[test]
fn wrong_arguments_are_errors() {
    let executable = compile(&add("4x", ""));
    let (a, long) = (upload(&[1.; 4], &[4]), upload(&[1.; 8], &[8]));
    for args in [vec![], vec![&a], vec![&a, &a, &a], vec![&a, &long]] {
        let error = run(&executable, &args).unwrap_err();
        assert_eq!(error.code(), Some(Code::InvalidArgument), "{} arguments: {error}", args.len());
    }
    a.delete().unwrap();
    assert!(a.is_deleted());
    assert!(run(&executable, &[&a, &a]).is_err());
}

#[test]
fn another_clients_things_are_refused() {
    let other = Client::create(&plugin(), &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    let executable = compile(&add("4x", ""));
    let a = upload(&[1.; 4], &[4]);
    let error = executable.execute(&[&a, &a], &options(&other.devices()[0])).unwrap_err();
    assert!(matches!(error, Error::ForeignClient));
    assert!(matches!(a.copy_to_device(&other.devices()[0]), Err(Error::ForeignClient)));
}

#[test]
fn bad_programs_and_options_are_errors() {
    let client = client();
    let compile = |text: &str, options: &CompileOptions| client.compile(text, options).unwrap_err();
    for text in ["", "nonsense", "module {}"] {
        assert!(matches!(compile(text, &CompileOptions::portable()), Error::NotAModule));
    }
    let text = "module @m { func.func @main() -> tensor<f32> { return %0 : tensor<f32> } }";
    let error = compile(text, &CompileOptions::portable());
    assert!(error.to_string().contains("undeclared SSA value"), "{error}");
    let unknown = CompileOptions::portable().with_override("xla_no_such_option", true);
    assert_eq!(compile(&add("4x", ""), &unknown).code(), Some(Code::InvalidArgument));
    let text = module(
        "() -> tensor<f32>",
        "%0 = stablehlo.custom_call @nobody() {api_version = 4 : i32, backend_config = {}} : () -> tensor<f32>\nreturn %0 : tensor<f32>",
    );
    assert!(compile(&text, &CompileOptions::portable()).to_string().contains("nobody"));
}

#[test]
fn compile_options_reach_the_compiler() {
    let options = CompileOptions::portable().with_override("xla_backend_optimization_level", 0);
    let executable = compile_with(&add("4x", ""), &options);
    let a = upload(&[1.; 4], &[4]);
    assert_eq!(download(&run(&executable, &[&a, &a]).unwrap()[0]), [2.; 4]);
}

#[test]
fn serialisation_round_trip() {
    let executable = compile(&add("1024x", " {tf.aliasing_output = 0 : i32}"));
    let blob = executable.serialize().unwrap();
    let restored = client().deserialize(&blob).unwrap();
    assert_eq!(restored.output_types(), executable.output_types());
    let (a, b) = (upload(&[1.; 1024], &[1024]), upload(&[2.; 1024], &[1024]));
    assert_eq!(download(&run(&restored, &[&a, &b]).unwrap()[0]), [3.; 1024]);
    assert!(a.is_deleted(), "the aliasing is part of the blob");
    for damaged in [&blob[..0], &blob[..10], &blob[..blob.len() / 2]] {
        assert!(client().deserialize(damaged).is_err());
    }
}

#[test]
fn statistics() {
    let executable = compile(&add("1024x", " {tf.aliasing_output = 0 : i32}"));
    let stats = executable.memory_stats().unwrap();
    assert_eq!((stats.arguments, stats.outputs, stats.aliased), (8192, 4096, 4096), "{stats:?}");
    let program = executable.optimized_program().unwrap();
    assert_eq!(program.format, "hlo_with_config");
    assert!(!program.code.is_empty());
}

#[test]
fn threads_share_an_executable() {
    let executable = compile(&add("16x", ""));
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let executable = executable.clone();
            scope.spawn(move || {
                let a = upload(&[seed as f32; 16], &[16]);
                for _ in 0..500 {
                    let outputs = run(&executable, &[&a, &a]).unwrap();
                    let mut bytes = [0; 64];
                    outputs[0].read_scalar(&mut bytes).unwrap();
                    assert_eq!(f32::from_ne_bytes(bytes[60..].try_into().unwrap()), 2. * seed as f32);
                }
            });
        }
    });
}
