"""cdist, pdist and margin losses on the device against the CPU, with gradients."""

from __future__ import annotations

import pytest
import torch
from gradients import compare

pytestmark = pytest.mark.usefixtures("no_fallback")
F = torch.nn.functional
NORMS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))


def rows(*sizes, seed=0, dtype=torch.float32):
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    # An equal element: powers have no gradient there.
    return x.round(decimals=1)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cdist(p, dtype):
    x, y = rows(2, 5, 3, dtype=dtype), rows(2, 4, 3, seed=1, dtype=dtype)
    compare(lambda x, y: torch.cdist(x, y, p), x, y, rtol=1e-4, atol=1e-5)
    compare(lambda x, y: torch.cdist(x, y, p), x[:1], y[0], rtol=1e-4, atol=1e-5)
    compare(lambda x: torch.cdist(x, x.detach(), p), x, rtol=1e-4, atol=1e-5)


MM = "use_mm_for_euclid_dist"


@pytest.mark.parametrize("mode", [MM, f"donot_{MM}", f"{MM}_if_necessary"])
@pytest.mark.parametrize("count", [4, 30])
def test_cdist_compute_modes(mode, count):
    x, y = rows(count, 3), rows(5, 3, seed=1)
    compare(lambda x, y: torch.cdist(x, y, compute_mode=mode), x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [((0, 3), (4, 3)), ((2, 0, 3), (2, 4, 3)), ((5, 0), (4, 0))])
def test_cdist_of_nothing(sizes):
    compare(torch.cdist, *(torch.ones(size) for size in sizes))


@pytest.mark.parametrize("p", NORMS)
def test_pdist(p):
    compare(lambda x: F.pdist(x, p), rows(7, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 60])
def test_pdist_pairs(count):
    compare(F.pdist, rows(count, 4))


@pytest.mark.parametrize("sizes", [(0, 4), (1, 4), (3, 0)])
def test_pdist_of_nothing(sizes):
    # Without gradients, for which CPU kernels read beyond the end.
    compare(lambda x: F.pdist(x.detach()), torch.ones(sizes))


def test_distances_refuse_what_cpu_refuses():
    for device in ("cpu", "tpu"):
        x = rows(5, 3).to(device)
        with pytest.raises(RuntimeError, match="same number of columns"):
            torch.cdist(x, x[:, :2])
        with pytest.raises(RuntimeError, match="non-negative p"):
            torch.cdist(x, x, p=-1.0)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(reduction, p):
    target, weight = torch.tensor([1, 0, 4]), rows(5, seed=2).abs()

    def loss(x, weight=None):
        weight = None if weight is None else weight.to(x.device)
        return F.multi_margin_loss(x, target.to(x.device), p, 0.7, weight, reduction=reduction)

    compare(loss, rows(3, 5))
    compare(lambda x: loss(x, weight), rows(3, 5))
    if reduction != "none":
        compare(lambda x: F.multi_margin_loss(x, target[2].to(x.device), p, reduction=reduction), rows(5))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multilabel_margin_loss(reduction):
    target = torch.tensor([[1, 0, -1, 2], [-1, 0, 1, 2], [3, 2, 1, 0]])

    def loss(x):
        return F.multilabel_margin_loss(x, target[: len(x)].to(x.device), reduction=reduction)

    compare(loss, rows(3, 4))
    if reduction != "none":
        compare(lambda x: F.multilabel_margin_loss(x, target[0].to(x.device), reduction=reduction), rows(4))


@pytest.mark.parametrize("function", [F.hardshrink, F.softshrink])
def test_shrinking(function):
    compare(lambda x: function(x, 0.4), torch.tensor([-2.0, -0.4, -0.3, 0.0, 0.4, 0.5, torch.nan, torch.inf]))


def test_zeros_without_memory():
    compare(lambda x: x + torch._efficientzerotensor(x.shape, device=x.device), rows(3, 2))
    compare(lambda x: x * torch._efficientzerotensor((2,), device=x.device), rows(3, 2))
