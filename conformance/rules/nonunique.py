"""Results that are right in more than one way: what is unique of them is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Unique(NamedTuple):
    """of(result, sample): the tensors to compare instead of the result, all on the CPU."""

    of: Callable[[Any, Any], Any]
    reason: str


def _of_opinfo(result: Any, sample: Any) -> Any:
    """What PyTorch's own tests compare."""
    return sample.output_process_fn_grad(result)


def _gathered(result: Any, sample: Any) -> Any:
    """Values, and the input's elements at the indices: ties may be broken in any way."""
    values, indices = result
    dim = _dim(sample, 1 if isinstance(sample.args[:1], tuple) else 0)
    return values, torch.take_along_dim(sample.input, indices, dim)


def _dim(sample: Any, position: int) -> int:
    return sample.kwargs.get("dim", sample.args[position] if len(sample.args) > position else -1)


OPERATORS: dict[str, Unique] = {}
