"""Random programs of views, writes, copies and storage surgery leave the device where they leave the CPU, and so do
their gradients.

TORCH_PJRT_RANDOM_PROGRAMS is the number of programs (500), a quarter of which are differentiated;
TORCH_PJRT_RANDOM_SEED draws others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import hypothesis
import pytest
import random_gradients
import random_programs
from hypothesis import strategies as st

COUNT = int(os.environ.get("TORCH_PJRT_RANDOM_PROGRAMS", "500"))
SEED = os.environ.get("TORCH_PJRT_RANDOM_SEED")

numbers = st.integers(0, 63)
Choices = list[tuple[str, int, int, int]]


def programs(kinds: Sequence[str]) -> st.SearchStrategy[Choices]:
    return st.lists(st.tuples(st.sampled_from(kinds), numbers, numbers, numbers), min_size=4, max_size=16)


def check(count: int, run: Callable[[Choices], None], kinds: Sequence[str]) -> None:
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        derandomize=SEED is None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs(kinds))
    def check_one(choices: Choices) -> None:
        run(choices)

    if SEED is not None:
        check_one = hypothesis.seed(int(SEED))(check_one)
    check_one()


@pytest.mark.slow
@pytest.mark.usefixtures("no_fallback")
def test_random_programs() -> None:
    check(COUNT - COUNT // 4, random_programs.run, random_programs.KINDS)


@pytest.mark.slow
@pytest.mark.usefixtures("no_fallback")
def test_random_gradients() -> None:
    check(COUNT // 4, random_gradients.run, random_gradients.KINDS)
