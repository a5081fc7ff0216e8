"""Distinct elements, positions and counts: results whose sizes depend on values, on the device against the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

NAN = float("nan")
aten = torch.ops.aten


def flat(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def compare(function, *args, strides_of="cpu"):
    """Values and dtypes are those of the CPU; strides those of `strides_of`."""
    want = flat(function(*args))
    strides = [result.stride() for result in flat(function(*(arg.to(strides_of) for arg in args)))]
    got = flat(function(*(arg.to("tpu") for arg in args)))
    assert len(got) == len(want)
    assert [ours.stride() for ours in got] == strides
    for ours, theirs in zip(got, want, strict=True):
        assert ours.device.type == "tpu"
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)


def refused(error, message, function, *args):
    for device in ("cpu", "tpu"):
        with pytest.raises(error, match=message):
            function(*(arg.to(device) for arg in args))


ELEMENTS = [
    torch.tensor([3.0, NAN, 1, -0.0, 0.0, NAN, 3, -torch.inf, torch.inf]),
    torch.tensor([0.0, -0.0, -0.0, 2.0]),
    torch.tensor([[5, 1], [5, -7]]),
    torch.tensor([True, False, True]),
    torch.tensor([True]),
    torch.tensor(5.0),
    torch.ones(3, 4).bfloat16(),
    torch.arange(12, dtype=torch.uint8).view(3, 4).t() % 5,
    torch.tensor([2**62, -(2**62), 2**62]),
    torch.empty(0),
    torch.empty(2, 0, dtype=torch.int64),
]


@pytest.mark.parametrize("x", ELEMENTS, ids=str)
def test_unique_elements(x):
    for inverse, counts in itertools.product((False, True), repeat=2):
        options = {"return_inverse": inverse, "return_counts": counts}
        compare(lambda x, options=options: torch.unique(x, **options), x)
        compare(lambda x, options=options: torch.unique(x, sorted=False, **options), x)
        compare(lambda x, options=options: torch.unique_consecutive(x, **options), x)
        compare(lambda x, i=inverse, c=counts: aten._unique2(x, True, i, c), x)
    compare(lambda x: aten._unique(x, True, True), x)


ROWS = [
    torch.tensor([[1.0, 2, 1], [3, 0, 3], [1, 2, 1], [-1, 2, 1]]),
    torch.tensor([[1.0, NAN], [1.0, NAN], [0.0, -0.0], [-0.0, 0.0]]),
    torch.randint(0, 2, (7, 3, 2), generator=torch.Generator().manual_seed(0)),
    torch.tensor([[True, False], [True, False], [False, True]]),
    torch.ones(1, 5),
    torch.arange(6).view(2, 3).t() % 2,
]


@pytest.mark.parametrize("x", ROWS, ids=str)
def test_unique_slices(x):
    for dim in range(-x.dim(), x.dim()):
        options = {"dim": dim, "return_inverse": True, "return_counts": True}
        compare(lambda x, options=options: torch.unique(x, **options), x)
        compare(lambda x, options=options: torch.unique_consecutive(x, **options), x)
        compare(lambda x, dim=dim: torch.unique(x, dim=dim), x)
        compare(lambda x, dim=dim: aten.unique_dim_consecutive(x, dim), x)


def test_unique_of_many():
    x = torch.randint(0, 50, (1000, 3), generator=torch.Generator().manual_seed(1))
    options = {"return_inverse": True, "return_counts": True}
    compare(lambda x: torch.unique(x, **options), x)
    compare(lambda x: torch.unique(x, dim=0, **options), x % 5)


def test_unique_without_elements():
    options = {"return_inverse": True, "return_counts": True}
    compare(lambda x: torch.unique(x, dim=0, **options), torch.ones(0, 2))
    compare(lambda x: torch.unique(x, dim=1, **options), torch.ones(2, 0))
    refused(RuntimeError, "aren't selected", lambda x: torch.unique(x, dim=1), torch.ones(0, 2))
    refused(RuntimeError, "more than one", lambda x: torch.unique(x, dim=1), torch.ones(0, 0))


def test_unique_refuses():
    refused(IndexError, "out of range", lambda x: torch.unique(x, dim=2), torch.ones(2, 2))
    refused(IndexError, "no dimensions", lambda x: torch.unique(x, dim=0), torch.tensor(1.0))
    refused(NotImplementedError, "not implemented", torch.unique, torch.ones(2, dtype=torch.complex64))


def test_unique_results_are_tensors_like_any():
    x = torch.tensor([[2, 1, 2], [0, 1, 0]], device="tpu")
    distinct = torch.unique(x, dim=1)
    distinct += 1
    assert distinct.t().tolist() == [[2, 2], [3, 1]]
    assert torch.unique(x)[1:].tolist() == [1, 2]
    out = (torch.empty(0, dtype=torch.int64, device="tpu") for _ in range(3))
    values, inverse, _ = aten._unique2.out(
        x, True, True, False, out0=next(out), out1=next(out), out2=next(out)
    )
    assert torch.equal(values[inverse], x)


@pytest.mark.parametrize("sizes", [(6,), (4, 5), (2, 3, 4), (0, 3), ()], ids=str)
def test_nonzero_static(sizes):
    x = torch.arange(1, torch.Size(sizes).numel() + 1).reshape(sizes) % 3
    for size in (0, 1, 5, 40):
        # Column by column, as on CUDA, which PyTorch's Meta kernel follows.
        as_cuda = {"strides_of": "meta"}
        compare(lambda x, size=size: torch.nonzero_static(x, size=size, fill_value=-7), x, **as_cuda)
        compare(lambda x, size=size: torch.nonzero_static(x == 0, size=size), x, **as_cuda)
    out = torch.empty(3, x.dim(), dtype=torch.int64)
    compare(lambda x, out: torch.nonzero_static(x, size=3, out=out), x, out)
    compare(lambda x, out: torch.nonzero_static(x, size=3, out=out[:0]), x, out, strides_of="tpu")
    before = torch.tpu.stats()["bytes_to_host"]
    torch.nonzero_static(x.to("tpu"), size=4)
    assert torch.tpu.stats()["bytes_to_host"] == before
    refused(RuntimeError, "negative", lambda x: torch.nonzero_static(x, size=-1), x)
    refused(
        RuntimeError,
        "scalar type",
        lambda x: torch.nonzero_static(x, size=1, out=torch.empty(0, device=x.device)),
        x,
    )


def test_combinations():
    for dtype in (torch.int64, torch.float32, torch.bool):
        compare(lambda x: torch.combinations(x, 3), torch.arange(5).to(dtype))
    compare(lambda x: torch.combinations(x, 2, with_replacement=True), torch.arange(4))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_bincount(dtype):
    x = torch.tensor([4, 0, 4, 1], dtype=dtype)
    compare(torch.bincount, x)
    compare(torch.bincount, x[:0])
    compare(lambda x: torch.bincount(x, minlength=7), x)
    compare(lambda x: torch.bincount(x, minlength=3), x)
    compare(lambda x: torch.bincount(x[:0], minlength=3), x)
    for weights in (torch.tensor([0.5, 1, 2, NAN]), torch.arange(4), torch.arange(4.0).half()):
        compare(torch.bincount, x, weights)
        compare(lambda x, w: torch.bincount(x[:0], w[:0], minlength=2), x, weights)


def test_bincount_refuses():
    one = torch.tensor([1])
    only = "only supports 1-d non-negative"
    refused(RuntimeError, only, torch.bincount, -one)
    refused(RuntimeError, only, torch.bincount, one[None])
    refused(NotImplementedError, "bincount", torch.bincount, one.float())
    refused(NotImplementedError, "bincount", torch.bincount, one.bool())
    refused(RuntimeError, "minlength", lambda x: torch.bincount(x, minlength=-1), one)
    refused(RuntimeError, "same length", torch.bincount, one, torch.ones(2))
    refused(RuntimeError, "same length", torch.bincount, one, torch.ones(1, 1))
