"""From what users write for a device to its index."""

from __future__ import annotations

from typing import TypeAlias

import torch

from .. import _core

Device: TypeAlias = "torch.device | str | int | None"


def device_index(device: Device = None) -> int:
    """Index of `device`: an int, "tpu", "tpu:1", a torch.device; None and an index-free device mean the
    current one.

    ValueError for a device of another type, TypeError for another Python type.
    """
    if device is None:
        return _core.current_device()
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device):
        raise TypeError(f"Expected a torch.device, a string or an integer, but got: {device!r}")
    if device.type != "tpu":
        raise ValueError(f"Expected a tpu device, but got: {device}")
    return _core.current_device() if device.index is None else device.index
