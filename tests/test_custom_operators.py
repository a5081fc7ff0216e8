"""Operators that users define with torch.library."""

from __future__ import annotations

import pytest
import torch
from torch.library import Library, custom_op

pytestmark = pytest.mark.usefixtures("host_allowed")


@pytest.fixture
def host_allowed(tpu):
    with tpu.set_fallback("allow"):
        yield


def ones(count: int) -> torch.Tensor:
    return torch.ones(count, device="tpu")


def test_an_operator_defined_anew_is_another_one():
    for added in (1, 2):
        library = Library("test_redefined", "DEF")
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", lambda x, added=added: x + added, "CPU")
        assert torch.ops.test_redefined.f(ones(2)).tolist() == [1 + added] * 2
        library._destroy()

    library = Library("test_redefined", "DEF")
    library.define("f(Tensor(a!) x, Tensor y, int times=2) -> ()")
    library.impl("f", lambda x, y, times=2: (x.add_(y * times), None)[1], "CPU")
    written = torch.zeros(4, device="tpu")
    torch.ops.test_redefined.f(written[::2], ones(2), 3)
    assert written.tolist() == [3, 0, 3, 0]
    library._destroy()


def test_a_cell_that_runs_again():
    def define(function, mutates):
        return custom_op("test_cell::f", mutates_args=mutates, device_types="cpu")(function)

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def store(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * 5)

    # No fake kernel says what these give, so they run on the host.
    assert define(double, ())(ones(3)).tolist() == [2, 2, 2]
    out = torch.zeros(3, device="tpu")
    define(store, {"out"})(ones(3), out)
    assert out.tolist() == [5, 5, 5]
