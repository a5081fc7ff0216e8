"""What the runtime may do (host fallback, eager mode, compiling) and what it has done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .. import _core

_S = TypeVar("_S")


class Setting(Generic[_S]):
    """A setting that has taken effect; as a context manager it goes back to the previous value at the end of
    the block.
    """

    def __init__(self, restore: Callable[[_S], Any], previous: _S) -> None:
        self._restore = restore
        self.previous = previous

    def __enter__(self) -> Setting[_S]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore(self.previous)


def set_fallback(mode: str) -> Setting[str]:
    """What happens to an operator that cannot run on the device.

    "error": NotImplementedError. "warn": it runs on the CPU, with one warning per operator. "allow": the
    same, silently; it is counted in `stats()["fallbacks"]` all the same. ValueError for another word. A
    function, and a context manager: `with torch.tpu.set_fallback("error"): ...`.
    """
    return Setting(_core.set_fallback, _core.set_fallback(mode))


def get_fallback() -> str:
    """The policy that `set_fallback` set."""
    return _core.get_fallback()


def eager_mode(mode: str | None = None) -> Setting[str] | str:
    """How operators run. "strict": each is submitted at once, asynchronously. "debug": each is awaited, so
    that an error points at its line. Without an argument: the mode in force. ValueError for another word.

    A function, and a context manager: `with torch.tpu.eager_mode("debug"): ...`.
    """
    if mode is None:
        return _core.eager_mode()
    return Setting(_core.set_eager_mode, _core.set_eager_mode(mode))


def freeze_compiles(frozen: bool = True) -> Setting[bool]:
    """Make every new compilation a RuntimeError that names the operator and its signature.

    A function, and a context manager: `with torch.tpu.freeze_compiles(): ...`.
    """
    return Setting(_core.freeze_compiles, _core.freeze_compiles(bool(frozen)))


def wait_compiles() -> None:
    """Wait until no compilation runs in the background."""
    _core.wait_compiles()


def stats() -> dict[str, Any]:
    """What the runtime did since the start or `reset_stats()`.

    Numbers: "compiles", "cache_hits" (plans found in memory), "disk_hits" (plans found on disk), "fallbacks"
    (operators run on the CPU), "host_kernels" (operators run on the host by design), "host_transfers" (copies
    between host and device), "executions", "bytes_to_device", "bytes_to_host", "meta_runs" and "traces" (runs of
    PyTorch's Meta kernels and traced decompositions: 0 where plans were on disk), "evictions" (compiled programs
    dropped from memory, see TORCH_PJRT_MAX_PROGRAMS), and, as of now, "programs" (those in memory). Dictionaries
    of counts: "compile_reasons", "fallback_ops", "host_kernel_ops", and "decomposed_ops" (operators that ran as one
    program made from PyTorch's decomposition, for want of a native lowering).
    """
    return _core.stats()


def reset_stats() -> None:
    """Set every number of `stats()` to zero."""
    _core.reset_stats()
