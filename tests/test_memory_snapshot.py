"""Memory snapshots: what is live, who allocated it and when, in the form that PyTorch's viewer reads."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch.cuda import _memory_viz

KIB = 1024


@pytest.fixture
def history(tpu):
    """Recording is on, and nothing was recorded before."""
    gc.collect()
    tpu.memory._record_memory_history(clear_history=True)
    yield tpu.memory
    tpu.memory._record_memory_history(None, clear_history=True)


def entries(memory, action: str) -> list[dict]:
    return [entry for entry in memory._snapshot()["device_traces"][0] if entry["action"] == action]


def allocate() -> torch.Tensor:
    return torch.ones(KIB, device="tpu")


def test_nothing_is_recorded_unless_asked(tpu):
    x = allocate()
    snapshot = tpu.memory._snapshot()
    assert len(snapshot["device_traces"]) == tpu.device_count()
    assert not any(snapshot["device_traces"])
    (segment,) = (s for s in snapshot["segments"] if s["address"] == x.untyped_storage().data_ptr())
    assert segment["blocks"][0]["frames"] == []


def test_segments_are_the_live_storages(tpu):
    x = allocate()
    view = x[10:]
    snapshot = tpu.memory._snapshot()
    assert sum(s["total_size"] for s in snapshot["segments"] if s["device"] == 0) == tpu.memory_allocated(0)
    (segment,) = (s for s in snapshot["segments"] if s["address"] == x.data_ptr())
    assert segment["total_size"] == segment["allocated_size"] == segment["active_size"] == 4 * KIB
    (block,) = segment["blocks"]
    assert (block["address"], block["size"], block["state"]) == (x.data_ptr(), 4 * KIB, "active_allocated")
    address = x.data_ptr()
    del x
    assert address in {s["address"] for s in tpu.memory_snapshot()}
    del view
    assert address not in {s["address"] for s in tpu.memory_snapshot()}


def test_allocations_and_frees_are_recorded_in_order(history):
    x = allocate()
    address = x.data_ptr()
    del x
    trace = [e for e in history._snapshot()["device_traces"][0] if e["addr"] == address]
    actions = [entry["action"] for entry in trace]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert {entry["size"] for entry in trace} == {4 * KIB}
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)


def test_frames_name_the_line_that_allocated(history):
    x = allocate()
    (block,) = (s["blocks"][0] for s in history._snapshot()["segments"] if s["address"] == x.data_ptr())
    names = [frame["name"] for frame in block["frames"]]
    assert names[:2] == ["allocate", "test_frames_name_the_line_that_allocated"]
    assert block["frames"][0]["filename"] == __file__
    assert block["frames"][0]["line"] == allocate.__code__.co_firstlineno + 1
    (entry,) = (e for e in entries(history, "alloc") if e["addr"] == x.data_ptr())
    assert entry["frames"] == block["frames"]


def test_gradients_are_recorded_from_autograd_threads(history):
    x = allocate().requires_grad_()
    (x * 2).sum().backward()
    assert x.grad.data_ptr() in {entry["addr"] for entry in entries(history, "alloc")}


def test_other_threads(history):
    made = []
    thread = threading.Thread(target=lambda: made.append(allocate()))
    thread.start()
    thread.join()
    (entry,) = (e for e in entries(history, "alloc") if e["addr"] == made[0].data_ptr())
    assert entry["frames"][0]["name"] == "allocate"


def test_what_is_kept_can_be_chosen(tpu, history):
    history._record_memory_history("state", clear_history=True)
    x = allocate()
    snapshot = history._snapshot()
    assert not any(snapshot["device_traces"])
    assert all(s["blocks"][0]["frames"] for s in snapshot["segments"] if s["address"] == x.data_ptr())
    history._record_memory_history("all", context=None)
    y = allocate()
    assert [entry["frames"] for entry in entries(history, "alloc")] == [[]]
    history._record_memory_history(max_entries=3, clear_history=True, skip_actions=["segment_alloc"])
    kept = [allocate() for _ in range(5)]
    assert [entry["addr"] for entry in entries(history, "alloc")] == [t.data_ptr() for t in kept[2:]]
    assert entries(history, "segment_alloc") == []
    history._record_memory_history(None)
    z = allocate()
    assert z.data_ptr() not in {entry["addr"] for entry in entries(history, "alloc")}
    del x, y, z


@pytest.mark.parametrize(
    "wrong", [{"enabled": "some"}, {"context": "some"}, {"max_entries": 0}], ids=lambda w: next(iter(w))
)
def test_wrong_words(tpu, wrong):
    with pytest.raises(ValueError, match="must be"):
        tpu.memory._record_memory_history(**wrong)


def test_running_out_of_memory_is_recorded(tpu, history):
    tpu.set_memory_limit(tpu.memory_allocated() + 8 * KIB)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(KIB * KIB, device="tpu")
    finally:
        tpu.set_memory_limit(None)
    (entry,) = entries(history, "oom")
    assert entry["size"] == 4 * KIB * KIB
    assert entry["device_free"] == 8 * KIB
    assert entry["frames"][0]["name"] == "test_running_out_of_memory_is_recorded"


def train_a_little() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 64, device="tpu")).sum().backward()
        optimizer.step()
    return model


def test_the_viewer_reads_it(history, tmp_path):
    model = train_a_little()
    path = tmp_path / "snapshot.pickle"
    history._dump_snapshot(path)
    snapshot = pickle.loads(path.read_bytes())
    assert "segments" in snapshot
    # Its summaries add up the blocks of each segment, and raise where they do not fit.
    summary = _memory_viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in summary
    listing = _memory_viz.trace(snapshot)
    assert "Device 0" in listing
    assert "del " in listing
    flames = _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert "train_a_little" in flames
    assert "snapshot.pickle" in _memory_viz.trace_plot(snapshot)
    assert "snapshot.pickle" in _memory_viz.segment_plot(snapshot)
    page = tmp_path / "page.html"
    command = [sys.executable, _memory_viz.__file__, "trace_plot", str(path), "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True)
    assert "MemoryViz" in page.read_text()
    del model


def test_every_free_follows_its_allocation(history):
    """The viewer draws a block from its allocation to its free."""
    model = train_a_little()
    gc.collect()
    live: dict[int, int] = {}
    for entry in history._snapshot()["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            assert live.pop(entry["addr"]) == entry["size"]
    segments = {segment["address"]: segment["total_size"] for segment in history._snapshot()["segments"]}
    assert live.items() <= segments.items()
    assert {p.data_ptr() for p in model.parameters()} <= live.keys()
