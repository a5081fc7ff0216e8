"""`--aspect noncontiguous`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .aspect import Aspect, Call


class Noncontiguous(Aspect):
    """The operator with arguments that lie in memory with gaps."""

    name = "noncontiguous"
    refusals = False

    def samples(self, name: str, entry: Any, dtype: torch.dtype) -> list[Any]:
        return [sample.noncontiguous() for sample in super().samples(name, entry, dtype)]

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        yield "", lambda arguments: arguments.call(entry.op)
