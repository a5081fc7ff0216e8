"""Memory: what tensors take is what the statistics say, what is let go is given back, pinned host memory."""

from __future__ import annotations

import gc
import json

import pytest
import torch
from child_process import run
from torch.utils.data import DataLoader, TensorDataset

KIB = 1024


@pytest.fixture
def allocated(tpu):
    """Bytes allocated since the start of the test."""
    gc.collect()
    tpu.synchronize()
    start = tpu.memory_allocated()
    return lambda: tpu.memory_allocated() - start


def test_allocated_follows_tensors_exactly(tpu, allocated):
    x = torch.ones(KIB, device="tpu")
    assert allocated() == 4 * KIB
    y = x + 1
    assert allocated() == 8 * KIB
    view, same = x[3:], x.reshape(32, 32)
    assert allocated() == 8 * KIB
    x.add_(1)
    y[5:9] = 0
    assert allocated() == 8 * KIB
    del x, same
    assert allocated() == 8 * KIB  # the view keeps the storage
    del view
    assert allocated() == 4 * KIB
    z = y.to(torch.bfloat16)
    assert allocated() == 6 * KIB
    del y, z
    assert allocated() == 0
    empty = torch.empty(0, device="tpu")
    assert allocated() == 0
    del empty


def test_the_accelerator_and_torch_tpu_agree(tpu):
    acc = torch.accelerator
    gc.collect()
    acc.reset_peak_memory_stats()
    acc.reset_accumulated_memory_stats()
    before = acc.memory_allocated()
    blocks = acc.memory_stats()["allocation.all.current"]
    x = torch.ones(KIB, device="tpu")
    stats = acc.memory_stats()
    assert stats["allocated_bytes.all.current"] - before == 4 * KIB
    assert stats["allocated_bytes.all.allocated"] == 4 * KIB
    assert stats["allocated_bytes.all.freed"] == 0
    assert stats["allocation.all.current"] == blocks + 1
    assert acc.memory_reserved() == acc.memory_allocated() == tpu.memory_allocated() == before + 4 * KIB
    del x
    stats = acc.memory_stats()
    assert stats["allocated_bytes.all.current"] == before
    assert stats["allocated_bytes.all.freed"] == 4 * KIB
    assert stats["allocated_bytes.all.peak"] == before + 4 * KIB
    assert acc.max_memory_allocated() == tpu.max_memory_allocated() == before + 4 * KIB
    acc.reset_peak_memory_stats()
    assert acc.max_memory_allocated() == before
    acc.reset_accumulated_memory_stats()
    assert acc.memory_stats()["allocated_bytes.all.allocated"] == 0
    free, total = acc.get_memory_info()
    assert 0 < free <= total
    acc.empty_cache()


def test_the_peak_is_the_highest_point(tpu, allocated):
    tpu.reset_peak_memory_stats()
    base = tpu.memory_allocated()
    x = torch.ones(KIB, device="tpu")
    for _ in range(3):
        x = x * 2  # the old and the new one at once
    assert tpu.max_memory_allocated() - base == 8 * KIB
    assert allocated() == 4 * KIB


def test_storage_resize_frees_and_restores(tpu, allocated):
    x = torch.arange(256.0, device="tpu")
    view = x[:16]
    x.untyped_storage().resize_(0)
    assert allocated() == 0
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(KIB)
    assert allocated() == KIB
    x.copy_(torch.arange(256.0) + 1)
    assert view.sum().item() == sum(range(1, 17))
    x.untyped_storage().resize_(2 * KIB)
    assert allocated() == 2 * KIB
    assert torch.equal(x.cpu(), torch.arange(256.0) + 1)


def test_gradients_and_graphs_are_let_go(tpu, allocated):
    model = torch.nn.Linear(64, 64).to("tpu")
    held = allocated()
    for _ in range(3):
        model(torch.ones(8, 64, device="tpu")).square().sum().backward()
        model.zero_grad(set_to_none=True)
    gc.collect()
    assert allocated() == held
    del model
    gc.collect()
    assert allocated() == 0


def test_an_error_holds_nothing(tpu, allocated):
    x = torch.ones(KIB, device="tpu")
    with pytest.raises(RuntimeError, match="size mismatch"):
        x.reshape(32, 32) @ x
    gc.collect()
    assert allocated() == 4 * KIB


