//! Which plugin to load.
//!
//! `TORCH_PJRT_PLUGIN` decides: `cpu`, `tpu`, `cuda`, another candidate's name, or a path. Without it a TPU, if a chip
//! is present, else the CPU. Nothing here loads a plugin or starts a client.

use std::fmt;
use std::path::{Path, PathBuf};

/// The variable that names the plugin.
pub const PLUGIN_VARIABLE: &str = "TORCH_PJRT_PLUGIN";

/// A place where a plugin may be, best first: a library file that may or may not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPath {
    /// What the plugin drives: `cpu`, `tpu`, `cuda`, ...
    pub name: String,
    pub path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `TORCH_PJRT_PLUGIN` names it.
    Requested,
    /// A TPU chip is present.
    TpuPresent,
    /// Nothing else is.
    Default,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name asked for or found; `custom` for a path that is no candidate.
    pub name: String,
    pub path: PathBuf,
    pub reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    #[error("no PJRT plugin for {name}: {looked}. {}", fix(name))]
    NotFound { name: String, looked: Looked },
    #[error("{PLUGIN_VARIABLE} names {path}, which does not exist")]
    MissingPath { path: PathBuf },
    #[error(
        "{PLUGIN_VARIABLE}={requested} is neither a path nor a known plugin (known: {}). Use one of these names, or a path that contains a slash",
        known.join(", ")
    )]
    UnknownName { requested: String, known: Vec<String> },
    #[error(
        "{PLUGIN_VARIABLE} asks for a TPU, but no chip is present (no /dev/accel*, no Google device under /dev/vfio). Unset it or set it to cpu"
    )]
    NoTpu,
}

/// The files that were looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked(pub Vec<PathBuf>);

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no place to look was given");
        }
        f.write_str("looked for ")?;
        for (i, path) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, path.display())?;
        }
        Ok(())
    }
}

fn fix(name: &str) -> String {
    match name {
        "cpu" | "tpu" | "cuda" => {
            format!("Install it with `pip install torch-pjrt[{name}]`, or set {PLUGIN_VARIABLE} to its path")
        }
        _ => format!("Set {PLUGIN_VARIABLE} to its path"),
    }
}

/// Chooses by the environment and the machine.
pub fn choose(candidates: &[SearchPath]) -> Result<Choice, DiscoveryError> {
    let requested = std::env::var_os(PLUGIN_VARIABLE).map(|value| value.to_string_lossy().into_owned());
    choose_with(requested.as_deref(), tpu_present(), candidates)
}

/// The first candidate that exists, where the choice has been made already. A TPU must be there.
pub fn first(candidates: &[SearchPath]) -> Result<Choice, DiscoveryError> {
    first_with(tpu_present(), candidates)
}

fn first_with(tpu_present: bool, candidates: &[SearchPath]) -> Result<Choice, DiscoveryError> {
    let name = candidates.first().map_or("cpu", |candidate| candidate.name.as_str());
    let path = find(name, candidates)?;
    if name == "tpu" && !tpu_present {
        return Err(DiscoveryError::NoTpu);
    }
    Ok(Choice { name: name.to_owned(), path, reason: Reason::Requested })
}

/// Chooses by a request and whether a TPU chip is present.
pub fn choose_with(
    requested: Option<&str>,
    tpu_present: bool,
    candidates: &[SearchPath],
) -> Result<Choice, DiscoveryError> {
    let chosen = |name: &str, path, reason| Choice { name: name.to_owned(), path, reason };
    let requested = requested.map(str::trim).filter(|request| !request.is_empty());
    match requested {
        Some(request) if is_path(request) => {
            let path = PathBuf::from(request);
            if !path.exists() {
                return Err(DiscoveryError::MissingPath { path });
            }
            let known = candidates.iter().find(|candidate| same_file(&candidate.path, &path));
            let name = known.map_or("custom", |candidate| candidate.name.as_str());
            Ok(chosen(name, path, Reason::Requested))
        }
        Some(request) => {
            let name = request.to_ascii_lowercase();
            let standard = ["cpu", "tpu", "cuda"].map(str::to_owned);
            if !standard.contains(&name) && !candidates.iter().any(|candidate| candidate.name == name) {
                let mut known: Vec<String> =
                    standard.into_iter().chain(candidates.iter().map(|c| c.name.clone())).collect();
                known.sort();
                known.dedup();
                return Err(DiscoveryError::UnknownName { requested: request.to_owned(), known });
            }
            let path = find(&name, candidates)?;
            if name == "tpu" && !tpu_present {
                return Err(DiscoveryError::NoTpu);
            }
            Ok(chosen(&name, path, Reason::Requested))
        }
        None if tpu_present => Ok(chosen("tpu", find("tpu", candidates)?, Reason::TpuPresent)),
        None => Ok(chosen("cpu", find("cpu", candidates)?, Reason::Default)),
    }
}

/// The first candidate of a name that exists. Ahead-of-time compilation uses it to find libtpu without a chip.
pub fn find(name: &str, candidates: &[SearchPath]) -> Result<PathBuf, DiscoveryError> {
    let of_name = || candidates.iter().filter(|candidate| candidate.name == name);
    of_name().find(|candidate| candidate.path.is_file()).map(|candidate| candidate.path.clone()).ok_or_else(
        || DiscoveryError::NotFound {
            name: name.to_owned(),
            looked: Looked(of_name().map(|candidate| candidate.path.clone()).collect()),
        },
    )
}

/// Whether this machine has a TPU chip, found without touching it.
pub fn tpu_present() -> bool {
    tpu_present_under(Path::new("/"))
}

