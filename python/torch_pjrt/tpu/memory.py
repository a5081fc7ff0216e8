"""Memory of a device: what live tensors take, what is free, the limit."""

from __future__ import annotations

from collections import OrderedDict

from .. import _core
from ._index import Device, device_index
from ._memory_history import (  # noqa: F401 (torch.tpu.memory has what torch.cuda.memory has)
    _dump_snapshot,
    _record_memory_history,
    _snapshot,
    memory_snapshot,
)
from .devices import _lazy_init

# Statistic of torch.cuda -> prefix of the core's keys. Storages are PJRT buffers of exactly their size: there
# is no pool of ours, so what is reserved is what is allocated and nothing is ever split.
_BYTES = ("allocated_current", "allocated_peak", "allocated_total", "freed_total")
_BLOCKS = ("blocks_current", "blocks_peak", "blocks_total", "blocks_freed")
_METRICS = ("current", "peak", "allocated", "freed")
_STATISTICS = {
    "allocated_bytes": _BYTES,
    "active_bytes": _BYTES,
    "requested_bytes": _BYTES,
    "reserved_bytes": _BYTES,
    "allocation": _BLOCKS,
    "active": _BLOCKS,
    "segment": _BLOCKS,
    "inactive_split": None,
    "inactive_split_bytes": None,
}


def memory_stats(device: Device = None) -> OrderedDict[str, int]:
    """Statistics of the allocator under torch.cuda's keys: "allocated_bytes.all.peak", "num_ooms", ...

    Bytes or numbers of storages. `reserved_bytes` equals `allocated_bytes`, the small and large pools are
    zero.
    """
    core = _core.memory_stats(device_index(device))
    result: OrderedDict[str, int] = OrderedDict()
    for statistic, keys in sorted(_STATISTICS.items()):
        for pool in ("all", "large_pool", "small_pool"):
            for position, metric in enumerate(_METRICS):
                value = core[keys[position]] if keys is not None and pool == "all" else 0
                result[f"{statistic}.{pool}.{metric}"] = value
    result["num_ooms"] = core["ooms"]
    result["num_alloc_retries"] = 0
    result["memory_limit"] = core["limit"]
    result["host_pinned_bytes"] = core["host_pinned"]
    return result


def memory_stats_as_nested_dict(device: Device = None) -> dict:
    """`memory_stats` as nested dictionaries: stats["allocated_bytes"]["all"]["peak"]."""
    nested: dict = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def memory_allocated(device: Device = None) -> int:
    """Bytes that live tensors of `device` take."""
    return _core.memory_stats(device_index(device))["allocated_current"]


def max_memory_allocated(device: Device = None) -> int:
    """Largest `memory_allocated` since the start or the last `reset_peak_memory_stats`, in bytes."""
    return _core.memory_stats(device_index(device))["allocated_peak"]


def memory_reserved(device: Device = None) -> int:
    """Bytes held for tensors; the same as `memory_allocated`, because nothing is pooled."""
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    """Largest `memory_reserved`, in bytes."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the peak statistics again from the current values."""
    _core.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Start the totals of allocated and freed bytes and storages again from zero."""
    _core.reset_accumulated_memory_stats(device_index(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """The same as `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of `device`. Starts the client."""
    _lazy_init()
    stats = _core.memory_stats(device_index(device))
    return stats["free_bytes"], stats["total_bytes"]


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limit live tensors to `fraction` (0 to 1) of the device's memory; 1.0 removes the limit. Starts the
    client.

    Beyond the limit torch.OutOfMemoryError is raised. TypeError unless a float, ValueError outside 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = device_index(device)
    _lazy_init()
    total = _core.memory_stats(index)["total_bytes"]
    _core.set_memory_limit(index, None if fraction == 1 else int(total * fraction))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The share of the device's memory that live tensors may take, 0 to 1. Starts the client."""
    _lazy_init()
    stats = _core.memory_stats(device_index(device))
    return stats["limit"] / stats["total_bytes"] if stats["limit"] and stats["total_bytes"] else 1.0


def set_memory_limit(limit: int | None, device: Device = None) -> None:
    """Limit live tensors of `device` to `limit` bytes; None removes the limit. Starts nothing."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise TypeError(f"limit must be a number of bytes or None, got {type(limit).__name__}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}")
    _core.set_memory_limit(device_index(device), limit)


def empty_cache() -> None:
    """Give memory that no tensor uses back to the system."""
    _core.empty_cache()


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table of the statistics, to print while training or after running out of memory."""
    index = device_index(device)
    stats = memory_stats(index)
    rows = [("Allocated memory", "allocated_bytes", _size), ("Storages", "allocation", str)]
    if not abbreviated:
        rows.insert(1, ("Reserved memory", "reserved_bytes", _size))
    limit = _size(stats["memory_limit"]) if stats["memory_limit"] else "none"
    line = "=" * 75
    lines = [
        line,
        f"  PyTorch TPU memory summary, device {index}   OOMs: {stats['num_ooms']}   limit: {limit}",
        line,
        f" {'Metric':<18}| {'Cur Usage':<12}| {'Peak Usage':<12}| {'Tot Alloc':<12}| {'Tot Freed':<12}",
        "-" * 75,
    ]
    for title, statistic, show in rows:
        values = [show(stats[f"{statistic}.all.{metric}"]) for metric in _METRICS]
        lines.append(f" {title:<18}| " + "| ".join(f"{value:<12}" for value in values))
    lines.append(line)
    return "\n".join(lines) + "\n"
