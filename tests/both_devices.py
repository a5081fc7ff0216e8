"""A function of a device gives the same on the CPU and on `tpu`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten


def grid(device: str, *sizes: int) -> torch.Tensor:
    """Evenly spaced numbers from -1 to 1."""
    return torch.linspace(-1, 1, math.prod(sizes)).view(sizes).to(device)


def check(function: Callable[[str], Any], **tolerance: float) -> None:
    """Compares every leaf of what `function` returns: tensors in values, dtype, sizes, strides and whether they
    require gradients, others as Python does.
    """
    (expected, their_tree), (actual, our_tree) = (
        tree_flatten(function("cpu")),
        tree_flatten(function("tpu")),
    )
    assert our_tree == their_tree
    for ours, theirs in zip(actual, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        assert ours.device.type == theirs.device.type.replace("cpu", "tpu")
        assert ours.requires_grad == theirs.requires_grad
        assert ours.stride() == theirs.stride() or not theirs.numel()
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), equal_nan=True, **tolerance)


def check_refused(function: Callable[[str], Any], kind: type[Exception]) -> None:
    """Both devices raise an exception of that very type."""
    for device in ("cpu", "tpu"):
        try:
            function(device)
        except Exception as error:
            assert type(error) is kind, f"{device}: {error!r}"
        else:
            raise AssertionError(f"{device}: no exception")
