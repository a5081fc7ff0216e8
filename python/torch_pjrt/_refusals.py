"""What the CPU says of a call that a Meta kernel in Python refuses.

Those kernels and PyTorch's decompositions word their refusals in their own way, raise other exceptions than the CPU's
kernels, or fail an assertion. The CPU is asked with tensors of the same form, whose elements say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map

from ._dispatch_state import clean_dispatch_state
from ._graph_encoding import decode_arguments, find_operator

# Beyond this the answer costs more than it is worth.
_MOST_BYTES = 1 << 26

# The CPU has no kernel for it, or none for the dtype: that says nothing of what the device should do.
_OF_THE_CPU = ("Could not run", "not implemented for '")


def refuse(op: str, args: Sequence[Any]) -> None:
    """Raise what the operator raises of such arguments on the CPU, if it does; `args` as those of `trace`, with what is
    written.
    """
    func = find_operator(op)
    tensors = [item for item in tree_iter(args) if isinstance(item, Tensor)]
    if func.namespace != "aten" or sum(_extent(tensor) * tensor.itemsize for tensor in tensors) > _MOST_BYTES:
        return
    with clean_dispatch_state(), torch.random.fork_rng(devices=[]):
        positional, keywords = tree_map(_on_cpu, decode_arguments(func, args, torch.device("cpu")))
        try:
            func(*positional, **keywords)
        except (MemoryError, torch.linalg.LinAlgError):
            return
        except Exception as refusal:
            if not any(text in str(refusal) for text in _OF_THE_CPU):
                raise refusal.with_traceback(None) from None


def _extent(tensor: Tensor) -> int:
    """Elements from the first to the last."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _on_cpu(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    # Ones are neither singular nor without weight, but as indices they may be too large; 1j is no real number.
    value = 1 if leaf.is_floating_point() else 1j if leaf.is_complex() else 0
    return torch.full((_extent(leaf),), value, dtype=leaf.dtype).as_strided(leaf.shape, leaf.stride())
