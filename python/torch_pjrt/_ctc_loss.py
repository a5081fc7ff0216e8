"""CTC loss with lengths on the host. The program takes them as operands, so that batches of the same sizes share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """log_probs [T, N, C], targets [N, S] or one after the other. The losses [N], and what the gradient needs."""
    if log_probs.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f'"ctc_loss" not implemented for {log_probs.dtype}')
    metas = (torch.empty_like(tensor, device="meta") for tensor in (log_probs, targets))
    _aten._ctc_loss.default(*metas, input_lengths, target_lengths, blank, zero_infinity)
    operands = _operands(targets, input_lengths, target_lengths)
    return _aten._ctc_loss.Tensor(log_probs, *operands, blank, zero_infinity)


def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *rest: Any,
) -> Tensor:
    operands = _operands(targets, input_lengths, target_lengths)
    return _aten._ctc_loss_backward.Tensor(grad, log_probs, *operands, *rest)


def _operands(
    targets: Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The targets as a matrix as wide as the longest of them, and the lengths, on the device."""
    lengths = torch.tensor([list(input_lengths), list(target_lengths)], dtype=torch.int64)
    longest = max(target_lengths, default=0)
    if targets.dim() == 1:
        starts = lengths[1].cumsum(0) - lengths[1]
        places = starts[:, None] + torch.arange(longest)
        # What lies beyond a target is not read, but must exist.
        places = places.clamp_(max=max(targets.numel() - 1, 0)).to(targets.device)
        targets = targets[places] if longest else targets.new_empty(len(target_lengths), 0)
    else:
        targets = targets[:, :longest]
    return targets, *lengths.to(targets.device)


KERNELS = [
    ("_ctc_loss", ctc_loss, "PrivateUse1"),
    ("_ctc_loss_backward", ctc_loss_backward, "PrivateUse1"),
]
