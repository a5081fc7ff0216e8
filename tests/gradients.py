"""One call on the device and on the CPU: values, strides and gradients."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves


def results(function, arguments, device):
    """The results of the call, and the gradients by its floating-point arguments."""
    leaves = []
    for argument in arguments:
        argument = argument.detach().clone().to(device)
        leaves.append(argument.requires_grad_(argument.is_floating_point()))
    outputs = [leaf for leaf in tree_leaves(function(*leaves)) if isinstance(leaf, torch.Tensor)]
    differentiable = [output for output in outputs if output.requires_grad]
    inputs = [leaf for leaf in leaves if leaf.requires_grad]
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(out.shape, generator=generator, dtype=out.dtype) for out in differentiable]
    gradients = ()
    if differentiable and inputs:
        weights = [weight.to(device) for weight in weights]
        gradients = torch.autograd.grad(differentiable, inputs, weights, allow_unused=True)
    return outputs, gradients


def compare(function, *arguments, **tolerance):
    """`function` gives the same results and gradients on both devices."""
    outputs, gradients = results(function, arguments, "tpu")
    expected_outputs, expected_gradients = results(function, arguments, "cpu")
    assert len(outputs) == len(expected_outputs)
    for got, want in zip(outputs, expected_outputs, strict=True):
        assert got.device.type == "tpu"
        assert got.stride() == want.stride() or not want.numel()
        torch.testing.assert_close(got.detach().cpu(), want.detach(), equal_nan=True, **tolerance)
    for got, want in zip(gradients, expected_gradients, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got.cpu(), want, equal_nan=True, **tolerance)
