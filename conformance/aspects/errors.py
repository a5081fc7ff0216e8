"""`--aspect errors`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .aspect import Aspect, Call, let_the_seed_be_zero


class Refused:
    """Arguments that must be refused. cause: a pattern that PyTorch's message fits."""

    def __init__(self, error: Any) -> None:
        sample = error.sample_input
        self.input, self.args, self.kwargs = sample.input, sample.args, sample.kwargs
        self.cause: str = error.error_regex


class Errors(Aspect):
    """What PyTorch says must be refused: the same kind of exception, for the same cause."""

    name = "errors"

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        return super().applies(entry, dtype) and entry.error_inputs_func is not None

    def samples(self, name: str, entry: Any, dtype: torch.dtype) -> list[Any]:
        let_the_seed_be_zero()
        return [Refused(error) for error in entry.error_inputs("cpu")]

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        yield "", lambda arguments: arguments.call(entry.op)