GROWTH = """
import ctypes, gc, json, os, torch

libc = ctypes.CDLL(None)

sizes = []

def measure(iteration):
    "Resident bytes after each ten iterations."
    if iteration % 10 != 9:
        return
    gc.collect()
    torch.tpu.synchronize()
    libc.malloc_trim(0)
    pages = int(open("/proc/self/statm").read().split()[1])
    sizes.append(pages * os.sysconf("SC_PAGESIZE"))

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 30 * 30, 400),
    torch.nn.LayerNorm(400), torch.nn.Linear(400, 400),
)
batch = torch.randn(4, 3, 32, 32)
"""

MOVES = """
for i in range(50):
    model.to("tpu")
    model.to("cpu")
    measure(i)
"""

PASSES = """
model.to("tpu")
with torch.no_grad():
    for i in range(200):
        model(batch.to("tpu")).cpu()
        measure(i)
"""

STEPS = """
model.to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
for i in range(60):
    optimizer.zero_grad()
    model(batch.to("tpu")).square().mean().backward()
    optimizer.step()
    measure(i)
"""


@pytest.mark.parametrize("work", [MOVES, PASSES, STEPS], ids=["50 moves", "200 forward passes", "60 steps"])
def test_resident_memory_does_not_grow(tpu, work):
    """Less than 3 % after the first ten. Buffers in flight come and go, so that the least of the last three counts."""
    sizes = json.loads(run(GROWTH + work + "print(json.dumps(sizes))").stdout)
    assert len(sizes) >= 5
    assert min(sizes[-3:]) < 1.03 * sizes[0], [size // 2**20 for size in sizes]


def test_pinned_memory(tpu):
    x = torch.randn(1000)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned[5:].is_pinned()
    assert pinned.device.type == "cpu"
    assert torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned
    made = torch.empty(100, pin_memory=True)
    assert made.is_pinned()
    assert torch.zeros(3, pin_memory=True).is_pinned()
    assert not torch.ones(3, device="tpu").is_pinned()
    held = tpu.memory_stats()["host_pinned_bytes"]
    del made
    assert tpu.memory_stats()["host_pinned_bytes"] == held - 400


def test_a_non_blocking_copy_keeps_its_source_alive(tpu):
    expected, copies = [], []
    for i in range(20):
        source = torch.full((100_000,), float(i), pin_memory=True)
        copies.append(source.to("tpu", non_blocking=True))
        expected.append(float(i))
        del source  # its block may be handed out again at once
        torch.full((100_000,), -1.0, pin_memory=True)
    assert [copy.mean().item() for copy in copies] == expected


def test_a_non_blocking_copy_of_pageable_memory_has_read_it(tpu):
    source = torch.ones(100_000)
    copy = source.to("tpu", non_blocking=True)
    source.fill_(7)
    assert copy.sum().item() == 100_000


def test_non_blocking_reads(tpu):
    x = torch.arange(100_000.0, device="tpu")
    target = torch.empty(100_000, pin_memory=True)
    target.copy_(x * 2, non_blocking=True)
    tpu.synchronize()
    assert torch.equal(target, torch.arange(100_000.0) * 2)
    # PyTorch makes the target of this one pinned: as on CUDA, its values are there once the device has been waited for.
    read = x.to("cpu", non_blocking=True)
    tpu.synchronize()
    assert torch.equal(read, torch.arange(100_000.0))


def test_a_failed_call_lets_its_tensors_go(tpu, allocated):
    a, b = torch.ones(KIB, device="tpu"), torch.ones(KIB - 1, device="tpu")
    with pytest.raises(RuntimeError, match="must match"):
        a + b
    del a, b
    gc.collect()
    assert allocated() == 0


def test_a_read_ends_before_its_event(tpu):
    x = torch.ones(1000, 1000, device="tpu")
    target = torch.empty(1000, 1000, pin_memory=True)
    target.copy_(x @ x, non_blocking=True)
    event = tpu.Event()
    event.record()
    event.synchronize()
    assert (target == 1000).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_pins(tpu, workers):
    data = TensorDataset(torch.arange(64.0).reshape(16, 4), torch.arange(16))
    total = 0.0
    for batch, labels in DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True):
        assert batch.is_pinned()
        assert labels.is_pinned()
        total += batch.to("tpu", non_blocking=True).sum().item()
    assert total == 64 * 63 / 2
