"""`--aspect double_backward`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..operands import Arguments
from .aspect import Call
from .gradient import Gradient, differentiable, wants_gradient, weights


class DoubleBackward(Gradient):
    """Gradients of the gradients, with respect to the inputs and to the weights of the results."""

    name = "double_backward"

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        return super().applies(entry, dtype) and entry.supports_gradgrad

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        def call(arguments: Arguments) -> Any:
            outputs, inputs = differentiable(entry, sample, arguments)
            if not outputs:
                return ()
            weighted = [weights(output).requires_grad_() for output in outputs]
            first = torch.autograd.grad(outputs, inputs, weighted, create_graph=True, allow_unused=True)
            first = list(filter(wants_gradient, first))
            if not first:
                return ()
            return torch.autograd.grad(
                first,
                [*inputs, *weighted],
                [weights(gradient, seed=1) for gradient in first],
                allow_unused=True,
            )

        yield "", call
