"""`--aspect out`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..operands import Arguments
from ..pairs import full_name
from ..rules import faults_of_the_cpu
from .aspect import Aspect, Call, NotApplicable

# What stands in the tensors before: it must be gone afterwards.
BEFORE = 1

Make = Callable[[torch.Tensor, str], torch.Tensor]


def fitting(like: torch.Tensor, device: str) -> torch.Tensor:
    return torch.full(like.shape, BEFORE, dtype=like.dtype, device=device)


def strided(like: torch.Tensor, device: str) -> torch.Tensor:
    """Every second element of each row of a larger storage, whose others must stay."""
    if like.dim() == 0:
        return torch.full((3,), BEFORE, dtype=like.dtype, device=device)[1]
    *rows, last = like.shape
    return torch.full((*rows, 2 * last), BEFORE, dtype=like.dtype, device=device)[..., ::2]


def empty(like: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype, device=device)


def too_large(like: torch.Tensor, device: str) -> torch.Tensor:
    return torch.full((*like.shape, 2), BEFORE, dtype=like.dtype, device=device)


def other_dtype(like: torch.Tensor, device: str) -> torch.Tensor:
    """Integers, into which PyTorch casts neither floating-point numbers nor, mostly, other integers."""
    dtype = torch.int64 if like.dtype != torch.int64 else torch.bool
    return torch.full(like.shape, BEFORE, dtype=dtype, device=device)


def wider(like: torch.Tensor, device: str) -> torch.Tensor:
    """A dtype into which the result may be cast."""
    widest = torch.complex128 if like.is_complex() else torch.float64
    return torch.full(like.shape, BEFORE, dtype=widest, device=device)


def elsewhere(like: torch.Tensor, device: str) -> torch.Tensor:
    return torch.full(like.shape, BEFORE, dtype=like.dtype, device="meta")


TENSORS: dict[str, Make] = {
    "that fits": fitting,
    "with strides": strided,
    "of no element": empty,
    "that is too large": too_large,
    "of another dtype": other_dtype,
    "of a wider dtype": wider,
    "on another device": elsewhere,
}


class Out(Aspect):
    """`out=`: tensors that fit, that are written through strides, that are resized, and that are refused."""

    name = "out"

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        return super().applies(entry, dtype) and entry.supports_out

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        try:
            expected = Arguments(sample, "cpu").call(entry.op)
        except Exception:  # Then there is no shape; the forward call says what is refused.
            return
        if not all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(expected)):
            return
        for words, make in TENSORS.items():
            # Where there is no element, there is no gap.
            if make is not strided or all(leaf.numel() for leaf in tree_leaves(expected)):
                yield f"out= a tensor {words}", _call(entry, expected, make)

    def with_unique(self, unique: Callable[[Any], Any], result: Any) -> Any:
        return unique(result[0]), result[1]


def _call(entry: Any, expected: Any, make: Make) -> Call:
    def call(arguments: Arguments) -> Any:
        wanted = tree_map(arguments.convert, expected)
        out = tree_map(lambda like: make(like, arguments.device), wanted)
        if (
            make is strided
            and arguments.device == "cpu"
            and full_name(entry) in faults_of_the_cpu.STRIDED_OUT
        ):
            returned = out.copy_(arguments.call(entry.op))
        else:
            returned = entry.op(arguments.input, *arguments.args, **arguments.kwargs, out=out)
        if make is elsewhere:
            raise NotApplicable("PyTorch lets it pass")
        pairs = list(zip(tree_leaves(out), tree_leaves(returned), strict=True))
        facts = [_facts(ours, theirs) for ours, theirs in pairs]
        if make is wider:  # Computed in the narrow dtype, and to be judged as such.
            leaves, form = tree_flatten(returned)
            narrow = [leaf.to(like.dtype) for leaf, like in zip(leaves, tree_leaves(wanted), strict=True)]
            returned = tree_unflatten(narrow, form)
        return returned, facts

    return call


def _facts(out: torch.Tensor, returned: torch.Tensor) -> tuple[Any, ...]:
    """That it is returned, its dtype, size and strides, and what stands between its elements."""
    elements = out.untyped_storage().nbytes() // out.itemsize
    between = torch.ones(elements, dtype=torch.bool)
    between.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(False)
    whole = out.as_strided((elements,), (1,), 0)
    rest = torch.where(between.to(out.device), whole, torch.zeros_like(whole))
    # The strides of a tensor without elements say nothing.
    lies = f"strides {list(out.stride())}" if out.numel() else "no element"
    return returned is out, f"{out.dtype}, size {list(out.shape)}, {lies}", rest
