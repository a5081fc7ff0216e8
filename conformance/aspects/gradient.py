"""`--aspect gradient`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..operands import Arguments
from ..rules import policies
from .aspect import Aspect, Call, let_the_seed_be_zero


class Gradient(Aspect):
    """Gradients of the results, each weighted with the same random numbers on both devices."""

    name = "gradient"
    dtypes = ("float32",)
    refusals = False
    # What autograd returns has the layout of whatever formula was last.
    layout = False
    against_float64 = True

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        return entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")

    def samples(self, name: str, entry: Any, dtype: torch.dtype) -> list[Any]:
        let_the_seed_be_zero()
        samples = list(entry.sample_inputs("cpu", dtype, requires_grad=True))
        for sample in samples:
            policies.settle(name, sample)
        return [sample for sample in samples if any(map(_wants_gradient, Arguments(sample, "cpu").tensors()))]

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        def call(arguments: Arguments) -> Any:
            result = arguments.call(entry.op)
            # What is differentiable of results that are not unique, such as singular vectors.
            result = sample.output_process_fn_grad(result)
            outputs = [leaf for leaf in tree_leaves(result) if _wants_gradient(leaf)]
            inputs = [tensor for tensor in arguments.tensors() if tensor.requires_grad]
            if not outputs:
                return ()
            return torch.autograd.grad(outputs, inputs, list(map(weights, outputs)), allow_unused=True)

        yield "", call

    def with_unique(self, unique: Callable[[Any], Any], result: Any) -> Any:
        return result


def weights(output: torch.Tensor) -> torch.Tensor:
    """Numbers that depend on the shape alone, of the output's dtype and device."""
    generator = torch.Generator().manual_seed(0)
    complex_or_real = torch.complex128 if output.is_complex() else torch.float64
    numbers = torch.randn(output.shape, generator=generator, dtype=complex_or_real)
    return numbers.to(output.dtype).to(output.device)


def _wants_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
