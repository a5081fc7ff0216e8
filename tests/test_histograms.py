"""Histograms on the device against the CPU."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

NAN = float("nan")
X = torch.tensor([0.0, 1, 2, 3, 0.25, 3, NAN, -1, 7, 1])
WEIGHTS = torch.arange(10.0) / 4
EDGES = torch.tensor([0.0, 1, 1, 2.5, 3])
POINTS = torch.tensor([[0.0, 1], [1, 0], [2, 0], [2, 1], [0.5, 0.5]])


def on(device, value):
    if isinstance(value, (list, tuple)):
        return [on(device, item) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for item in result for tensor in flat(item)]


def compare(function, *args, **options):
    want = flat(function(*args, **options))
    got = flat(function(*on("tpu", args), **{name: on("tpu", value) for name, value in options.items()}))
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.device.type == "tpu"
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


def refused(function, *args, **options):
    messages = []
    for device in ("cpu", "tpu"):
        moved = {name: on(device, value) for name, value in options.items()}
        with pytest.raises(RuntimeError) as refusal:
            flat(function(*on(device, args), **moved))[0].cpu()
        messages.append(str(refusal.value))
    # Dtypes and numbers are spelled in other ways.
    words = [message.replace("torch.histogramdd", "").split()[:4] for message in messages]
    assert words[0] == words[1]


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weight", [None, WEIGHTS])
def test_histogram(weight, density):
    options = {"weight": weight, "density": density}
    compare(torch.histogram, X, 4, range=(0.0, 3.0), **options)
    compare(torch.histogram, X, 3, range=(1.0, 1.0), **options)
    compare(torch.histogram, X.nan_to_num(2), 7, **options)
    compare(torch.histogram, X.nan_to_num(2).double().view(2, 5), 7, density=density)
    compare(torch.histogram, X, EDGES, **options)
    compare(torch.histogram, X, EDGES.flip(0), **options)
    compare(torch.histogram, X[:0], 3, density=density)
    compare(torch.histogram, X[0], 2, density=density)


def test_histogram_agrees_with_its_edges():
    x = torch.rand(500, generator=torch.Generator().manual_seed(0)) * 3
    _, edges = torch.histogram(x.to("tpu"), 30)
    # What lies on an edge belongs to the bin that the edge begins.
    x = torch.cat([x, edges.cpu()])
    hist, again = torch.histogram(x.to("tpu"), 30)
    assert torch.equal(again, edges)
    assert torch.equal(hist.cpu(), torch.histogram(x, edges.cpu()).hist)


def test_histogram_into_given_tensors():
    for size in (0, 9):
        hist, edges = torch.empty(size), torch.empty(size)
        compare(lambda x, h, e: torch.histogram(x, 4, range=(0.0, 3.0), out=(h, e)), X, hist, edges)
        compare(lambda x, h, e: torch.histogram(x, EDGES.to(x.device), out=(h, e)), X, hist, edges)
    refused(lambda x, h, e: torch.histogram(x, 2, range=(0.0, 1.0), out=(h, e)), X, X.double(), X)


@pytest.mark.parametrize("density", [False, True])
def test_histogramdd(density):
    weight = torch.arange(5.0)
    compare(torch.histogramdd, POINTS, [2, 3], density=density)
    compare(torch.histogramdd, POINTS, [2, 3], density=density, weight=weight)
    compare(torch.histogramdd, POINTS, [2, 2], range=[0.0, 1, 0, 1], density=density)
    compare(torch.histogramdd, POINTS, [torch.tensor([0.0, 1, 2]), torch.tensor([0.0, 0.5])], density=density)
    compare(torch.histogramdd, POINTS.view(1, 5, 2), [2, 3], weight=weight.view(1, 5), density=density)
    compare(torch.histogramdd, POINTS[:0], [2, 2])
    compare(torch.histogramdd, POINTS[:, :0], [])
    compare(torch.histogramdd, POINTS.repeat(1, 2)[:, :3], 2)


def test_refusals():
    one = torch.tensor([1.0])
    refused(torch.histogram, X, 0, range=(0.0, 1.0))
    refused(torch.histogram, X, 4, range=(1.0, 0.0))
    refused(torch.histogram, X, 4, range=(1.0,))
    refused(torch.histogram, X, 4, range=(0.0, torch.inf))
    refused(torch.histogram, X, one)
    refused(torch.histogram, X, one[:0])
    refused(torch.histogram, X, torch.ones(2, 2))
    refused(torch.histogram, X, EDGES.double())
    refused(torch.histogram, X, EDGES, weight=one)
    refused(torch.histogram, X, EDGES, weight=WEIGHTS.double())
    refused(torch.histogramdd, POINTS, [2])
    refused(torch.histogramdd, POINTS, [2, 0])
    refused(torch.histogramdd, POINTS, [2, 2], range=[0.0, 1])
    refused(torch.histogramdd, POINTS, [EDGES])
    refused(torch.histogramdd, X, [2])
    with pytest.raises(RuntimeError, match="is not finite"):
        torch.histogram(X.to("tpu"), 4).hist.cpu()
    with pytest.raises(NotImplementedError, match="not implemented for"):
        torch.histogram(X.nan_to_num(0).long().to("tpu"), 4)
