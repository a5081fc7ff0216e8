"""Sizes of results where PyTorch has no Meta kernel."""

from __future__ import annotations

import torch
from torch import Tensor


def ctc_loss(log_probs: Tensor, targets: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
    """The lengths are values: places for the longest target that there is room for."""
    frames, batch, _labels = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty(batch, frames, 2 * targets.size(-1) + 1)


def padded_dense_to_jagged(dense: Tensor, _offsets: list[Tensor], total_L: int | None = None) -> Tensor:
    if total_L is None:
        raise NotImplementedError("tpu: _padded_dense_to_jagged_forward without the number of rows")
    return dense.new_empty(total_L, *dense.shape[2:])


def fake_quantized(tensor: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
    """And where the elements were in range."""
    return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)


def geqrf(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Columns lie one after the other, as LAPACK has them."""
    *batch, rows, columns = matrix.shape
    return matrix.new_empty(*batch, columns, rows).mT, matrix.new_empty(*batch, min(rows, columns))


def like_first(tensor: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(tensor)


def like_second(_grad: Tensor, tensor: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.legacy_contiguous_format)


KERNELS = [
    ("_ctc_loss.Tensor", ctc_loss),
    ("_ctc_loss_backward.Tensor", like_second),
    ("_padded_dense_to_jagged_forward", padded_dense_to_jagged),
    ("fake_quantize_per_tensor_affine_cachemask", fake_quantized),
    ("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", fake_quantized),
    ("fake_quantize_per_channel_affine_cachemask", fake_quantized),
    ("geqrf", geqrf),
    ("glu_backward_jvp", like_first),
    ("glu_jvp", like_first),
    ("fractional_max_pool3d_backward", like_second),
    ("multi_margin_loss_backward", like_second),
    ("multilabel_margin_loss_backward", like_second),
]


def register(library: torch.library.Library) -> None:
    for name, kernel in KERNELS:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, kernel, "Meta")
