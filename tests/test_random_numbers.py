"""Random operators on the device: reproducible, independent of layout, right in distribution."""

from __future__ import annotations

import math

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")


def empty(*sizes, dtype=torch.float32):
    return torch.empty(*sizes, device="tpu", dtype=dtype)


DRAWS = {
    "rand": lambda: torch.rand(7, device="tpu"),
    "randn": lambda: torch.randn(7, device="tpu", dtype=torch.bfloat16),
    "randint": lambda: torch.randint(0, 2**40, (7,), device="tpu"),
    "randperm": lambda: torch.randperm(20, device="tpu"),
    "exponential_": lambda: empty(7).exponential_(),
    "log_normal_": lambda: empty(7).log_normal_(),
    "cauchy_": lambda: empty(7).cauchy_(),
    "geometric_": lambda: empty(7).geometric_(0.1),
    "bernoulli": lambda: torch.bernoulli(torch.full((64,), 0.5, device="tpu")),
    "multinomial": lambda: torch.multinomial(torch.ones(50, device="tpu"), 7),
    "with replacement": lambda: torch.multinomial(torch.ones(50, device="tpu"), 7, replacement=True),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(64, device="tpu")),
    "trunc_normal_": lambda: torch.nn.init.trunc_normal_(empty(7)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_seed_fixes_the_numbers_and_each_draw_is_new(draw):
    torch.manual_seed(5)
    first, second = draw().cpu(), draw().cpu()
    torch.manual_seed(5)
    assert torch.equal(draw().cpu(), first)
    assert not torch.equal(first, second)


def test_numbers_depend_on_the_logical_index_alone(tpu):
    def draw(target):
        torch.manual_seed(1)
        return target.normal_().cpu()

    whole = draw(empty(4, 6))
    assert torch.equal(draw(empty(6, 4).t()), whole)
    assert torch.equal(draw(empty(8, 9)[1:5, 2:8]), whole)
    assert torch.equal(draw(empty(100)).flatten()[:24].reshape(4, 6), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_distributions(dtype):
    torch.manual_seed(0)
    n = 100_000
    for name, args, mean, variance in (
        ("uniform_", (-1.0, 3.0), 1, 16 / 12),
        ("normal_", (2.0, 3.0), 2, 9),
        ("exponential_", (2.0,), 0.5, 0.25),
        ("bernoulli_", (0.3,), 0.3, 0.21),
        ("geometric_", (0.3,), 1 / 0.3, 0.7 / 0.09),
        ("random_", (10,), 4.5, 99 / 12),
    ):
        x = getattr(empty(n, dtype=dtype), name)(*args).cpu().double()
        # Five standard errors, and 1/256 of a unit for the rounding of bfloat16.
        assert abs(x.mean() - mean) < 5 * math.sqrt(variance / n) + 0.01, name
        assert abs(x.var() / variance - 1) < 0.06, name
    unit = torch.rand(n, device="tpu", dtype=dtype)
    assert unit.min() >= 0
    assert unit.max() < 1


def test_multinomial_never_takes_a_weight_of_zero(tpu):
    weights = torch.tensor([0.0, 1, 0, 3, 0], device="tpu")
    chosen = torch.multinomial(weights, 20_000, replacement=True).cpu().bincount(minlength=5) / 20_000
    assert chosen[[0, 2, 4]].sum() == 0
    assert abs(chosen[3] - 0.75) < 0.02
    assert set(torch.multinomial(weights, 2).tolist()) == {1, 3}


def test_dropout_gradient_uses_the_same_mask(tpu):
    x = torch.ones(1000, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert torch.equal(y.detach().cpu(), x.grad.cpu())


def test_wrong_parameters_raise(tpu):
    with pytest.raises(RuntimeError, match=r"std >= 0\.0"):
        empty(3).normal_(0, -1)
    with pytest.raises(RuntimeError, match="expects to return a"):
        empty(3).uniform_(2, 1)
    with pytest.raises(RuntimeError, match="'from' to be less than 'to'"):
        torch.randint(3, 3, (2,), device="tpu")
    for dtype, low, high in [
        (torch.uint8, 0, 257),
        (torch.uint8, -1, 2),
        (torch.int8, -129, 0),
        (torch.bool, 0, 3),
        (torch.float16, 0, 70000),
    ]:
        with pytest.raises(RuntimeError, match="is out of bounds for"):
            torch.randint(low, high, (2,), device="tpu", dtype=dtype)
    whole = torch.randint(-128, 128, (4000,), device="tpu", dtype=torch.int8)
    assert (whole.min().item(), whole.max().item()) == (-128, 127)
    with pytest.raises(RuntimeError, match="p_in"):
        torch.bernoulli(torch.full((3,), 2.0, device="tpu")).cpu()
    with pytest.raises(RuntimeError, match="element < 0"):
        torch.multinomial(torch.tensor([-1.0, 2], device="tpu"), 1).cpu()
