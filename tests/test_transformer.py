"""Inference with PyTorch's transformer modules takes kernels of its own, which training does not show."""

from __future__ import annotations

import pytest
import torch
from both_devices import check, grid
from torch import nn

pytestmark = [pytest.mark.usefixtures("no_fallback"), pytest.mark.filterwarnings("ignore")]

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def aligned(d: str) -> torch.Tensor:
    return torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]], dtype=torch.bool, device=d)


def causal(d: str) -> torch.Tensor:
    return torch.ones(4, 4, dtype=torch.bool).triu(1).to(d)


MASKS = {
    "none": lambda d: {},
    "padding": lambda d: {"src_key_padding_mask": aligned(d)},
    "padding at the start": lambda d: {"src_key_padding_mask": aligned(d).flip(1)},
    "source": lambda d: {"src_mask": causal(d)},
    "both": lambda d: {"src_mask": causal(d), "src_key_padding_mask": aligned(d)},
}


def layer(norm_first: bool) -> nn.Module:
    torch.manual_seed(0)
    activation = "gelu" if norm_first else "relu"
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation, batch_first=True, norm_first=norm_first)


def encoder(norm_first: bool) -> nn.Module:
    return nn.TransformerEncoder(layer(norm_first), 2)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("make", [layer, encoder])
def test_encoders(make, norm_first: bool, mask: str) -> None:
    def outputs(d: str):
        model = make(norm_first).to(d).eval()
        given = MASKS[mask](d)
        if make is encoder and "src_mask" in given:
            given["mask"] = given.pop("src_mask")
        with torch.no_grad():
            return model(grid(d, 2, 4, 8), **given)

    check(outputs, **TOLERANCE)


ATTENTION = {
    "weights": lambda d: {},
    "no weights": lambda d: {"need_weights": False},
    "weights of each head": lambda d: {"attn_mask": causal(d), "average_attn_weights": False},
    "padding": lambda d: {"key_padding_mask": aligned(d)},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    def outputs(d: str):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(8, 2, batch_first=True).to(d).eval()
        x = grid(d, 2, 4, 8)
        with torch.no_grad():
            return model(x, x, x, **ATTENTION[name](d))

    check(outputs, **TOLERANCE)


def test_attention_of_nested_tensors() -> None:
    def outputs(d: str):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(8, 2, batch_first=True).to(d).eval()
        x = torch.nested.nested_tensor([grid("cpu", 2, 8), grid("cpu", 3, 8)], device=d)
        with torch.no_grad():
            return model(x, x, x, need_weights=False)[0].to_padded_tensor(0.0)

    check(outputs, **TOLERANCE)
