"""A sample's arguments on a device, with storages shared and laid out as in the original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


class Arguments:
    """One call's arguments, freshly copied: `input`, `args` and `kwargs` of a SampleInput."""

    def __init__(
        self,
        sample: Any,
        device: str,
        convert: Callable[[Any], Any] = lambda leaf: leaf,
        only_input: bool = False,
    ) -> None:
        self.device, self.convert = device, convert
        # All converted before any is copied: a storage that is still there has an address of its own.
        original = tree_map(convert, (sample.input, tuple(sample.args), dict(sample.kwargs)))
        copies = _Copies(
            device, Counter(_storage(leaf) for leaf in tree_leaves(original) if _is_strided(leaf))
        )
        stays = tree_leaves(original[1:]) if only_input else []
        self.input, self.args, self.kwargs = tree_map(
            lambda leaf: leaf if any(leaf is other for other in stays) else copies.of(leaf), original
        )

    def call(self, function: Callable[..., Any]) -> Any:
        return function(self.input, *self.args, **self.kwargs)

    def name_a_device(self) -> bool:
        return bool(self.tensors()) or self.kwargs.get("device") is not None

    def tensors(self) -> list[torch.Tensor]:
        leaves = tree_leaves((self.input, self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


class _Copies:
    def __init__(self, device: str, users: Counter[int]) -> None:
        self._device, self._users = device, users
        self._storages: dict[int, torch.UntypedStorage] = {}

    def of(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._tensor(leaf)
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return torch.device(self._device)
        if isinstance(leaf, str) and leaf == "cpu":
            return self._device
        if isinstance(leaf, slice):
            return slice(self.of(leaf.start), self.of(leaf.stop), self.of(leaf.step))
        return leaf

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.detach().clone().to(self._device)
        if tensor.is_conj():
            return self._tensor(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._tensor(torch._neg_view(tensor)))
        plain = tensor.detach()
        if self._users[_storage(tensor)] == 1 and _fills_its_storage(plain):
            # As such a tensor is made on a device: its buffer has its shape.
            copy = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device=self._device)
            copy.copy_(plain)
        else:
            copy = torch.empty(0, dtype=plain.dtype, device=self._device)
            copy.set_(self._copy_of_storage(plain), plain.storage_offset(), plain.shape, plain.stride())
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return copy.requires_grad_(tensor.requires_grad)

    def _copy_of_storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        key = _storage(tensor)
        if key not in self._storages:
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self._storages[key] = whole.clone().to(self._device).untyped_storage()
        return self._storages[key]


def _is_strided(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(
        (st, si) for st, si in zip(tensor.stride(), tensor.shape, strict=True) if si != 1
    ):
        if stride != expected:
            return False
        expected *= size
    bytes_of_tensor = tensor.numel() * tensor.itemsize
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == bytes_of_tensor