fn tpu_present_under(root: &Path) -> bool {
    has_accel_node(&root.join("dev"))
        || (has_vfio_group(&root.join("dev/vfio")) && has_google_accelerator(root))
}

/// `/dev/accel0` and so on: the driver of older TPU machines. Other vendors use the directory `/dev/accel/`.
fn has_accel_node(dev: &Path) -> bool {
    entries(dev).any(|name| {
        name.strip_prefix("accel").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    })
}

fn has_vfio_group(vfio: &Path) -> bool {
    entries(vfio).any(|name| name.bytes().all(|b| b.is_ascii_digit()))
}

/// A PCI function of Google that is a processing accelerator or unclassified; its network and storage devices are
/// on every Google machine.
fn has_google_accelerator(root: &Path) -> bool {
    const GOOGLE: u32 = 0x1ae0;
    let devices = root.join("sys/bus/pci/devices");
    let read = |name: &str, file: &str| {
        let text = std::fs::read_to_string(devices.join(name).join(file)).ok()?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    entries(&devices).any(|name| {
        read(&name, "vendor") == Some(GOOGLE)
            && matches!(read(&name, "class").map(|class| class >> 16), Some(0x12 | 0xff | 0x00))
    })
}

fn entries(directory: &Path) -> impl Iterator<Item = String> {
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
}

fn is_path(request: &str) -> bool {
    request.contains(std::path::MAIN_SEPARATOR) || request.ends_with(".so")
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn candidate(name: &str, path: impl Into<PathBuf>) -> SearchPath {
        SearchPath { name: name.to_owned(), path: path.into() }
    }

    #[test]
    fn the_first_existing_candidate_wins() {
        let root = tree(&[("b.so", ""), ("c.so", ""), ("t.so", "")]);
        let at = |file: &str| root.path().join(file);
        let candidates = [
            candidate("cpu", at("a.so")),
            candidate("cpu", at("b.so")),
            candidate("cpu", at("c.so")),
            candidate("tpu", at("t.so")),
        ];
        let choice = |requested, tpu| choose_with(requested, tpu, &candidates).unwrap();
        assert_eq!(
            choice(None, false),
            Choice { name: "cpu".into(), path: at("b.so"), reason: Reason::Default }
        );
        assert_eq!(choice(None, true).reason, Reason::TpuPresent);
        assert_eq!(choice(Some("CPU"), true).reason, Reason::Requested);
        assert_eq!(choice(Some(""), false).reason, Reason::Default);
        let path = at("c.so").to_string_lossy().into_owned();
        assert_eq!(choice(Some(&path), false).name, "cpu");
    }

    #[test]
    fn errors_say_what_was_looked_for_and_the_fix() {
        let candidates = [candidate("cpu", "/nowhere/a.so"), candidate("cpu", "/nowhere/b.so")];
        let message = |requested, tpu| choose_with(requested, tpu, &candidates).unwrap_err().to_string();
        insta::assert_snapshot!(
            [
                message(None, false),
                message(None, true),
                message(Some("cuda"), false),
                message(Some("/nowhere/x.so"), false),
                message(Some("gpu"), false)
            ]
            .join("\n"),
            @r"
        no PJRT plugin for cpu: looked for /nowhere/a.so, /nowhere/b.so. Install it with `pip install torch-pjrt[cpu]`, or set TORCH_PJRT_PLUGIN to its path
        no PJRT plugin for tpu: no place to look was given. Install it with `pip install torch-pjrt[tpu]`, or set TORCH_PJRT_PLUGIN to its path
        no PJRT plugin for cuda: no place to look was given. Install it with `pip install torch-pjrt[cuda]`, or set TORCH_PJRT_PLUGIN to its path
        TORCH_PJRT_PLUGIN names /nowhere/x.so, which does not exist
        TORCH_PJRT_PLUGIN=gpu is neither a path nor a known plugin (known: cpu, cuda, tpu). Use one of these names, or a path that contains a slash
        "
        );
    }

    #[test]
    fn a_tpu_needs_a_chip() {
        let root = tree(&[("libtpu.so", "")]);
        let candidates = [candidate("tpu", root.path().join("libtpu.so"))];
        assert_eq!(choose_with(Some("tpu"), false, &candidates), Err(DiscoveryError::NoTpu));
        assert_eq!(first_with(false, &candidates), Err(DiscoveryError::NoTpu));
        assert_eq!(first_with(true, &candidates).unwrap().name, "tpu");
        assert_eq!(find("tpu", &candidates).unwrap(), root.path().join("libtpu.so"));
    }

    #[test]
    fn chips_are_found_by_their_nodes() {
        let pci = |vendor: &'static str, class: &'static str| {
            vec![
                ("dev/vfio/0", ""),
                ("sys/bus/pci/devices/0000:00:05.0/vendor", vendor),
                ("sys/bus/pci/devices/0000:00:05.0/class", class),
            ]
        };
        for (files, present) in [
            (vec![], false),
            (vec![("dev/accel0", "")], true),
            (vec![("dev/accel/accel0", "")], false),
            (vec![("dev/vfio/vfio", "")], false),
            (pci("0x1ae0\n", "0x120000\n"), true),
            (pci("0x1ae0\n", "0xff0000\n"), true),
            // Google's virtual network card, and somebody else's accelerator.
            (pci("0x1ae0\n", "0x020000\n"), false),
            (pci("0x10de\n", "0x120000\n"), false),
        ] {
            assert_eq!(tpu_present_under(tree(&files).path()), present, "{files:?}");
        }
    }
}
