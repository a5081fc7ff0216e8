//! Compiles the C++ shim for the PyTorch that is installed, into `python/torch_pjrt/_shim_<major>_<minor>.so`.
//!
//! Only with the feature `shim`, which maturin turns on: clippy and the Rust tests need no PyTorch.

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Variables that name the Python whose PyTorch the shim is built for, in order of preference.
const PYTHON_VARIABLES: [&str; 2] = ["TORCH_PJRT_BUILD_PYTHON", "PYO3_PYTHON"];

/// Reads torch's version without importing it: the import takes seconds and needs its CUDA libraries.
const PROBE: &str = "
import importlib.util, pathlib, sysconfig
spec = importlib.util.find_spec('torch')
if spec is None:
    raise SystemExit('torch is not installed')
root = pathlib.Path(spec.submodule_search_locations[0])
version = {}
exec((root / 'version.py').read_text(), version)
print(root)
print(version['__version__'])
print(sysconfig.get_path('include'))
";

struct Torch {
    root: PathBuf,
    major: u32,
    minor: u32,
    python_include: PathBuf,
}

fn main() {
    if let Err(error) = run() {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_SHIM").is_none() {
        return Ok(());
    }
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let torch = find_torch(&root)?;
    let mut sources = shim_sources(&root.join("csrc"))?;
    sources.push(write_header(&root.join("crates/bridge"))?);
    println!("cargo::rerun-if-changed={}", torch.root.join("version.py").display());

    let built = link(&torch, &compile(&torch, &sources)?)?;
    let target = root.join(format!("python/torch_pjrt/_shim_{}_{}.so", torch.major, torch.minor));
    install(&built, &target, newest(&sources)?)?;
    // The installed file is watched too, so that deleting it brings it back.
    println!("cargo::rerun-if-changed={}", target.display());
    Ok(())
}

fn find_torch(root: &Path) -> Result<Torch> {
    for name in PYTHON_VARIABLES {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let python = PYTHON_VARIABLES
        .iter()
        .find_map(|name| env::var_os(name).map(PathBuf::from))
        .or_else(|| env::var_os("VIRTUAL_ENV").map(|venv| Path::new(&venv).join("bin/python")))
        .or_else(|| Some(root.join(".venv/bin/python")).filter(|path| path.exists()))
        .unwrap_or_else(|| PathBuf::from("python3"));
    let advice = format!(
        "The shim is compiled against the PyTorch of `{}`. Install it there (`pip install 'torch>=2.15,<2.16'`), or name \
         another Python in TORCH_PJRT_BUILD_PYTHON; with `pip install .` add --no-build-isolation.",
        python.display()
    );
    let output = Command::new(&python)
        .args(["-c", PROBE])
        .output()
        .map_err(|error| format!("cannot run {}: {error}\n{advice}", python.display()))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("no usable PyTorch: {}\n{advice}", reason.trim()).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let [torch_root, version, python_include] = text.lines().collect::<Vec<_>>()[..] else {
        return Err(format!("unexpected answer about torch: {text:?}\n{advice}").into());
    };
    let mut numbers = version.split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err(format!("cannot read torch's version {version:?}\n{advice}").into());
    };
    if !Path::new(python_include).join("Python.h").exists() {
        return Err(
            format!("{python_include}/Python.h is missing. On Debian: apt-get install python3-dev").into()
        );
    }
    Ok(Torch { root: torch_root.into(), major, minor, python_include: python_include.into() })
}

/// All `.cpp` files of `csrc`, in a fixed order. Headers are watched with them.
fn shim_sources(folder: &Path) -> Result<Vec<PathBuf>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|kind| kind == "cpp" || kind == "h"));
    files.sort();
    Ok(files)
}

/// Makes `abi.h` of the Rust side of the boundary, which is returned.
#[cfg(feature = "shim")]
fn write_header(bridge: &Path) -> Result<PathBuf> {
    let [source, config] = ["src/abi.rs", "cbindgen.toml"].map(|name| bridge.join(name));
    for path in [&source, &config] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let builder = cbindgen::Builder::new().with_config(cbindgen::Config::from_file(config)?);
    builder.with_src(&source).generate()?.write_to_file(out_dir()?.join("abi.h"));
    Ok(source)
}

#[cfg(not(feature = "shim"))]
fn write_header(_: &Path) -> Result<PathBuf> {
    Err("the shim needs the feature `shim`".into())
}

fn out_dir() -> Result<PathBuf> {
    Ok(PathBuf::from(env::var("OUT_DIR")?))
}

fn compiler(torch: &Torch) -> Result<cc::Build> {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .debug(false)
        .pic(true)
        .warnings(true)
        .include(out_dir()?)
        .flag("-fvisibility=hidden")
        .flag("-fvisibility-inlines-hidden")
        // pybind11's own way of taking the GIL reads CPython's thread state, whose layout changes between the Python
        // versions that one abi3 wheel serves; this one asks PyGILState_Ensure.
        .define("PYBIND11_SIMPLE_GIL_MANAGEMENT", None)
        .cargo_metadata(false);
    // -isystem: warnings inside PyTorch's headers are not ours to fix.
    for include in [
        torch.root.join("include"),
        torch.root.join("include/torch/csrc/api/include"),
        torch.python_include.clone(),
    ] {
        build.flag("-isystem").flag(include);
    }
    Ok(build)
}

fn compile(torch: &Torch, sources: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let units: Vec<_> =
        sources.iter().filter(|path| path.extension().is_some_and(|kind| kind == "cpp")).collect();
    if units.is_empty() {
        return Err("csrc/ holds no .cpp file".into());
    }
    Ok(compiler(torch)?.files(units).try_compile_intermediates()?)
}

/// Links against torch's own libraries and sets no run path: they are in the process before the shim is loaded.
fn link(torch: &Torch, objects: &[PathBuf]) -> Result<PathBuf> {
    let built = out_dir()?.join("shim.so");
    let mut command = compiler(torch)?.get_compiler().to_command();
    command
        .arg("-shared")
        .args(["-Wl,-s", "-Wl,--gc-sections", "-Wl,--as-needed", "-Wl,-z,relro,-z,now"])
        .args(objects)
        .arg("-L")
        .arg(torch.root.join("lib"))
        .args(["-ltorch_python", "-ltorch_cpu", "-lc10", "-o"])
        .arg(&built);
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("linking the shim failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(built)
}

fn newest(paths: &[PathBuf]) -> Result<SystemTime> {
    let times = paths.iter().map(|path| Ok(fs::metadata(path)?.modified()?)).collect::<Result<Vec<_>>>()?;
    times.into_iter().max().ok_or_else(|| "no shim sources".into())
}

/// Replaces the shim by renaming, since a running process may have the old one mapped.
/// It gets its sources' time: cargo would take a watched file that is newer than this run for changed, for ever.
fn install(built: &Path, target: &Path, time: SystemTime) -> Result<()> {
    let partial = target.with_extension(format!("so.{}", std::process::id()));
    fs::copy(built, &partial)?;
    File::options().write(true).open(&partial)?.set_modified(time)?;
    fs::rename(&partial, target)?;
    Ok(())
}
