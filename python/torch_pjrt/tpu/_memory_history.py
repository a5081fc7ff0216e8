"""Snapshots of a device's memory and the history of its allocations, in the form of torch.cuda.memory._snapshot:
https://pytorch.org/memory_viz and torch.cuda._memory_viz show them.

A storage is a segment with one block: nothing is pooled or split.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from os import PathLike
from typing import Any

from .. import _core
from ._index import Device, device_index

_CONTEXTS = (None, "state", "alloc", "all")
# What CUDA's allocator notes for each thing that ours does.
_ACTIONS = {
    "alloc": ("segment_alloc", "alloc"),
    "free": ("free_requested", "free_completed", "segment_free"),
    "oom": ("oom",),
}
_skipped: frozenset[str] = frozenset()


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    skip_actions: list[str] | None = None,
    **_of_cuda: Any,
) -> None:
    """Record who allocates, on all devices, for `_snapshot`.

    enabled: None stops it; "state" keeps the Python stack of what is live; "all" also the last `max_entries`
    allocations and frees. context: None records no stacks. skip_actions: kinds of entries that snapshots leave
    out. `stacks`, `device` and further arguments of torch.cuda's function are accepted and change nothing: stacks
    are Python's, and those of frees are not kept. ValueError for another word.
    """
    global _skipped
    enabled = {True: "all", False: None}[enabled] if isinstance(enabled, bool) else enabled
    if enabled not in (None, "state", "all"):
        raise ValueError(f'enabled must be None, "state" or "all", got {enabled!r}')
    if context not in _CONTEXTS:
        raise ValueError(f'context must be None, "state", "alloc" or "all", got {context!r}')
    if max_entries < 1:
        raise ValueError(f"max_entries must be positive, got {max_entries}")
    _skipped = frozenset(skip_actions or ())
    if clear_history:
        _core.clear_memory_history()
    on = enabled is not None
    _core.record_memory_history(enabled == "all", on and context is not None, min(max_entries, sys.maxsize))


def _frames(core: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [
        [{"filename": file, "line": line, "name": name} for file, line, name in stack]
        for stack in core["stacks"]
    ]


def _segments(index: int, core: dict[str, Any]) -> list[dict[str, Any]]:
    frames = _frames(core)
    segments = []
    for address, size, stream, stack in core["blocks"]:
        known = [] if stack is None else frames[stack]
        block = {
            "address": address,
            "size": size,
            "requested_size": size,
            "state": "active_allocated",
            "frames": known,
        }
        segments.append(
            {
                "device": index,
                "address": address,
                "total_size": size,
                "allocated_size": size,
                "active_size": size,
                "requested_size": size,
                "stream": stream,
                "segment_type": "large" if size > 2**20 else "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": known,
                "blocks": [block],
            }
        )
    return segments


def _entries(core: dict[str, Any]) -> Iterator[dict[str, Any]]:
    frames = _frames(core)
    for action, address, size, stream, time_us, stack, free in core["events"]:
        for name in _ACTIONS[action]:
            if name in _skipped:
                continue
            entry = {
                "action": name,
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": time_us,
                "frames": [] if stack is None else frames[stack],
            }
            yield entry if free is None else {**entry, "device_free": free}


def memory_snapshot(mempool_id: object = None) -> list[dict[str, Any]]:
    """The live storages of all devices, as torch.cuda.memory_snapshot lists segments.

    NotImplementedError for a pool: there are none.
    """
    if mempool_id is not None:
        raise NotImplementedError("torch.tpu.memory_snapshot: this device has no memory pools")
    return _snapshot()["segments"]


def _snapshot(device: Device = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """The state of memory and what `_record_memory_history` has recorded of all devices; `device` must exist.

    {"segments": what is live, "device_traces": a list per device, oldest entry first, ...}, described at
    torch.cuda.memory._snapshot. With `augment_with_fx_traces`, frames in code that FX made name its nodes.
    """
    device_index(device)
    snapshot: dict[str, Any] = {
        "segments": [],
        "device_traces": [],
        "external_annotations": [],
        "allocator_settings": {},
    }
    for index in range(_core.device_count()):
        core = _core.memory_snapshot(index)
        snapshot["segments"] += _segments(index, core)
        snapshot["device_traces"].append(list(_entries(core)))
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(
    filename: str | PathLike[str] = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Write `_snapshot()` as a pickle, for https://pytorch.org/memory_viz."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(augment_with_fx_traces=augment_with_fx_traces), file)
