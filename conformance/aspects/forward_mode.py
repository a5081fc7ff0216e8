"""`--aspect forward_mode`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map

from ..operands import Arguments
from .aspect import Call
from .gradient import Gradient, wants_gradient, weights


class ForwardMode(Gradient):
    """Tangents of the results, for the same random tangents of the inputs on both devices."""

    name = "forward_mode"

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        return super().applies(entry, dtype) and entry.supports_forward_ad

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        def call(arguments: Arguments) -> Any:
            with forward_ad.dual_level():
                positional, named = tree_map(_dual, ((arguments.input, *arguments.args), arguments.kwargs))
                result = sample.output_process_fn_grad(entry.op(*positional, **named))
                return [_tangent(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]

        yield "", call


def _dual(leaf: Any) -> Any:
    if not wants_gradient(leaf):
        return leaf
    return forward_ad.make_dual(leaf.detach(), weights(leaf))


def _tangent(leaf: torch.Tensor) -> torch.Tensor | None:
    return forward_ad.unpack_dual(leaf).tangent
