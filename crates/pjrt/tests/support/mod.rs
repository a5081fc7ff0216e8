//! The plugin that the tests run on: `TORCH_PJRT_TEST_PLUGIN` if set, else an installed CPU plugin that Python finds
//! (`PYTHON`, the workspace's `.venv`, then `python3`). Without one the tests fail.

#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use pjrt::{
    Buffer, Client, CompileOptions, Device, ElementType, Executable, ExecuteOptions, HostSource, OptionValue,
    Outputs, Plugin,
};

pub const DEVICES: usize = 4;

const FIND: &str = r#"
import importlib.util, os
for package, library in [
    ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
    ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
]:
    spec = importlib.util.find_spec(package)
    if spec:
        print(os.path.join(spec.submodule_search_locations[0], library))
        break
"#;

pub fn plugin_path() -> PathBuf {
    if let Some(path) = std::env::var_os("TORCH_PJRT_TEST_PLUGIN") {
        return path.into();
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pythons = [
        std::env::var_os("PYTHON").map(PathBuf::from),
        Some(workspace.join(".venv/bin/python")),
        Some(PathBuf::from("python3")),
    ];
    for python in pythons.into_iter().flatten() {
        let Ok(output) = Command::new(&python).args(["-c", FIND]).output() else { continue };
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !path.is_empty() {
            return path.into();
        }
    }
    panic!("no CPU plugin: set TORCH_PJRT_TEST_PLUGIN to one, or `pip install fastatomstruct-xla-cpu`");
}

pub fn plugin() -> Arc<Plugin> {
    Plugin::load(&plugin_path()).unwrap()
}

/// One client per process.
pub fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        Client::create(&plugin(), &[("cpu_device_count", OptionValue::Int(DEVICES as i64))]).unwrap()
    })
}

pub fn compile(text: &str) -> Executable {
    compile_with(text, &CompileOptions::portable())
}

/// Kept until the process ends, as [`Executable`] says.
pub fn compile_with(text: &str, options: &CompileOptions) -> Executable {
    let executable = client().compile(text, options).unwrap();
    std::mem::forget(executable.clone());
    executable
}

/// A module with one function.
pub fn module(signature: &str, body: &str) -> String {
    format!("module @m {{ func.func @main{signature} {{ {body} }} }}")
}

/// `a + b` over f32 of this shape, with attributes on `a`.
pub fn add(shape: &str, attributes: &str) -> String {
    let ty = format!("tensor<{shape}f32>");
    module(
        &format!("(%a: {ty}{attributes}, %b: {ty}) -> {ty}"),
        &format!("%0 = stablehlo.add %a, %b : {ty}\nreturn %0 : {ty}"),
    )
}

pub fn upload_to(device: &Device, values: &[f32], dims: &[i64]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    client().buffer_from_host(HostSource::Copy(&bytes), ElementType::F32, dims, device).unwrap()
}

pub fn upload(values: &[f32], dims: &[i64]) -> Buffer {
    upload_to(&client().devices()[0], values, dims)
}

pub fn download(buffer: &Buffer) -> Vec<f32> {
    let mut bytes = vec![0; buffer.host_bytes().unwrap()];
    buffer.read_into(&mut bytes).unwrap();
    bytes.chunks(4).map(|chunk| f32::from_ne_bytes(chunk.try_into().unwrap())).collect()
}

pub fn options(device: &Device) -> ExecuteOptions<'_> {
    ExecuteOptions { device, non_donatable: &[], completion: false }
}

pub fn run(executable: &Executable, args: &[&Buffer]) -> pjrt::Result<Outputs> {
    Ok(executable.execute(args, &options(&client().devices()[0]))?.0)
}
