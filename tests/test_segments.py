"""Reductions of segments and their gradients on the device against the CPU."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

NAN = float("nan")
REDUCTIONS = ["sum", "mean", "prod", "max", "min"]
ROW = torch.tensor([3.0, -1, 3, 0, 2, NAN, 0, 0, 5, -2])
MATRIX = torch.tensor([[1.0, 2, 0, 2, -1, 3], [4, 4, NAN, 0, 0, 7]])
CUBE = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))


def compare(data, reduce, initial=None, **segments):
    """Values, dtype and strides, and the gradient for positive and negative ones coming in."""
    results = []
    for device in ("tpu", "cpu"):
        x = data.to(device).requires_grad_()
        there = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in segments.items()
        }
        result = torch.segment_reduce(x, reduce, initial=initial, **there)
        weight = torch.linspace(-2, 2.5, result.numel()).view(result.shape).to(result)
        (gradient,) = torch.autograd.grad(result, x, weight) if result.numel() else (x.detach(),)
        results.append((result.detach(), gradient))
    for ours, theirs in zip(*results, strict=True):
        assert ours.device.type == "tpu"
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("initial", [None, 2])
def test_lengths(reduce, initial, dtype):
    compare(ROW, reduce, initial, lengths=torch.tensor([2, 0, 3, 3, 2], dtype=dtype))
    lengths = torch.tensor([[1, 0, 2, 3], [3, 3, 0, 0]], dtype=dtype)
    compare(MATRIX, reduce, initial, lengths=lengths, axis=1)
    compare(MATRIX, reduce, initial, lengths=torch.tensor([1, 1], dtype=dtype), axis=0)
    compare(CUBE, reduce, initial, lengths=lengths, axis=1)
    compare(CUBE.double().transpose(0, 2), reduce, initial, lengths=torch.tensor([2, 1], dtype=dtype))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_offsets(reduce):
    compare(ROW, reduce, offsets=torch.tensor([0, 2, 2, 5, 10]))
    compare(ROW, reduce, offsets=torch.tensor([1, 4, 6]))
    compare(MATRIX, reduce, 3, offsets=torch.tensor([[0, 1, 6], [2, 3, 5]]), axis=1)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_unsafe(reduce):
    compare(ROW, reduce, lengths=torch.tensor([2, 3]), unsafe=True)


def test_many_segments():
    lengths = torch.randint(0, 5, (300,), generator=torch.Generator().manual_seed(1))
    data = torch.randn(int(lengths.sum()), 4, generator=torch.Generator().manual_seed(2))
    for reduce in REDUCTIONS:
        compare(data, reduce, lengths=lengths)


def test_half_precision_is_no_worse_than_the_cpu():
    lengths = torch.tensor([4, 6])
    for dtype in (torch.bfloat16, torch.float16):
        data = CUBE.flatten()[:10].to(dtype)
        for reduce in REDUCTIONS:
            exact = torch.segment_reduce(data.double(), reduce, lengths=lengths)
            ours = torch.segment_reduce(data.to("tpu"), reduce, lengths=lengths.to("tpu"))
            # Rounded once.
            torch.testing.assert_close(ours.cpu(), exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)


def test_refusals():
    def refused(error, message, data, reduce="sum", **segments):
        for device in ("cpu", "tpu"):
            there = {
                name: value.to(device) if isinstance(value, torch.Tensor) else value
                for name, value in segments.items()
            }
            with pytest.raises(error, match=message):
                torch.segment_reduce(data.to(device), reduce, **there).cpu()

    two = torch.tensor([4, 6])
    refused(RuntimeError, "to sum to", ROW, lengths=two - 1)
    refused(RuntimeError, "negative", ROW, lengths=torch.tensor([-1, 11]))
    refused(RuntimeError, "must be either", ROW, "median", lengths=two)
    refused(RuntimeError, "must be defined", ROW)
    refused(NotImplementedError, "not implemented", ROW.nan_to_num().int(), lengths=two)
    refused(NotImplementedError, "not implemented", ROW, lengths=two.float())
