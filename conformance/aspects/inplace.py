"""`--aspect inplace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..operands import Arguments
from .aspect import Aspect, Call


class InPlace(Aspect):
    """The in-place form: `x.add_(y)`."""

    name = "inplace"
    atomic = True

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        return super().applies(entry, dtype) and entry.get_inplace() is not None

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        function = entry.get_inplace()

        def call(arguments: Arguments) -> Any:
            written = arguments.input
            before = written._version if isinstance(written, torch.Tensor) else 0
            result = arguments.call(function)
            return result, written._version > before if isinstance(written, torch.Tensor) else None

        yield "", call

    def with_unique(self, unique: Callable[[Any], Any], result: Any) -> Any:
        return unique(result[0]), result[1]
