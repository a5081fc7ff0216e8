"""`--aspect forward`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .aspect import Aspect, Call


class Forward(Aspect):
    """The operator as it stands."""

    name = "forward"
    dtypes = ("float32", "bfloat16", "int64", "bool")
    one_dtype = False
    refusals = False

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        yield "", lambda arguments: arguments.call(entry.op)
