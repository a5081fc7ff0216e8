"""Which operators and dtypes are asked."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    ReductionOpInfo,
    ShapeFuncInfo,
    UnaryUfuncInfo,
)

if TYPE_CHECKING:
    from .aspects import Aspect

DTYPES = (
    "float32", "bfloat16", "float16", "float64", "int64", "int32", "int8", "uint8", "bool", "complex64",
)  # fmt: skip
OP_DB = "torch.testing._internal.common_methods_invocations:op_db"

_CLASSES = {
    UnaryUfuncInfo: "unary",
    BinaryUfuncInfo: "binary",
    ReductionOpInfo: "reduction",
    ShapeFuncInfo: "shape",
}
_PREFIXES = (
    "nn.functional",
    "linalg",
    "fft",
    "special",
    "masked",
    "sparse",
    "signal",
    "torch.ops",
    "jiterator",
)


class Pair(NamedTuple):
    """An entry of the data base, by its full name, and a dtype."""

    operator: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator} {self.dtype}"


def load(source: str = OP_DB) -> dict[str, Any]:
    """The OpInfo entries of `module:attribute` by their full names, "fft.fft" or "std.unbiased"."""
    module, _, attribute = source.partition(":")
    entries = getattr(importlib.import_module(module), attribute)
    return {full_name(entry): entry for entry in entries}


def full_name(entry: Any) -> str:
    variant = entry.variant_test_name
    return f"{entry.name}.{variant}" if variant else entry.name


def select(
    entries: Mapping[str, Any],
    aspect: Aspect,
    dtypes: Iterable[str] | None = None,
    patterns: Iterable[str] = ("*",),
    shard: tuple[int, int] = (1, 1),
) -> list[Pair]:
    """Every pair that the CPU supports, of entries whose name fits a pattern; of those every n-th from the i-th.

    dtypes: None for those of the aspect.
    """
    patterns = list(patterns)
    first = dtypes is None and aspect.one_dtype
    dtypes = list(dtypes or aspect.dtypes)
    pairs = []
    for name, entry in entries.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            found = [Pair(name, dtype) for dtype in dtypes if aspect.applies(entry, getattr(torch, dtype))]
            pairs += found[:1] if first else found
    index, count = shard
    return pairs[index - 1 :: count]


def family(name: str, entry: Any) -> str:
    """Whose operator it is, for the table."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return prefix
    return next((label for kind, label in _CLASSES.items() if isinstance(entry, kind)), "other")
