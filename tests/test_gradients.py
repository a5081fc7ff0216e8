"""Gradients and tangents that PyTorch's samples of operators do not reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

pytestmark = pytest.mark.usefixtures("no_fallback")
F = torch.nn.functional


def check(function: Callable[[str], Any]) -> None:
    """`function` of a device gives the same tensors on both."""
    got, want = function("tpu"), function("cpu")
    torch.testing.assert_close(torch.utils._pytree.tree_map(Tensor.cpu, got), want)


def numbers(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [0, -1, None])
def test_weight_norm(dim):
    """Its gradient is an operator of its own."""

    def gradients(device):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 3).to(device)
        layer = torch.nn.utils.parametrizations.weight_norm(layer, dim=dim)
        loss = layer(numbers(2, 4).to(device)).square().sum()
        return torch.autograd.grad(loss, list(layer.parameters()))

    check(gradients)


def test_glu_with_tangents():
    """The tangent of a result, and of the gradient."""
    x, dx = numbers(3, 4), numbers(3, 4, seed=1)
    weights, dweights = numbers(3, 2, seed=2), numbers(3, 2, seed=3)

    def tangents(device):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.to(device).requires_grad_(), dx.to(device))
            result = F.glu(dual)
            weighted = forward_ad.make_dual(weights.to(device), dweights.to(device))
            (gradient,) = torch.autograd.grad(result, dual, weighted)
            return [forward_ad.unpack_dual(tensor).tangent.detach() for tensor in (result, gradient)]

    check(tangents)


@pytest.mark.parametrize("function", [torch.ldexp, torch.mul, torch.add, torch.sub, torch.atan2])
def test_tangents_beside_a_constant(function):
    """What has no tangent takes part as zeros without memory."""

    def tangent(device):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(numbers(3).to(device), numbers(3, seed=1).to(device))
            result = function(dual, numbers(3, seed=2).to(device))
            return forward_ad.unpack_dual(result).tangent

    check(tangent)


@pytest.mark.parametrize("overload", ["add", "mul", "div"])
def test_zeros_without_memory_and_a_number(overload):
    operator = getattr(torch.ops.aten, overload).Scalar
    check(lambda device: operator(torch._efficientzerotensor([3], device=device), 2.0).clone())


@pytest.mark.parametrize("sizes", [(2, 3), (7,), (20,)])
def test_masked_scatter(sizes):
    mask = torch.tensor([[True, False, True], [False, True, False]])

    def gradients(device):
        x, source = numbers(2, 3).to(device).requires_grad_(), numbers(*sizes).to(device).requires_grad_()
        result = x.masked_scatter(mask.to(device), source)
        before = torch.tpu.stats()["bytes_to_host"]
        found = torch.autograd.grad(result, (x, source), numbers(2, 3, seed=1).to(device))
        assert torch.tpu.stats()["bytes_to_host"] == before
        return found

    check(gradients)
