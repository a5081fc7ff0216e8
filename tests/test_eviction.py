"""Compiled programs in memory are bounded; what was dropped comes back from disk, with the same results."""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import gc, json, threading, torch

torch.tpu.set_fallback("error")
OPERATORS = [torch.relu, torch.sin, lambda x: x.sum(0), lambda x: torch.softmax(x, 1), lambda x: x @ x.T]


def call(i):
    x = torch.arange(float((2 + i % 19) * (3 + i // 19))).view(2 + i % 19, 3 + i // 19) / 10
    ours, theirs = OPERATORS[i % 5](x.to("tpu")).cpu(), OPERATORS[i % 5](x)
    torch.testing.assert_close(ours, theirs)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def all_calls():
    for i in range({calls}):
        call(i)


{body}
"""


def run(tmp_path, calls: int, limit: int, body: str) -> dict:
    import json

    program = PROGRAM.replace("{calls}", str(calls)).replace("{body}", textwrap.dedent(body))
    environment = {
        **os.environ,
        "TORCH_PJRT_CACHE_DIR": str(tmp_path),
        "TORCH_PJRT_MAX_PROGRAMS": str(limit),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_dropped_comes_back_from_disk(tpu, tmp_path):
    found = run(
        tmp_path,
        200,
        64,
        """
        all_calls()
        first = torch.tpu.stats()
        torch.tpu.reset_stats()
        all_calls()
        again = torch.tpu.stats()
        print(json.dumps({"first": first, "again": again}))
        """,
    )
    first, again = found["first"], found["again"]
    assert first["programs"] <= 64
    assert again["programs"] <= 64
    assert first["evictions"] >= 100
    assert first["compiles"] >= 200
    # The whole second round is read: no program lives long enough to be met again.
    assert again["compiles"] == 0
    assert again["disk_hits"] >= 200


def test_what_is_used_stays(tpu, tmp_path):
    found = run(
        tmp_path,
        150,
        64,
        """
        kept = torch.ones(7, 7, device="tpu")
        for i in range(150):
            call(i)
            kept.mul_(1.5).div_(1.5)
        before = torch.tpu.stats()
        kept.mul_(1.5).div_(1.5)
        torch.tpu.synchronize()
        after = torch.tpu.stats()
        read = {name: after[name] - before[name] for name in ("compiles", "disk_hits", "meta_runs")}
        print(json.dumps({"read": read, "evictions": after["evictions"], "value": kept.sum().item()}))
        """,
    )
    assert found["read"] == {"compiles": 0, "disk_hits": 0, "meta_runs": 0}
    assert found["evictions"] > 0
    assert found["value"] == pytest.approx(49)


def test_threads_share_a_bounded_table(tpu, tmp_path):
    found = run(
        tmp_path,
        120,
        64,
        """
        failures = []

        def work():
            try:
                for _ in range(3):
                    all_calls()
            except BaseException as failure:
                failures.append(repr(failure))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps({"failures": failures, "programs": torch.tpu.stats()["programs"]}))
        """,
    )
    assert found["failures"] == []
    # Each thread may have put one that is not counted yet.
    assert found["programs"] <= 64 + 4


@pytest.mark.slow
def test_new_shapes_for_ever_take_bounded_memory(tpu, tmp_path):
    found = run(
        tmp_path,
        1,
        64,
        """
        sizes = []
        for i in range(600):
            call(i)
            if i % 100 == 99:
                gc.collect()
                sizes.append(resident())
        print(json.dumps({"sizes": sizes}))
        """,
    )
    sizes = found["sizes"]
    # Without a bound each further hundred adds 20 MB or more.
    assert sizes[-1] - sizes[2] < 20e6, sizes


def test_a_limit_that_is_no_number_is_said_and_ignored(tpu, tmp_path):
    environment = {**os.environ, "TORCH_PJRT_MAX_PROGRAMS": "many"}
    program = "import torch; print(torch.ones(2, device='tpu').sum().item())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["2.0"]
    assert "TORCH_PJRT_MAX_PROGRAMS=many is ignored" in done.stderr
