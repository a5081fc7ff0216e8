"""Incomplete gamma functions against reference values and the CPU."""

from __future__ import annotations

import pytest
import torch
from gradients import compare

pytestmark = pytest.mark.usefixtures("no_fallback")
INF, NAN = torch.inf, torch.nan

EDGES = torch.tensor([0.0, 1e-30, 0.5, 1.0, 20.0, 1e10, INF, -1.0, NAN])


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_incomplete_gamma(function, dtype):
    a = torch.logspace(-3, 4, 40, dtype=dtype)
    ratios = torch.tensor([0.01, 0.3, 0.69, 0.71, 0.9, 0.99, 1.0, 1.01, 1.1, 1.31, 2.0, 10.0], dtype=dtype)
    # For a just above 20 CPU itself is off by 2e-9, where the device has 1e-15 (against 40 digits).
    tolerance = {torch.float32: (2e-5, 1e-12), torch.float64: (5e-9, 1e-9)}[dtype]
    x = a[:, None] * ratios
    got = function(a[:, None].to("tpu"), x.to("tpu")).cpu()
    exact = function(a[:, None].double(), x.double()).to(dtype)
    torch.testing.assert_close(got, exact, rtol=tolerance[0], atol=tolerance[1])


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
def test_edges_of_incomplete_gamma(function):
    # Not for a near the largest float32, where CPU overflows to NaN.
    x = torch.cat([EDGES, torch.tensor([3e38])])
    compare(lambda a, x: function(a.detach()[:, None], x.detach()), EDGES, x)
    huge = torch.tensor([1e200, 1e300], dtype=torch.float64)
    compare(lambda x: function(torch.full_like(x, 2.0), x.detach()), huge)


def test_exact_values_of_incomplete_gamma():
    """P(1, x) = 1 - exp(-x), Q(1, x) = exp(-x), P(1/2, x) = erf(sqrt x)."""
    x = torch.logspace(-6, 1.5, 30)
    one, half = torch.ones(()).to("tpu"), torch.full((), 0.5).to("tpu")
    got = [torch.igamma(one, x.to("tpu")), torch.igammac(one, x.to("tpu")), torch.igamma(half, x.to("tpu"))]
    exact = [-torch.expm1(-x.double()), torch.exp(-x.double()), torch.erf(x.double().sqrt())]
    for got, exact in zip(got, exact, strict=True):
        torch.testing.assert_close(got.cpu(), exact.float(), rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_incomplete_gamma_in_half_precision(dtype):
    a, x = torch.linspace(0.1, 5, 20).to(dtype), torch.linspace(5, 0.1, 20).to(dtype)
    compare(lambda a, x: torch.igamma(a.detach(), x), a, x)
    compare(lambda a, x: torch.igammac(a.detach(), x), a, x)


def test_erfinv_near_one():
    """Its gradient multiplies its error by exp(y * y)."""
    x = 1 - 2.0 ** -torch.arange(1, 25)
    x = torch.cat([x, -x, torch.linspace(-1, 1, 41), torch.tensor([0.0, -0.0, 1e-20, 1.5, NAN])])
    got, exact = torch.erfinv(x.to("tpu")).cpu(), torch.erfinv(x.double())
    off = (got.double() - exact).abs() > 2 * torch.finfo(torch.float32).eps * exact.abs()
    assert not x[off & exact.isfinite()].tolist()
    assert torch.equal(got.isnan(), exact.isnan())
    assert torch.equal(got.isinf(), exact.isinf())
    assert got.signbit()[~got.isnan()].equal(x.signbit()[~got.isnan()])
