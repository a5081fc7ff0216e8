"""Attention on the device: one program where the CPU has one kernel, and the CPU's values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

attend = F.scaled_dot_product_attention

FUSED = ["aten::_scaled_dot_product_flash_attention_for_cpu"]


def _qkv(
    *sizes: int, keys: int | None = None, heads: int | None = None, width: int | None = None
) -> Callable[[], list[torch.Tensor]]:
    """Query [batch, heads, queries, width]; keys and values with other numbers of keys, heads or widths."""
    *batch, own_heads, queries, own_width = sizes
    key = (*batch, heads or own_heads, queries if keys is None else keys)
    return lambda: [
        torch.randn(sizes),
        torch.randn(*key, own_width),
        torch.randn(*key, width or own_width),
    ]


def _with(
    tensors: Callable[[], list[torch.Tensor]], *more: Callable[[], torch.Tensor]
) -> Callable[[], list[torch.Tensor]]:
    return lambda: tensors() + [make() for make in more]


def _visible() -> torch.Tensor:
    mask = torch.rand(6, 6) > 0.3
    mask[0] = False  # A row that sees nothing attends to nothing.
    mask[1:, 0] = True
    return mask


def _by_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


# What, operands, whether one program does it all.
CASES = {
    "plain": (attend, _qkv(2, 4, 6, 8), True),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), _qkv(2, 4, 6, 8), True),
    "causal, more keys": (lambda q, k, v: attend(q, k, v, is_causal=True), _qkv(2, 4, 6, 8, keys=9), True),
    "fewer keys": (attend, _qkv(2, 4, 6, 8, keys=3), True),
    "scale": (lambda q, k, v: attend(q, k, v, scale=0.3), _qkv(2, 4, 6, 8), True),
    "shared key heads": (
        lambda q, k, v: attend(q, k, v, enable_gqa=True),
        _qkv(2, 6, 5, 8, heads=2),
        True,
    ),
    "transposed heads": (_by_heads, _qkv(2, 6, 4, 8), True),
    # PyTorch turns a boolean mask into numbers first.
    "boolean mask": (
        lambda q, k, v, m: attend(q, k, v, attn_mask=m),
        _with(_qkv(2, 4, 6, 8), _visible),
        False,
    ),
    "mask with a gradient": (
        lambda q, k, v, m: attend(q, k, v, attn_mask=m),
        _with(_qkv(2, 4, 6, 8), lambda: torch.randn(2, 1, 6, 6)),
        False,
    ),
    "three dimensions": (attend, _qkv(4, 6, 8), False),
    "wider values": (attend, _qkv(2, 4, 6, 8, width=5), False),
    "no queries": (attend, _qkv(2, 4, 0, 8, keys=3), False),
    "no keys": (attend, _qkv(2, 4, 6, 8, keys=0), False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_the_cpu(no_fallback, name: str, dtype: torch.dtype) -> None:
    from tpu_programs import run_recorded

    call, prepare, is_fused = CASES[name]
    torch.manual_seed(0)
    operands = [x.to(dtype) if x.is_floating_point() else x for x in prepare()]
    # bf16: probabilities are rounded before the second product, the CPU rounds elsewhere.
    tolerance = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}

    def leaves(device: str) -> list[torch.Tensor]:
        return [x.to(device).detach().requires_grad_(x.is_floating_point()) for x in operands]

    theirs = leaves("cpu")
    want = call(*theirs)
    ours = leaves("tpu")
    got, programs = run_recorded(lambda: call(*ours))
    assert not is_fused or [program.operator for program in programs] == FUSED
    torch.testing.assert_close(got.cpu(), want, **tolerance)
    assert got.dtype == want.dtype
    if is_fused:
        assert got.stride() == want.stride()

    gradient = torch.randn_like(want)
    want.backward(gradient)
    got.backward(gradient.to("tpu"))
    for mine, other in zip(ours, theirs, strict=True):
        if other.grad is not None:
            torch.testing.assert_close(mine.grad.cpu(), other.grad, **tolerance)


def test_the_choice_of_implementation_is_the_users(no_fallback) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from tpu_programs import run_recorded

    operands = [torch.randn(2, 4, 6, 8) for _ in range(3)]
    on_device = [x.to("tpu") for x in operands]
    with sdpa_kernel(SDPBackend.MATH):
        got, programs = run_recorded(lambda: attend(*on_device))
    assert FUSED[0] not in [program.operator for program in programs]
    torch.testing.assert_close(got.cpu(), attend(*operands), rtol=1e-4, atol=1e-5)
