"""Python in a process of its own: for what ends, forks or interrupts one, or is decided when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

INJECT = """
import ctypes, os, torch
_counter = ctypes.CDLL(os.environ["TORCH_PJRT_PLUGIN"])
def inject(kind, nth=1, code=13):
    "Makes the nth call of that kind fail: 13 is INTERNAL, 8 RESOURCE_EXHAUSTED."
    assert _counter.pjrt_count_fail(kind.encode(), ctypes.c_uint64(nth), ctypes.c_uint32(code)) == 0
def counted():
    "Compiles, deserialisations, executions, uploads, downloads, copies between devices."
    values = (ctypes.c_uint64 * 8)()
    _counter.pjrt_count_read(values)
    return list(values)[:6]
"""


def run(
    source: str, *, env: dict[str, str] | None = None, check: bool = True, timeout: float = 240
) -> subprocess.CompletedProcess:
    """Run Python source; with `check`, failure shows the child's output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
    )
    assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


def cpu_plugin() -> str:
    package = pytest.importorskip("fastatomstruct_xla_cpu")
    return str(Path(package.__path__[0]) / "libpjrt_cpu.so")


def counting_environment() -> dict[str, str]:
    """Puts pjrt-count, which counts calls and makes them fail, before the CPU plugin."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = Path(os.environ.get("TORCH_PJRT_COUNTER", target / "release" / "libpjrt_count.so"))
    if not path.exists():
        pytest.skip(f"{path} is not built; `make test` builds it")
    return {"TORCH_PJRT_PLUGIN": str(path), "PJRT_COUNT_PLUGIN": cpu_plugin()}


def run_with_injection(source: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Run Python source that may call `inject` and `counted`."""
    return run(INJECT + textwrap.dedent(source), env={**counting_environment(), **(env or {})})
