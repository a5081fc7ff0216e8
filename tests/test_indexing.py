"""Reads and writes at indices on the device: values, gradients, errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("no_fallback")

CUBE = torch.arange(60.0).reshape(3, 4, 5)
INDEX = torch.tensor([2, 0])


def on(device, value):
    return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value


def compare(function, *args):
    got, want = (function(*(on(device, arg) for arg in args)) for device in ("tpu", "cpu"))
    torch.testing.assert_close(got.cpu(), want)


def written(x, key, value):
    x[key] = value
    return x


READS = {
    "one": lambda x, i: x[i],
    "second": lambda x, i: x[:, i],
    "apart": lambda x, i: x[i, :, i],
    "negative": lambda x, i: x[i - 3, i],
    "host index": lambda x, i: x[i.cpu()],
    "select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(0, torch.zeros(1, 2, 5, dtype=torch.long, device=x.device)),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: F.embedding(i, x[0]),
    "slice": lambda x, i: x[:, 1:3],
    "select one": lambda x, i: x[:, 1],
    "diagonal": lambda x, i: x.diagonal(0, 0, 1),
    "windows": lambda x, i: x.unfold(1, 2, 1),
    "strided": lambda x, i: x.as_strided([2, 2], [1, 2]),
    "topk": lambda x, i: x.topk(2)[0],
    "sort": lambda x, i: x.sort(descending=True)[0],
    "reflect": lambda x, i: F.pad(x, (1, 2), mode="reflect"),
    "scatter_add": lambda x, i: x.scatter_add(1, torch.ones(3, 4, 5, dtype=torch.long, device=x.device), x),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_and_their_gradients(read):
    compare(read, CUBE, INDEX)

    def gradient(x, i):
        x.requires_grad_()
        y = read(x, i)
        (y * torch.arange(y.numel(), device=y.device, dtype=y.dtype).reshape(y.shape)).sum().backward()
        return x.grad

    compare(gradient, CUBE, INDEX)


WRITES = {
    "number": lambda x, i: written(x, i, 7),
    "tensor": lambda x, i: written(x, (slice(None), i), x[:, i] * 3),
    "host value": lambda x, i: written(x, i, torch.tensor(3.0)),
    "mask": lambda x, i: written(x, x > 5, 0),
    "values at a mask": lambda x, i: written(x, x > 57, torch.tensor([1.0, 2], device=x.device)),
    "accumulate": lambda x, i: x.index_put_((i * 0,), torch.ones(2, 4, 5, device=x.device), True),
    "view": lambda x, i: x[:, 1:3].index_put_((i,), torch.zeros((), device=x.device))._base,
    "index_add_": lambda x, i: x.index_add_(0, i, x[:2] + 0, alpha=2),
    "index_copy_": lambda x, i: x.index_copy_(0, i, x[:2] + 1),
    "index_fill_": lambda x, i: x.index_fill_(1, i, -1),
    "scatter_": lambda x, i: x.scatter_(1, i.reshape(2, 1, 1), 1.5),
    "masked_scatter_": lambda x, i: x.masked_scatter_(x > 30, torch.arange(60.0, device=x.device)),
    "put_": lambda x, i: x.put_(i, torch.ones(2, device=x.device)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes(write):
    compare(write, CUBE, INDEX)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, i: F.embedding(i, x[0]),
        lambda x, i: x[i],
        lambda x, i: x[:, -i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i.reshape(2, 1, 1)),
        lambda x, i: x.take(i * 10),
        lambda x, i: written(x, i, 0),
        lambda x, i: x.index_fill(0, i, 0),
        lambda x, i: x.index_add(0, i, x[:2]),
        lambda x, i: x.scatter(0, i.reshape(2, 1, 1), 0),
        lambda x, i: written(x, x > 57, torch.ones(3, device=x.device)),
    ],
)
def test_what_raises_on_the_cpu_raises_on_the_device(use):
    outside = torch.tensor([0, 7])
    with pytest.raises((IndexError, RuntimeError)) as cpu:
        use(CUBE.clone(), outside)
    with pytest.raises(type(cpu.value)):
        use(on("tpu", CUBE), on("tpu", outside)).cpu()
