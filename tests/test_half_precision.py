"""Half-precision numbers that are subnormal: float16 has them below 6.1e-5, a large part of its range."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

UNIT = 2.0**-24


def numbers(*shape):
    steps = torch.randint(-3000, 3000, shape, generator=torch.Generator().manual_seed(0))
    return (steps * UNIT).to(torch.float16)


def same(function, *args):
    want, got = function(*args), function(*(arg.to("tpu") for arg in args)).cpu()
    assert torch.equal(got, want), (got[got != want], want[got != want])


def test_quotients_rounded_to_integers():
    x, y = numbers(400), numbers(400)
    keep = (y != 0) & (x.abs() < 2000 * y.abs())
    x, y = x[keep], y[keep]
    for mode in ("trunc", "floor"):
        same(lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode), x, y)
    same(torch.remainder, x, y)
    # A quotient that is subnormal itself.
    small, one = numbers(400), torch.ones(400, dtype=torch.float16)
    for mode in ("trunc", "floor"):
        same(lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode), small, one)


def test_arithmetic_and_casts():
    x, y = numbers(400), numbers(400)
    same(torch.add, x, y)
    same(lambda x: x * 0.25, x)
    same(lambda x: x.float(), x)
    same(lambda x: (x.float() / 3).half(), x)
    same(lambda x: torch.round(x, decimals=5), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decimals", [-1, 1, 3])
def test_decimals_are_rounded_once(dtype, decimals):
    x = (20 * torch.randn(2000, generator=torch.Generator().manual_seed(0))).to(dtype)
    same(lambda x: torch.round(x, decimals=decimals), x)


def test_histogram_of_a_small_range():
    x = torch.tensor([0.0, 5e-6, 1e-5, 1.2e-5], dtype=torch.float16)
    same(lambda x: torch.histc(x, bins=1000, min=0, max=1e-5), x)
    same(lambda x: torch.histc(x, bins=7), numbers(300))
