"""Operators that draw random numbers.

Their samples are green when dtype, shape, strides and aliasing are the CPU's, the same seed repeats the result and
another seed changes it. Samples whose result does not depend on the seed on the CPU (a dropout with probability 0)
are compared as they stand. Besides, 100,000 numbers drawn on the device are compared with as many of the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import draws
from ..verdict import Verdict

DEVICE = "tpu"


class Draws(NamedTuple):
    """draw(device, dtype): at least 100,000 numbers, independent of each other."""

    draw: Callable[[str, torch.dtype], Tensor]

    def judge(self, dtype: torch.dtype) -> Verdict:
        torch.manual_seed(2026)
        theirs = self.draw("cpu", dtype)
        torch.manual_seed(2026)
        difference = draws.compare(self.draw(DEVICE, dtype).cpu(), theirs)
        return Verdict("wrong", difference) if difference else Verdict("green")


N = draws.COUNT


def _in_place(name: str, *parameters: float) -> Draws:
    return Draws(lambda device, dtype: getattr(torch.empty(N, device=device, dtype=dtype), name)(*parameters))


def _of_ones(function: Callable[[Tensor], Tensor], *shape: int) -> Draws:
    return Draws(lambda device, dtype: function(torch.ones(shape, device=device, dtype=dtype)))


def _bounds(dtype: torch.dtype) -> tuple[int, int]:
    return {torch.bool: (0, 2), torch.uint8: (0, 9)}.get(dtype, (-3, 9))


def _attention(device: str, dtype: torch.dtype) -> Tensor:
    # With equal queries and keys every weight is 1/4; each result says which of four values are kept.
    zeros = torch.zeros(N, 4, 8, device=device, dtype=dtype)
    values = torch.tensor([1.0, 2, 4, 8], device=device, dtype=dtype)[:, None].expand(N, 4, 8)
    kept = F.scaled_dot_product_attention(zeros, zeros, values, dropout_p=0.3)[:, 0, 0]
    return (kept * 4 * 0.7).round()


def _multi_head_attention(device: str, dtype: torch.dtype) -> Tensor:
    weights = {name: torch.eye(2, device=device, dtype=dtype) for name in ("q", "k", "v")}
    inputs = torch.ones(4, N, 2, device=device, dtype=dtype)
    out, _ = F.multi_head_attention_forward(
        *(inputs, inputs, inputs, 2, 1, None, None, None, None, False, 0.5),
        *(torch.eye(2, device=device, dtype=dtype), None),
        use_separate_proj_weight=True,
        **{f"{name}_proj_weight": weight for name, weight in weights.items()},
    )
    return (out[0, :, 0] * 4 * 0.5).round()


def _fractional_pool(function: Callable, dims: int) -> Draws:
    # Elements are their own index: the results say where the windows begin.
    def draw(device: str, dtype: torch.dtype) -> Tensor:
        sizes = (8,) * dims
        grid = torch.arange(8, device=device).to(dtype).expand(N, 1, *sizes)
        return function(grid, kernel_size=2, output_size=3)[(slice(None), 0, *(0,) * (dims - 1), 1)]

    return Draws(draw)


OPERATORS: dict[str, Draws] = {
    "bernoulli": Draws(
        lambda device, dtype: torch.bernoulli(torch.full((N,), 0.3, device=device, dtype=dtype))
    ),
    "cauchy": _in_place("cauchy_", 0.5, 2.0),
    "exponential": _in_place("exponential_", 0.5),
    "geometric": _in_place("geometric_", 0.3),
    "log_normal": _in_place("log_normal_", 0.0, 0.25),
    "multinomial": Draws(
        lambda device, dtype: torch.multinomial(
            torch.tensor([0.1, 0.2, 0.0, 0.4, 0.3], device=device, dtype=dtype), N, replacement=True
        )
    ),
    "normal": Draws(
        lambda device, dtype: torch.normal(
            torch.ones(N, device=device, dtype=dtype), torch.full((N,), 2.0, device=device, dtype=dtype)
        )
    ),
    "normal.in_place": _in_place("normal_", 1.0, 2.0),
    "normal.number_mean": Draws(
        lambda device, dtype: torch.normal(1.0, torch.full((N,), 2.0, device=device, dtype=dtype))
    ),
    "rand_like": _of_ones(torch.rand_like, N),
    "randint": Draws(lambda device, dtype: torch.randint(*_bounds(dtype), (N,), device=device, dtype=dtype)),
    "randint_like": _of_ones(lambda ones: torch.randint_like(ones, *_bounds(ones.dtype)), N),
    "randn": Draws(lambda device, dtype: torch.randn(N, device=device, dtype=dtype)),
    "randn_like": _of_ones(torch.randn_like, N),
    "uniform": _in_place("uniform_", -1.0, 3.0),
    "nn.functional.alpha_dropout": _of_ones(lambda ones: F.alpha_dropout(ones, 0.3, training=True), N),
    "nn.functional.dropout": _of_ones(lambda ones: F.dropout(ones, 0.3), N),
    # One decision for each channel.
    "nn.functional.dropout2d": _of_ones(lambda ones: F.dropout2d(ones, 0.3)[:, :, 0, 0], 100, N // 100, 2, 2),
    "nn.functional.dropout3d": _of_ones(
        lambda ones: F.dropout3d(ones, 0.3)[:, :, 0, 0, 0], 100, N // 100, 2, 1, 1
    ),
    "nn.functional.feature_alpha_dropout.with_train": _of_ones(
        lambda ones: F.feature_alpha_dropout(ones, 0.3, training=True)[:, :, 0], 100, N // 100, 2
    ),
    "nn.functional.fractional_max_pool2d": _fractional_pool(F.fractional_max_pool2d, 2),
    "nn.functional.fractional_max_pool3d": _fractional_pool(F.fractional_max_pool3d, 3),
    "nn.functional.multi_head_attention_forward": Draws(_multi_head_attention),
    "nn.functional.rrelu": _of_ones(lambda ones: F.rrelu(-ones, 0.1, 0.7, training=True), N),
    "nn.functional.scaled_dot_product_attention": Draws(_attention),
}
