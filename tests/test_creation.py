"""Tensors made from numbers, into given tensors too: on the device against the CPU."""

from __future__ import annotations

import warnings

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]


@pytest.mark.parametrize("dtype", FLOATS)
def test_logspace_of_floats(dtype):
    for arguments in [(0, 3, 7), (-1, 1.5, 20), (2, 2, 1), (0, 3, 0), (3, -3, 6, 2), (0.5, 2, 4, 3.5)]:
        want = torch.logspace(*arguments, dtype=torch.float64)
        got = torch.logspace(*arguments, dtype=dtype, device="tpu")
        assert (got.dtype, got.stride()) == (dtype, want.stride())
        # The exponents themselves are rounded: bfloat16 has 8 bits.
        exact = {} if dtype in (torch.float32, torch.float64) else {"rtol": 1 / 64, "atol": 0}
        torch.testing.assert_close(got.cpu(), want.to(dtype), **exact)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_logspace_of_integers_is_exact(dtype):
    for arguments in [(0, 2, 7), (1, 2, 20), (0, 7, 8, 2), (0.7, 3.9, 4, 3.5), (2, 0, 13), (5, 5, 1, 2)]:
        want = torch.logspace(*arguments, dtype=dtype)
        assert torch.equal(torch.logspace(*arguments, dtype=dtype, device="tpu").cpu(), want)
    if dtype == torch.int64:
        want = torch.logspace(-1, 18, 20, dtype=dtype)
        assert torch.equal(torch.logspace(-1, 18, 20, dtype=dtype, device="tpu").cpu(), want)


def test_logspace_between_tensors():
    for start, end in [(torch.tensor(0.0), 2), (0, torch.tensor(2.0)), (torch.tensor(0), torch.tensor(2))]:
        want = torch.logspace(start, end, 5)
        for device in ("cpu", "tpu"):
            arguments = [x.to(device) if isinstance(x, torch.Tensor) else x for x in (start, end)]
            torch.testing.assert_close(torch.logspace(*arguments, 5, device="tpu").cpu(), want)
    with pytest.raises(RuntimeError, match="0-dimensional"):
        torch.logspace(torch.ones(2, device="tpu"), 1, 3, device="tpu")


INTO = {
    "arange": lambda out: torch.arange(6, out=out),
    "arange of steps": lambda out: torch.arange(1, 13, 2, out=out),
    "linspace": lambda out: torch.linspace(0, 5, 6, out=out),
    "linspace from a tensor": lambda out: torch.linspace(torch.tensor(0.0), 5, 6, out=out),
    "logspace": lambda out: torch.logspace(0, 5, 6, base=2, out=out),
    "range": lambda out: torch.range(0, 5, out=out),
    "eye": lambda out: torch.eye(2, 3, out=out),
    "square eye": lambda out: torch.eye(3, out=out),
    "zeros": lambda out: torch.zeros(2, 3, out=out),
    "full": lambda out: torch.full((2, 3), 4, out=out),
}
OUTS = {
    "empty": lambda **options: torch.zeros(0, **options),
    "a row": lambda **options: torch.zeros(6, **options),
    "the right number in two rows": lambda **options: torch.zeros(2, 3, **options),
    "the right number in columns": lambda **options: torch.zeros(3, 2, **options).t(),
    "another number": lambda **options: torch.zeros(2, **options),
    "every second element": lambda **options: torch.zeros(12, **options)[::2],
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("function", INTO)
def test_into_given_tensors(function, dtype):
    for make in OUTS.values():
        want, got = make(dtype=dtype), make(dtype=dtype, device="tpu")
        INTO[function](want)
        INTO[function](got)
        assert (got.shape, got.stride()) == (want.shape, want.stride())
        torch.testing.assert_close(got.cpu(), want)


def test_randperm_into_a_given_tensor():
    for out in (
        torch.empty(0, dtype=torch.int64),
        torch.empty(2, 3),
        torch.empty(12, dtype=torch.int32)[::2],
    ):
        ours = out.to("tpu")
        torch.manual_seed(1)
        assert torch.randperm(6, out=ours) is ours
        torch.manual_seed(1)
        assert torch.equal(ours, torch.randperm(6, device="tpu").to(ours.dtype))
        assert sorted(ours.tolist()) == list(range(6))


def test_refusals():
    calls = [
        lambda device: torch.logspace(0, 1, -1, device=device),
        lambda device: torch.linspace(0, 1, -1, device=device),
        lambda device: torch.eye(-1, device=device),
        lambda device: torch.logspace(0, 1, 3, dtype=torch.bool, device=device),
    ]
    for call in calls:
        errors = set()
        for device in ("cpu", "tpu"):
            with pytest.raises(RuntimeError) as refusal:
                call(device)
            errors.add(refusal.type)
        assert len(errors) == 1


def test_nothing_runs_on_the_host():
    out = torch.zeros(2, 3, device="tpu")
    before = torch.tpu.stats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for function in ("arange", "linspace", "logspace", "range", "eye"):
            INTO[function](out)
        torch.randperm(6, out=out)
    after = torch.tpu.stats()
    assert after["fallbacks"] == before["fallbacks"]
    assert after["bytes_to_host"] == before["bytes_to_host"]
