//! The forwarding plugin in front of a CPU plugin, driven by the client crate. Each test runs its body in a child
//! process, because the plugin reads its environment when it is loaded. The real plugin is `TORCH_PJRT_TEST_PLUGIN`, or
//! the one that `python3` finds, as in the tests of the client.

#![allow(clippy::unwrap_used)]

#[path = "../../pjrt/tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::Command;

use pjrt::{Client, Code, CompileOptions, ElementType, HostSource, OptionValue, Plugin};

type Read = unsafe extern "C" fn(*mut u64);
type Reset = unsafe extern "C" fn();
type Fail = unsafe extern "C" fn(*const std::ffi::c_char, u64, u32) -> i32;

fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libpjrt_count.so");
    assert!(path.exists(), "cargo builds {} with the tests", path.display());
    path
}

/// Runs a child test with this environment and returns its report.
fn child(name: &str, fail: &str) -> serde_json::Value {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.json");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("PJRT_COUNT_PLUGIN", support::plugin_path())
        .env("PJRT_COUNT_REPORT", &report)
        .env("PJRT_COUNT_FAIL", fail)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap()
}

fn client() -> Client {
    let plugin = Plugin::load(&library()).unwrap();
    Client::create(&plugin, &[("cpu_device_count", OptionValue::Int(2))]).unwrap()
}

fn upload(client: &Client) -> pjrt::Result<pjrt::Buffer> {
    client.buffer_from_host(HostSource::Copy(&[0; 16]), ElementType::F32, &[4], &client.devices()[0])
}

#[test]
fn counts() {
    let report = child("child_counts", "");
    assert_eq!(
        report,
        serde_json::json!({"compile": 0, "deserialize": 1, "execute": 3, "upload": 1, "download": 2,
            "copy_to_device": 1, "injected_failures": 0})
    );
}

#[test]
#[ignore = "runs in a child process"]
fn child_counts() {
    let client = client();
    // SAFETY: the exported functions have these types.
    let (read, reset) = unsafe {
        let library = libloading::Library::new(library()).unwrap();
        let read = *library.get::<Read>(b"pjrt_count_read\0").unwrap();
        let reset = *library.get::<Reset>(b"pjrt_count_reset\0").unwrap();
        std::mem::forget(library);
        (read, reset)
    };
    let blob =
        client.compile(&support::add("4x", ""), &CompileOptions::portable()).unwrap().serialize().unwrap();
    let mut counters = [9; 8];
    // SAFETY: eight elements.
    unsafe { read(counters.as_mut_ptr()) };
    assert_eq!(counters, [1, 0, 0, 0, 0, 0, 0, 0]);
    // SAFETY: no arguments.
    unsafe { reset() };
    let executable = client.deserialize(&blob).unwrap();
    let a = upload(&client).unwrap();
    for _ in 0..3 {
        executable.execute(&[&a, &a], &support::options(&client.devices()[0])).unwrap();
    }
    a.read_into(&mut [0; 16]).unwrap();
    a.read_scalar(&mut [0; 16]).unwrap();
    a.copy_to_device(&client.devices()[1]).unwrap();
}

#[test]
fn fails_on_demand() {
    let report = child("child_fails", "execute:2,upload:1:INTERNAL,compile:1:unavailable");
    assert_eq!(report["injected_failures"], 4);
}

#[test]
#[ignore = "runs in a child process"]
fn child_fails() {
    let client = client();
    assert_eq!(upload(&client).unwrap_err().code(), Some(Code::Internal));
    let text = support::add("4x", "");
    let compile = || client.compile(&text, &CompileOptions::portable());
    assert_eq!(compile().unwrap_err().code(), Some(Code::Unavailable));
    let (executable, a) = (compile().unwrap(), upload(&client).unwrap());
    let run = || executable.execute(&[&a, &a], &support::options(&client.devices()[0]));
    run().unwrap();
    let error = run().unwrap_err();
    assert_eq!(
        error.to_string(),
        "PJRT_LoadedExecutable_Execute failed: RESOURCE_EXHAUSTED: pjrt-count failed this execute"
    );
    run().unwrap();
    // The real plugin's errors still come through.
    assert!(executable.execute(&[&a], &support::options(&client.devices()[0])).is_err());
    // SAFETY: the exported function has this type, and the strings end with NUL.
    unsafe {
        let library = libloading::Library::new(library()).unwrap();
        let fail = *library.get::<Fail>(b"pjrt_count_fail\0").unwrap();
        assert_eq!(fail(c"download".as_ptr(), 1, 0), 0);
        assert_eq!(fail(c"nothing".as_ptr(), 1, 0), -1);
        std::mem::forget(library);
    }
    assert_eq!(a.read_into(&mut [0; 16]).unwrap_err().code(), Some(Code::ResourceExhausted));
    a.read_into(&mut [0; 16]).unwrap();
}

#[test]
fn without_a_real_plugin_it_is_none() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_without", "--ignored", "--nocapture"])
        .env_remove("PJRT_COUNT_PLUGIN")
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("PJRT_COUNT_PLUGIN must name the real plugin"));
}

#[test]
#[ignore = "runs in a child process"]
fn child_without() {
    let error = Plugin::load(&library()).unwrap_err();
    assert!(error.to_string().ends_with("is not a PJRT plugin: GetPjrtApi returned null"), "{error}");
}
