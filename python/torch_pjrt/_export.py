"""Whole programs ahead of time: a model's step as StableHLO text, and its compilation for a TPU that is not
here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from . import _core, _decompose, _dispatch_state, _hardware, _plugins, _recorder


@dataclass(frozen=True)
class TracedProgram:
    """graph: the encoding of `_core.pyi`; slots count the tensors of the arguments, depth first, then
    `captured`.

    captured: tensors that the function used without being given them (a model's parameters).
    """

    graph: tuple
    captured: list[torch.Tensor]


def trace_program(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    native: frozenset[str] | None = None,
) -> TracedProgram:
    """Record `fn(*args, **kwargs)` as one graph, without running it on data.

    Tensors may be on any device, the meta device included; only their form counts, except that small CPU
    tensors which the function holds itself become constants, parameters apart. An FX graph module is a
    function too. Control flow that depends on a tensor's value raises NotImplementedError.
    """
    captured: list[torch.Tensor] = []
    recorder = _recorder.Recorder(_decompose.native_operators() if native is None else native, captured)
    with _dispatch_state.clean_dispatch_state():
        slot = 0

        def to_meta(item: Any) -> Any:
            nonlocal slot
            if not isinstance(item, torch.Tensor):
                return item
            meta = torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")
            recorder.add_input(meta, slot)
            slot += 1
            return meta

        args, kwargs = tree_map(to_meta, (tuple(args), kwargs or {}))
        try:
            with recorder, _dispatch_state.KeepConstants():
                results = fn(*args, **kwargs)
            flat = [item for item in tree_flatten(results)[0] if isinstance(item, torch.Tensor)]
            outputs = [recorder.result(item) for item in flat]
        except _decompose.Untraceable as error:
            raise NotImplementedError(f"the function cannot become one program: {error}") from error
    graph = _decompose.without_dead_nodes(recorder.inputs, recorder.nodes, outputs)
    return TracedProgram(graph, captured)


def export_program(
    fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
) -> str:
    """StableHLO text of `fn(*args, **kwargs)`. Needs no device.

    Parameters: the tensors among the arguments, depth first, then those the function holds (a model's
    parameters, in the order of their first use), then 0-d numbers. Results: the tensors among what it
    returns. NotImplementedError names an operator without a lowering, or control flow that depends on a
    tensor's value.
    """
    return _core.lower_to_text(trace_program(fn, args, kwargs).graph)["text"]


def compile_for_topology(text: str, topology: str = "v5e:2x2") -> dict[str, Any]:
    """Compile StableHLO text for a TPU topology with libtpu; no TPU is needed.

    topology: "v5e:2x2", "v6e:2x2", "v5p:2x2x1" ... Result: "peak_memory", "argument_bytes", "output_bytes",
    "temp_bytes", "code_bytes" (bytes per device), "flops", "compile_seconds", "devices", "instructions" (of
    the optimised module; see `_core.pyi`).
    RuntimeError with the compiler's text; torch.OutOfMemoryError when the program does not fit into a chip.
    """
    library = _plugins.tpu_library()
    if library is not None and not _hardware.tpu_chips():
        # Else libtpu asks a metadata server for minutes, and refuses to be loaded by two processes.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    if library is None:
        raise RuntimeError("libtpu is not installed. Fix: pip install 'torch-pjrt[tpu]'")
    return _core.compile_for_topology(text, topology, library)
