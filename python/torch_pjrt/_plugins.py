"""Which PJRT plugin to use, found on disk without importing the packages that carry it."""

from __future__ import annotations

import glob
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from . import _hardware

# Package -> library inside it, in the order of preference.
_CPU_PACKAGES = (
    ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
    ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    ("xla_plugins", "xla_cpu_pjrt/xla_cpu_pjrt.so"),
)
_TPU_PACKAGE = ("libtpu", "libtpu.so")
_CUDA_PACKAGE = ("jax_plugins", "xla_cuda*/xla_cuda_plugin.so")

_INSTALL = {
    "cpu": "pip install 'torch-pjrt[cpu]'",
    "tpu": "pip install 'torch-pjrt[tpu]'",
    "cuda": "pip install 'torch-pjrt[cuda]'",
}


@dataclass(frozen=True)
class Choice:
    """The plugin that this process will load at the first use of the device.

    candidates: (name, path) in the order of preference, empty when there is none.
    num_devices: how many devices to announce before the client exists.
    problem: why there is no plugin, with the fix; empty when there is one.
    explicit: whether the user named the plugin (TORCH_PJRT_PLUGIN).
    """

    candidates: tuple[tuple[str, str], ...]
    num_devices: int
    problem: str
    explicit: bool


def _library(package: str, pattern: str) -> str | None:
    """Path of a library inside an installed package; a glob takes the newest by name."""
    try:
        # Only a top-level name: find_spec on a dotted one would import its parent.
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        found = sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
        if found:
            return found[-1]
    return None


def tpu_library() -> str | None:
    """Path of libtpu: TPU_LIBRARY_PATH, else in the package `libtpu`. It compiles without a TPU, too."""
    path = os.environ.get("TPU_LIBRARY_PATH")
    return path if path and os.path.isfile(path) else _library(*_TPU_PACKAGE)


def cpu_libraries() -> list[str]:
    return [path for package in _CPU_PACKAGES if (path := _library(*package))]


def cuda_library() -> str | None:
    return _library(*_CUDA_PACKAGE)


def installed() -> dict[str, list[str]]:
    """Every plugin library that can be found: {"tpu": [...], "cpu": [...], "cuda": [...]}."""
    tpu, cuda = tpu_library(), cuda_library()
    return {"tpu": [tpu] if tpu else [], "cpu": cpu_libraries(), "cuda": [cuda] if cuda else []}


def _named(wanted: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Candidates for a value of TORCH_PJRT_PLUGIN and, when there is none, why."""
    looks_like_path = os.sep in wanted or wanted.endswith((".so", ".dylib", ".dll"))
    if looks_like_path:
        path = Path(wanted).expanduser()
        if path.is_file():
            return (("custom", str(path.resolve())),), ""
        return (), (
            f"TORCH_PJRT_PLUGIN={wanted}: there is no such file. "
            "Fix: set it to the path of a PJRT plugin library, or to cpu, tpu or cuda."
        )
    name = wanted.lower()
    if name in _INSTALL:
        paths = installed()[name]
        if paths:
            return tuple((name, path) for path in paths), ""
        return (), (
            f"TORCH_PJRT_PLUGIN={wanted}, but no package with that plugin is installed. Fix: {_INSTALL[name]}"
        )
    for package, pattern in (*_CPU_PACKAGES, _TPU_PACKAGE, _CUDA_PACKAGE):
        if name.replace("-", "_") == package and (path := _library(package, pattern)):
            kind = {_TPU_PACKAGE[0]: "tpu", _CUDA_PACKAGE[0]: "cuda"}.get(package, "cpu")
            return ((kind, path),), ""
    return (), (
        f"TORCH_PJRT_PLUGIN={wanted} is neither a file nor a known plugin. "
        "Fix: set it to cpu, tpu, cuda, or the path of a PJRT plugin library."
    )


class Number(NamedTuple):
    """A setting that is a whole number, from `least` to `most`."""

    variable: str
    default: int
    least: int
    most: int

    def read(self, environ: Mapping[str, str]) -> tuple[int, str]:
        """(value; what is wrong with the one given)."""
        text = environ.get(self.variable, str(self.default)).strip()
        if text.isdigit() and self.least <= int(text) <= self.most:
            return int(text), ""
        must = f"it must be a whole number from {self.least} to {self.most}"
        return self.default, f"{self.variable}={text} is ignored: {must}."


NUM_DEVICES = Number("TORCH_PJRT_NUM_DEVICES", 1, 1, 1024)
# A program takes 0.1 to 0.3 MB of host memory with the CPU plugin.
MAX_PROGRAMS = Number("TORCH_PJRT_MAX_PROGRAMS", 4096, 64, 1_000_000)


def choose() -> Choice:
    """Apply the rule: TORCH_PJRT_PLUGIN (a name or a path), else TPU if a chip is present, else CPU.

    A machine with a TPU never falls back to the CPU plugin by itself: a missing or broken libtpu is the
    problem to report.
    """
    virtual_devices, _ = NUM_DEVICES.read(os.environ)
    wanted = os.environ.get("TORCH_PJRT_PLUGIN", "").strip()
    if wanted:
        candidates, problem = _named(wanted)
        if candidates and candidates[0][0] == "tpu" and not _hardware.tpu_present():
            candidates, problem = (
                (),
                f"TORCH_PJRT_PLUGIN={wanted}, but this machine has no TPU (no /dev/accel*, no TPU chip on the PCI "
                "bus); libtpu alone only compiles ahead of time. Fix: unset it or set it to cpu",
            )
        explicit = True
    elif chips := _hardware.tpu_chips():
        library = tpu_library()
        candidates = (("tpu", library),) if library else ()
        problem = (
            ""
            if library
            else (
                f"this machine has {len(chips)} TPU chip(s) ({chips[0]}) but libtpu is not installed. "
                f"Fix: {_INSTALL['tpu']} (or set TORCH_PJRT_PLUGIN=cpu to run on the CPU)"
            )
        )
        explicit = False
    else:
        candidates = tuple(("cpu", path) for path in cpu_libraries())
        problem = (
            ""
            if candidates
            else (
                "no PJRT plugin is installed and this machine has no TPU. "
                f"Fix: {_INSTALL['cpu']} (or set TORCH_PJRT_PLUGIN to a plugin library)"
            )
        )
        explicit = False
    if not candidates:
        return Choice((), 0, problem, explicit)
    # A TPU host gives a process one chip, index 0.
    count = 1 if candidates[0][0] == "tpu" else virtual_devices
    return Choice(candidates, count, "", explicit)


def environment_problems() -> list[tuple[str, str]]:
    """What is wrong with the settings that are numbers: (problem, what to do)."""
    found = [(number, number.read(os.environ)[1]) for number in (NUM_DEVICES, MAX_PROGRAMS)]
    return [(problem, f"unset {number.variable} or correct it") for number, problem in found if problem]
