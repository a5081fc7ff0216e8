"""Kernels in Python, where nothing is gained by C++ or Rust.

Sizes that depend on values and have no bound known from metadata are not for one program: these operators read a
number, which takes longer than Python does, and go on with others.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from . import _cpu_kernels, _ctc_loss, _histograms, _meta_kernels, _sparse


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """The positions of the repeated elements."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    ends = repeats.cumsum(0)
    least = repeats.min()
    if output_size is None:
        if least.item() < 0:
            raise RuntimeError("repeats can not be negative")
        output_size = ends[-1].item()
    else:
        torch._assert_async(ends[-1] == output_size, "allocated size does not match required size")
        torch._assert_async(least >= 0, "repeats can not be negative")
    positions = torch.arange(output_size, dtype=ends.dtype, device=ends.device)
    return torch.searchsorted(ends, positions, right=True).to(repeats.dtype)


def nonzero_out(self: Tensor, *, out: Tensor) -> Tensor:
    return _positions_into(out, "nonzero", torch.nonzero, self)


def nonzero_static_out(self: Tensor, *, size: int, fill_value: int = -1, out: Tensor) -> Tensor:
    function = functools.partial(torch.nonzero_static, size=size, fill_value=fill_value)
    return _positions_into(out, "nonzero_static", function, self)


def _positions_into(out: Tensor, name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if out.dtype != torch.int64:
        raise RuntimeError(
            f"{name}: Expected out tensor to have scalar type Long but got scalar type {out.dtype}"
        )
    result = function(x)
    if _resized(out, result):
        out.as_strided_(result.size(), result.stride())
    return out.copy_(result)


def masked_select_out(self: Tensor, mask: Tensor, *, out: Tensor) -> Tensor:
    if self.dtype != out.dtype:
        raise RuntimeError("masked_select(): self and result must have the same scalar type")
    result = torch.masked_select(self, mask)
    _resized(out, result)
    return out.copy_(result)


def randperm_out(n: int, *, generator: torch.Generator | None, out: Tensor) -> Tensor:
    result = torch.randperm(n, generator=generator, dtype=out.dtype, device=out.device)
    return out.resize_(result.shape).copy_(result)


def _resized(out: Tensor, result: Tensor) -> bool:
    """Gives `out` the size of the result. Whether it had another."""
    if out.shape == result.shape:
        return False
    if out.numel() != 0:
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not "
            f"match the required output shape {list(result.shape)}. Give it no elements, or the right ones",
            stacklevel=3,
        )
    out.resize_(result.shape)
    return True


def binary_cross_entropy_under_autocast(*arguments: object, **options: object) -> Tensor:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss. binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    )


def has_compatible_shallow_copy_type(self: Tensor, from_: Tensor) -> bool:
    """What Module.to asks before it moves parameters in place, keeping ties and optimizers.

    PyTorch's own answer knows only the backends it ships.
    """
    return all(torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Dense) for tensor in (self, from_))


KERNELS = [
    ("repeat_interleave.Tensor", repeat_interleave, "PrivateUse1"),
    ("nonzero.out", nonzero_out, "PrivateUse1"),
    ("nonzero_static.out", nonzero_static_out, "PrivateUse1"),
    ("masked_select.out", masked_select_out, "PrivateUse1"),
    ("randperm.generator_out", randperm_out, "PrivateUse1"),
    ("binary_cross_entropy", binary_cross_entropy_under_autocast, "AutocastPrivateUse1"),
    ("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type, "PrivateUse1"),
    *_cpu_kernels.KERNELS,
    *_ctc_loss.KERNELS,
    *_sparse.KERNELS,
    *_histograms.KERNELS,
]


def register() -> torch.library.Library:
    """Makes them the device's kernels for as long as the library lives."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel, key in KERNELS:
        library.impl(name, kernel, key)
    _meta_kernels.register(library)
    return library
