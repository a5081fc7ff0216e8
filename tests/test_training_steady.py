"""Long training compiles nothing after the first steps and keeps memory flat; a second process starts fast.

Compilations are counted by pjrt-count, at the boundary to the plugin.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from child_process import run, run_with_injection

pytestmark = pytest.mark.slow

STEPS = 300
PREAMBLE = """
import copy, gc, json, os, sys, time
sys.path.insert(0, os.environ["TESTS"])
import torch, training_models
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)
torch.tpu.set_fallback("error")
cpu_model, cpu_batch = training_models.make(os.environ["MODEL"])
report = {}

def start(device):
    model = copy.deepcopy(cpu_model).to(device)
    batch = {name: tensor.to(device) for name, tensor in cpu_batch.items()}
    return model, batch, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

def step(model, batch, optimizer):
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()
"""

TRAIN = """
libc = __import__("ctypes").CDLL(None)

def resident():
    gc.collect()
    torch.tpu.synchronize()
    libc.malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

training = start("tpu")
report["compiles"], report["resident"], report["allocated"] = {}, {}, {}
for i in range(1, int(os.environ["STEPS"]) + 1):
    loss = step(*training)
    if i == 3 or i % 50 == 0:
        report["compiles"][i], report["resident"][i] = counted()[0], resident()
        training[2].zero_grad()
        report["allocated"][i] = torch.tpu.memory_allocated()
report["fallbacks"] = torch.tpu.stats()["fallbacks"]

torch.tpu.reset_peak_memory_stats()
step(*training)
report["peak"] = torch.tpu.max_memory_allocated()

# What one step on the CPU adds to what is there before it, by the allocator's own account.
model, batch, optimizer = start("cpu")
for _ in range(2):
    step(model, batch, optimizer)
optimizer.zero_grad()
state = [t for states in optimizer.state.values() for t in states.values()]
held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in (*model.parameters(), *model.buffers(), *batch.values(), *state)}
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
    step(model, batch, optimizer)
events = profiled.profiler.kineto_results.events()
changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
now = highest = sum(held.values())
for _, change in changes:
    now += change
    highest = max(highest, now)
report["cpu_peak"] = highest
print(json.dumps(report))
"""

START = """
places = ("_meta_registrations.py", "/_refs/", "/_prims/", "/_decomp/", "/_decompose.py", "/_recorder.py")
traced = set()

def notice(frame, event, argument):
    name = frame.f_code.co_filename
    if any(place in name for place in places):
        traced.add(f"{name}:{frame.f_code.co_name}")

for device in ("cpu", "tpu"):
    begin = time.perf_counter()
    sys.setprofile(notice if device == "tpu" else None)
    model, batch, optimizer = start(device)
    loss = model(**batch).loss
    report[device + "_loss"] = loss.item()
    report[device + "_seconds"] = time.perf_counter() - begin
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    sys.setprofile(None)
torch.tpu.synchronize()
report["compiles"], report["deserialized"] = counted()[:2]
report |= {name: torch.tpu.stats()[name] for name in ("meta_runs", "traces", "fallbacks")}
report["python"] = sorted(traced)
print(json.dumps(report))
"""


def child(source: str, model: str, cache: Path) -> dict[str, Any]:
    env = {
        "TESTS": str(Path(__file__).parent),
        "MODEL": model,
        "STEPS": str(STEPS),
        "TORCH_PJRT_CACHE_DIR": str(cache),
    }
    return json.loads(run_with_injection(PREAMBLE + source, env=env).stdout.splitlines()[-1])


@pytest.mark.parametrize("model", ["gpt2", "recurrent"])
def test_long_training_and_a_second_process(tpu, tmp_path, model):
    pytest.importorskip("transformers")
    report = child(TRAIN, model, tmp_path)
    assert report["fallbacks"] == 0
    assert report["compiles"]["3"] > 0
    assert report["compiles"][str(STEPS)] == report["compiles"]["3"]
    # Buffers in flight come and go, so that the least of the last three counts.
    resident = report["resident"]
    assert min(resident[str(i)] for i in (200, 250, 300)) < 1.02 * resident["50"], resident
    assert len(set(report["allocated"].values())) == 1, report["allocated"]
    assert report["peak"] <= 1.25 * report["cpu_peak"], (report["peak"], report["cpu_peak"])

    seconds = []
    # Other processes may take the processor: the best of three counts.
    while len(seconds) < 3 and min(seconds, default=1.0) >= 0.6:
        again = child(START, model, tmp_path)
        assert again["compiles"] == 0
        assert again["deserialized"] > 0
        assert again["meta_runs"] == again["traces"] == again["fallbacks"] == 0
        assert again["python"] == []
        assert again["tpu_loss"] == pytest.approx(again["cpu_loss"], rel=1e-4)
        seconds.append(again["tpu_seconds"] - again["cpu_seconds"])
    assert min(seconds) < 0.6, seconds


DECOMPOSED = """
import json, torch
x = torch.randn(3, 4).to("tpu")
torch.renorm(x, 2, 0, 1.0).cpu()  # no lowering of its own
stats = torch.tpu.stats()
print(json.dumps([stats[name] for name in ("fallbacks", "traces", "meta_runs", "compiles")]))
"""


def test_a_second_process_traces_no_decomposition(tpu, tmp_path):
    env = {"TORCH_PJRT_CACHE_DIR": str(tmp_path)}
    fallbacks, traces, *_ = json.loads(run(DECOMPOSED, env=env).stdout)
    assert fallbacks == 0
    assert traces == 1
    assert json.loads(run(DECOMPOSED, env=env).stdout) == [0, 0, 0, 0]
