//! Digests the sources that decide what code a lowering emits: the key of the on-disk cache.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Rust, the shim, and the tracer of decompositions.
const SOURCES: [&str; 4] = ["rs", "cpp", "h", "py"];

/// Where builds write too: its files are watched one by one.
const PYTHON: &str = "../../python/torch_pjrt";

fn main() {
    let mut hasher = DefaultHasher::new();
    for folder in ["src", "../ops/src", "../stablehlo/src", "../bridge/src", "../../csrc"] {
        println!("cargo::rerun-if-changed={folder}");
        digest(Path::new(folder), &mut hasher);
    }
    digest(Path::new(PYTHON), &mut hasher);
    println!("cargo::rustc-env=LOWERING_VERSION={:016x}", hasher.finish());
}

fn digest(folder: &Path, hasher: &mut DefaultHasher) {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            digest(&path, hasher);
        } else if path.extension().is_some_and(|extension| SOURCES.iter().any(|source| extension == *source))
        {
            if path.starts_with(PYTHON) {
                println!("cargo::rerun-if-changed={}", path.display());
            }
            path.file_name().hash(hasher);
            std::fs::read(&path).unwrap_or_default().hash(hasher);
        }
    }
}
