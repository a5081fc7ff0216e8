"""Where CUDA's kernels differ from the CPU's in a dtype, a shape or strides, the device follows CUDA."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..compare import Mismatch


class Difference(NamedTuple):
    """Which kinds of mismatch of which outputs are CUDA's, and why."""

    kinds: frozenset[str]
    outputs: frozenset[str]
    reason: str


_HALF_STATISTICS = Difference(
    frozenset({"dtype"}),
    frozenset({"output 1", "output 2"}),
    "the mean and the reciprocal deviation of half-precision data are float32 on CUDA and in the Meta kernel",
)

OPERATORS: dict[str, Difference] = {}


def excuses(name: str, mismatch: Mismatch, dtype: torch.dtype) -> bool:
    found = OPERATORS.get(name)
    return bool(found and mismatch.kind in found.kinds and mismatch.where in found.outputs)
