"""Attention as one operator with a lowering. The rule is that of `fused_sdp_choice` in the shim."""

from __future__ import annotations

from typing import Any

import torch

OPERATOR = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def fused_arguments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[tuple, dict[str, Any]] | None:
    """Arguments of `OPERATOR` for a call of scaled_dot_product_attention, None where it does not apply.

    Tensors are [batch, heads, length, width]; with `enable_gqa` several query heads share a key head.
    """
    if dropout_p != 0.0 or query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
        return None
    if not torch.backends.cuda.flash_sdp_enabled() or not query.dtype.is_floating_point:
        return None
    if key.dtype != query.dtype or value.dtype != query.dtype or 0 in (query.numel(), key.numel()):
        return None
    heads, shared = query.shape[1], key.shape[1]
    if heads != shared and not (enable_gqa and heads % shared == 0):
        return None
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        return None
    return (query, key, value, dropout_p, is_causal), {"attn_mask": attn_mask, "scale": scale}
