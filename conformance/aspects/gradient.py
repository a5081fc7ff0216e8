"""`--aspect gradient`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..operands import Arguments
from ..rules import host, nonunique, policies, tolerances
from .aspect import Aspect, Call, let_the_seed_be_zero


class Gradient(Aspect):
    """Gradients of the results, each weighted with the same random numbers on both devices."""

    name = "gradient"
    dtypes = ("float32",)
    refusals = False
    # What autograd returns has the layout of whatever formula was last.
    layout = False
    against_float64 = tolerances.GRADIENTS_AGAINST_FLOAT64
    reads = host.READS | host.READS_OF_GRADIENTS

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        return entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")

    def samples(self, name: str, entry: Any, dtype: torch.dtype) -> list[Any]:
        let_the_seed_be_zero()
        samples = list(entry.sample_inputs("cpu", dtype, requires_grad=True))
        for sample in samples:
            policies.settle(name, sample)
        return [
            sample
            for sample in samples
            if any(map(wants_gradient, Arguments(sample, "cpu").tensors()))
            and not nonunique.has_no_gradient(name, sample)
        ]

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        def call(arguments: Arguments) -> Any:
            outputs, inputs = differentiable(entry, sample, arguments)
            if not outputs:
                return ()
            return torch.autograd.grad(outputs, inputs, list(map(weights, outputs)), allow_unused=True)

        yield "", call

    def with_unique(self, unique: Callable[[Any], Any], result: Any) -> Any:
        return result


def differentiable(
    entry: Any, sample: Any, arguments: Arguments
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results that have a gradient, and the inputs with respect to which."""
    # What is differentiable of results that are not unique, such as singular vectors.
    result = sample.output_process_fn_grad(arguments.call(entry.op))
    return (
        [leaf for leaf in tree_leaves(result) if wants_gradient(leaf)],
        [tensor for tensor in arguments.tensors() if tensor.requires_grad],
    )


def weights(like: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Numbers that depend on the shape alone, of a tensor's dtype and device. Every dtype has them exactly."""
    generator = torch.Generator().manual_seed(seed)
    # Whatever the default dtype is: other numbers are drawn for another dtype.
    numbers = torch.randn((*like.shape, 2), generator=generator, dtype=torch.float32).bfloat16().double()
    numbers = torch.view_as_complex(numbers) if like.is_complex() else numbers[..., 0]
    return numbers.to(like.dtype).to(like.device)


def wants_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
