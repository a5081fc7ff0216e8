"""Random programs of views, writes, copies and storage surgery leave the device where they leave the CPU.

TORCH_PJRT_RANDOM_PROGRAMS is the number of programs (500); TORCH_PJRT_RANDOM_SEED draws others.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
import random_programs
from hypothesis import strategies as st

COUNT = int(os.environ.get("TORCH_PJRT_RANDOM_PROGRAMS", "500"))
SEED = os.environ.get("TORCH_PJRT_RANDOM_SEED")

numbers = st.integers(0, 63)
steps = st.tuples(st.sampled_from(random_programs.KINDS), numbers, numbers, numbers)


@pytest.mark.slow
@pytest.mark.usefixtures("no_fallback")
def test_random_programs() -> None:
    @hypothesis.settings(
        max_examples=COUNT,
        deadline=None,
        derandomize=SEED is None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.lists(steps, min_size=4, max_size=16))
    def check(choices: list[tuple[str, int, int, int]]) -> None:
        random_programs.run(choices)

    if SEED is not None:
        check = hypothesis.seed(int(SEED))(check)
    check()
