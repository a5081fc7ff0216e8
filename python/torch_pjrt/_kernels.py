"""Kernels in Python, where nothing is gained by C++ or Rust.

Sizes that depend on values and have no bound known from metadata are not for one program: these operators read a
number, which takes longer than Python does, and go on with others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import (
    _cpu_kernels,
    _ctc_loss,
    _histograms,
    _meta_kernels,
    _nested,
    _out_forms,
    _sparse,
    _transformer,
    _unsupported,
)


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


def addbmm_(self: Tensor, *matrices: Tensor, **scales: float) -> Tensor:
    """Unlike other in-place operators it gives its tensor the size of the result."""
    result = torch.addbmm(self, *matrices, **scales)
    return (self if self.shape == result.shape else self.resize_(result.shape)).copy_(result)


def _sizes_of_losses(x: Tensor, reduction: int) -> tuple[tuple[int, ...], int]:
    """Of losses per sample, and a reduction that gives them.

    A sample without a batch has one number; PyTorch's decompositions make a batch of it, whose mean it is.
    """
    if reduction == 0 and x.dim() < 2:
        return (), 1
    return x.shape[:1] if reduction == 0 else (), reduction


def multi_margin_loss(
    self: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    sizes, reduction = _sizes_of_losses(self, reduction)
    out = self.new_empty(sizes)
    return torch.ops.aten.multi_margin_loss.out(self, target, p, margin, weight, reduction, out=out)


def multilabel_margin_loss_forward(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    sizes, reduction = _sizes_of_losses(self, reduction)
    out, is_target = self.new_empty(sizes), self.new_empty(target.shape)
    return torch.ops.aten.multilabel_margin_loss_forward.output(
        self, target, reduction, output=out, is_target=is_target
    )


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
    ("addbmm_", addbmm_, "PrivateUse1"),
    ("multi_margin_loss", multi_margin_loss, "PrivateUse1"),
    ("multilabel_margin_loss_forward", multilabel_margin_loss_forward, "PrivateUse1"),
    ("binary_cross_entropy", binary_cross_entropy_under_autocast, "AutocastPrivateUse1"),
    # Under Autograd, too: where a backend has a kernel, PyTorch's own there goes, and wrapper subclasses were asked.
    *(
        ("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type, key)
        for key in ("PrivateUse1", "AutogradPrivateUse1")
    ),
    *_cpu_kernels.KERNELS,
    *_ctc_loss.KERNELS,
    *_nested.KERNELS,
    *_sparse.KERNELS,
    *_transformer.KERNELS,
    *_histograms.KERNELS,
    *_out_forms.KERNELS,
]


def register() -> list[torch.library.Library]:
    """Makes them the device's kernels for as long as the libraries live."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel, key in KERNELS:
        library.impl(name, kernel, key)
    _meta_kernels.register(library)
    return [library, _unsupported.register()]
