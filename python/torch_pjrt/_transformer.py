"""What nn.MultiheadAttention and nn.TransformerEncoder call for inference, composed as PyTorch's C++ composes it.

Nested tensors are padded, and the padding masked: programs of one shape serve all lengths up to the longest.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ._nested import from_padded

_KEY_PADDING = 1


def left_aligned(t: Tensor, mask: Tensor) -> bool:
    """Whether every row of the mask, [batch, length], is true up to some place and false behind it."""
    lengths = mask.sum(1, keepdim=True)
    return bool((mask == (torch.arange(mask.size(1), device=mask.device) < lengths)).all())


def nested_from_mask(t: Tensor, mask: Tensor, mask_check: bool = True) -> Tensor:
    """The elements of t, [batch, length, features], where the mask is true."""
    if mask.dtype != torch.bool or mask.dim() != 2 or t.dim() != 3 or mask.shape != t.shape[:2]:
        raise RuntimeError("Expected a boolean mask [batch, length] of a tensor [batch, length, features]")
    if mask_check and not left_aligned(t, mask):
        raise RuntimeError("Expected mask to be left-aligned")
    lengths = mask.sum(1).cpu()
    return from_padded(t, torch.stack([lengths, torch.full_like(lengths, t.size(2))], 1))


def _padded(x: Tensor) -> tuple[Tensor, Tensor]:
    """A nested tensor padded with zeros, and where it is: [batch, length]."""
    padded = x.to_padded_tensor(0.0)
    lengths = x._nested_tensor_size()[:, :1].to(x.device)
    return padded, torch.arange(padded.size(1), device=x.device) >= lengths


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of [batch, length, embed_dim]; `mask` is true where nothing is attended to."""
    options = (embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias)
    if query.is_nested:
        if mask is not None or need_weights or not (query is key is value):
            raise NotImplementedError(
                "tpu: attention of nested tensors with masks, weights or several inputs"
            )
        padded, padding = _padded(query)
        out, _ = attention(padded, padded, padded, *options, padding, False, mask_type=_KEY_PADDING)
        return from_padded(out, query._nested_tensor_size()), None
    if query.dim() != 3:
        raise RuntimeError(f"expected 3-D `query`, got {query.dim()}-D tensor")
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (F.linear(x, *part).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, *part in parts)
    weights = None
    if mask is None and not need_weights:
        mixed = F.scaled_dot_product_attention(q, k, v)
    else:
        scores = (q / math.sqrt(q.size(-1))) @ k.mT
        weights = scores.softmax(-1) if mask is None else _masked_softmax(scores, mask.bool(), mask_type)
        mixed = weights @ v
    out = F.linear(mixed.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _masked_softmax(scores: Tensor, mask: Tensor, mask_type: int | None) -> Tensor:
    """mask: [length, length] (type 0), [batch, length] (type 1), or that of the scores."""
    if mask_type == _KEY_PADDING:
        mask = mask[:, None, None, :]
    return scores.masked_fill(mask, -math.inf).softmax(-1)


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    sizes = src._nested_tensor_size() if src.is_nested else None
    x = src
    if sizes is not None:
        if mask is not None:
            raise NotImplementedError("tpu: a layer of a transformer on a nested tensor with a mask")
        x, mask = _padded(src)
        mask_type = _KEY_PADDING

    def attend(x: Tensor) -> Tensor:
        weights = (embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
        return attention(x, x, x, *weights, mask, False, mask_type=mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = x + attend(norm(x, norm_weight_1, norm_bias_1))
        x = x + feed_forward(norm(x, norm_weight_2, norm_bias_2))
    else:
        x = norm(x + attend(x), norm_weight_1, norm_bias_1)
        x = norm(x + feed_forward(x), norm_weight_2, norm_bias_2)
    return x if sizes is None else from_padded(x, sizes)


KERNELS = [
    ("_nested_tensor_from_mask", nested_from_mask, "PrivateUse1"),
    ("_nested_tensor_from_mask_left_aligned", left_aligned, "PrivateUse1"),
    *(
        (name, kernel, key)
        for name, kernel in (
            ("_native_multi_head_attention", attention),
            ("_transformer_encoder_layer_fwd", encoder_layer),
        )
        for key in ("PrivateUse1", "NestedTensorPrivateUse1")
    ),
]
