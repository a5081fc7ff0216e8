"""`--aspect errors`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..rules import like_cuda
from .aspect import Aspect, Call, let_the_seed_be_zero


class Refused:
    """Arguments that must be refused. cause: a pattern that PyTorch's message fits; kind: its exception, where that is
    not the CPU's.
    """

    def __init__(self, error: Any, elsewhere: Any = None) -> None:
        sample = error.sample_input
        self.input, self.args, self.kwargs = sample.input, sample.args, sample.kwargs
        self.cause: str = (elsewhere or error).error_regex
        self.kind: type[Exception] | None = elsewhere and elsewhere.error_type


class Errors(Aspect):
    """What PyTorch says must be refused: the same kind of exception, for the same cause."""

    name = "errors"

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        return super().applies(entry, dtype) and entry.error_inputs_func is not None

    def samples(self, name: str, entry: Any, dtype: torch.dtype) -> list[Any]:
        let_the_seed_be_zero()
        errors = list(entry.error_inputs("cpu"))
        if name in like_cuda.REFUSALS:
            return [Refused(*both) for both in zip(errors, entry.error_inputs("meta"), strict=True)]
        return [Refused(error) for error in errors]

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        yield "", lambda arguments: arguments.call(entry.op)
