"""What two results must have in common besides their values: structure, dtype, shape, strides, aliasing, device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten


class Mismatch(NamedTuple):
    """kind: "value", "dtype", "shape", "strides", "aliasing", ...; where: "output 1", "input 0"."""

    kind: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.where}: {self.message}"


def flatten(result: Any) -> list[Any]:
    return tree_flatten(result)[0]


def structure(ours: Any, theirs: Any) -> Iterator[Mismatch]:
    """The container, and which leaves are tensors; other leaves are equal."""
    (our_leaves, our_tree), (their_leaves, their_tree) = tree_flatten(ours), tree_flatten(theirs)
    if our_tree != their_tree:
        yield Mismatch("structure", "result", f"{our_tree} instead of {their_tree}")
        return
    for i, (our, their) in enumerate(zip(our_leaves, their_leaves, strict=True)):
        if isinstance(our, torch.Tensor) != isinstance(their, torch.Tensor):
            yield Mismatch(
                "structure", f"output {i}", f"{type(our).__name__} instead of {type(their).__name__}"
            )
        elif not isinstance(our, torch.Tensor) and not _same_leaf(our, their):
            yield Mismatch("value", f"output {i}", f"{our!r} instead of {their!r}")


def _same_leaf(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.device):
        return isinstance(ours, torch.device)
    if isinstance(theirs, (float, complex)):
        return type(ours) is type(theirs) and bool(
            torch.isclose(torch.tensor(ours), torch.tensor(theirs), rtol=1.3e-6, atol=1e-5, equal_nan=True)
        )
    return type(ours) is type(theirs) and ours == theirs


def metadata(where: str, ours: torch.Tensor, theirs: torch.Tensor, device: str) -> Iterator[Mismatch]:
    """Everything that a tensor says of itself. `theirs` lies on the CPU, `ours` on `device`."""
    if ours.device.type != device:
        yield Mismatch("device", where, f"{ours.device} instead of {device}")
    if ours.dtype != theirs.dtype:
        yield Mismatch("dtype", where, f"{ours.dtype} instead of {theirs.dtype}")
    if ours.layout != theirs.layout:
        yield Mismatch("layout", where, f"{ours.layout} instead of {theirs.layout}")
    if ours.shape != theirs.shape:
        yield Mismatch("shape", where, f"{list(ours.shape)} instead of {list(theirs.shape)}")
        return
    if ours.layout != torch.strided or theirs.layout != torch.strided:
        return
    # The strides of a tensor without elements say nothing.
    if theirs.numel() and ours.stride() != theirs.stride():
        message = f"{ours.stride()} instead of {theirs.stride()} for {list(theirs.shape)}"
        yield Mismatch("strides", where, message)
    for bit in ("is_conj", "is_neg"):
        if getattr(ours, bit)() != getattr(theirs, bit)():
            yield Mismatch(bit, where, f"{getattr(ours, bit)()} instead of {getattr(theirs, bit)()}")


def aliasing(
    ours: Sequence[Any],
    theirs: Sequence[Any],
    our_inputs: Sequence[torch.Tensor],
    their_inputs: Sequence[torch.Tensor],
) -> Iterator[Mismatch]:
    """Outputs share storage with inputs and with each other, at the same offset, exactly when the CPU's do."""
    for i, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if not (_is_strided(our) and _is_strided(their)):
            continue
        our_others = [*our_inputs, *ours[:i]]
        their_others = [*their_inputs, *theirs[:i]]
        for j, (our_other, their_other) in enumerate(zip(our_others, their_others, strict=True)):
            name = f"input {j}" if j < len(our_inputs) else f"output {j - len(our_inputs)}"
            got, want = _relation(our, our_other), _relation(their, their_other)
            if got != want:
                yield Mismatch("aliasing", f"output {i}", f"{got} {name} instead of {want}")


def _relation(tensor: torch.Tensor, other: Any) -> str:
    if tensor is other:
        return "is"
    if not _is_strided(other) or not torch._C._is_alias_of(tensor, other):
        return "shares nothing with"
    # The offset of a tensor without elements says nothing.
    return f"at {tensor.storage_offset() - other.storage_offset()} of" if tensor.numel() else "views"


def _is_strided(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.layout == torch.strided
