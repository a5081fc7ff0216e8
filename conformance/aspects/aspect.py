"""What the ways to ask an operator have in common."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ..operands import Arguments
from ..rules import host, policies, tolerances

Call = Callable[[Arguments], Any]


class Aspect:
    """A way to ask an operator.

    Attributes:
        name: as on the command line.
        dtypes: those that are asked when the command line names none.
        one_dtype: whether an entry is asked in the first of the dtypes that it supports, and in no other.
        refusals: whether what the CPU refuses must be refused likewise; otherwise there is nothing to compare.
        atomic: whether a refused call must leave its arguments as they were.
        layout: whether strides and aliasing of the results are compared.
        against_float64: entries whose float32 results are judged by a float64 run where PyTorch's tolerances refuse
            them, with the reasons.
        reads: entries that may read from the device while they run, with the reasons.
    """

    name: str
    dtypes: tuple[str, ...] = ("float32", "int64", "bool", "complex64", "float64")
    one_dtype = True
    refusals = True
    atomic = False
    layout = True
    against_float64: Mapping[str, str] = tolerances.AGAINST_FLOAT64
    reads: Mapping[str, str] = host.READS

    def applies(self, entry: Any, dtype: torch.dtype) -> bool:
        """Whether PyTorch says that the CPU can be asked so."""
        return entry.supports_dtype(dtype, "cpu")

    def samples(self, name: str, entry: Any, dtype: torch.dtype) -> list[Any]:
        """The same in every process."""
        let_the_seed_be_zero()
        samples = list(entry.sample_inputs("cpu", dtype, requires_grad=False))
        for sample in samples:
            policies.settle(name, sample)
        return samples

    def calls(self, entry: Any, sample: Any) -> Iterator[tuple[str, Call]]:
        """What is called with a sample's arguments, each with what is to be said of it."""
        raise NotImplementedError

    def with_unique(self, unique: Callable[[Any], Any], result: Any) -> Any:
        """What is compared of a result that is not unique: `unique` takes what the operator itself returned."""
        return unique(result)


class NotApplicable(Exception):
    """There is nothing to compare."""


def let_the_seed_be_zero() -> None:
    """The generators of samples use all three global sources of random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
