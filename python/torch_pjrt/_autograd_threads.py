"""Autograd's threads, ended while Python still runs.

Autograd has a thread for each kind of device. One that lets go of a graph, and of the Python objects in it, while the
interpreter shuts down ends the process by an abort ("terminate called without an active exception").
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import torch

# The longest wait, in seconds: for a thread that never comes to an end, PyTorch gives up after ten.
PATIENCE = 1.0


def end() -> None:
    """What PyTorch does later, when it is too late. Backward passes of this process end here."""
    if not _any():
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    try:
        engine = library._ZN5torch8autograd6Engine18get_default_engineEv
        stop = library._ZN5torch8autograd6Engine4stopEv
    except AttributeError:
        return
    engine.restype = ctypes.c_void_p
    stop.argtypes, stop.restype = [ctypes.c_void_p], None
    stop(engine())  # ctypes releases the GIL, which the threads want
    limit = time.monotonic() + PATIENCE
    while _any() and time.monotonic() < limit:
        time.sleep(0.001)


def _any() -> bool:
    """Whether such a thread runs, as far as the system tells."""
    return any(_name(thread).startswith("pt_autograd") for thread in Path("/proc/self/task").glob("*"))


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text()
    except OSError:  # it has ended
        return ""
