"""Ctrl-C during a long compilation and a long execution raises KeyboardInterrupt soon; work goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

PRELUDE = """
import signal, sys, time, torch
from torch_pjrt import _core

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored

def interrupted(work):
    "Runs work, tells the parent to interrupt it, and prints how long the interrupt took to get through."
    print("READY", flush=True)
    try:
        work()
    except KeyboardInterrupt:
        print("INTERRUPTED", time.time(), flush=True)
    else:
        print("FINISHED", flush=True)
"""

LONG_EXECUTION = """
x = torch.ones(1024, 1024, device="tpu")
(x @ x).cpu()
def work():
    y = x
    for _ in range(150):
        y = (y @ x) * 1e-3
    READ
interrupted(work)
print("VALUE", (torch.ones(3, device="tpu") + 1).sum().item(), flush=True)
torch.tpu.synchronize()
"""

# A list operator is one program with a computation for each element.
LONG_COMPILATION = """
xs = [torch.full((2, 2), 0.5, device="tpu") for _ in range(300)]
torch._foreach_tanh(xs[:2])  # imports what Meta kernels need: an interrupted import is Python's affair
interrupted(lambda: torch._foreach_tanh(xs))
print("VALUE", (torch.ones(3, device="tpu") + 1).sum().item(), flush=True)
torch.tpu.wait_compiles()
with torch.tpu.freeze_compiles():
    print("LIST", len(torch._foreach_tanh(xs)))
"""


def interrupt(source: str, delay: float) -> tuple[float, str]:
    """Seconds from SIGINT to KeyboardInterrupt, and all that the child printed."""
    child = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TORCH_PJRT_CACHE_DIR": ""},
    )
    try:
        lines = []
        for line in child.stdout:
            lines.append(line)
            if line.startswith("READY"):
                break
        time.sleep(delay)
        sent = time.time()
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=240)
    finally:
        child.kill()
    assert child.returncode == 0, f"{''.join(lines)}{rest}\n{errors}"
    output = "".join(lines) + rest
    assert "INTERRUPTED" in output, output
    raised = next(float(line.split()[1]) for line in output.splitlines() if line.startswith("INTERRUPTED"))
    return raised - sent, output


@pytest.mark.parametrize("read", ["y.cpu()", "y.sum().item()", "torch.tpu.synchronize()"])
def test_a_long_execution(tpu, read):
    seconds, output = interrupt(LONG_EXECUTION.replace("READ", read), 0.7)
    assert seconds < 1.5
    assert "VALUE 6.0" in output


def test_a_long_compilation(tpu):
    seconds, output = interrupt(LONG_COMPILATION, 1.0)
    assert seconds < 1.5
    assert "VALUE 6.0" in output
    # It went on in the background, and was of use.
    assert "LIST 300" in output


def test_a_long_compilation_ahead_of_time(tpu):
    pytest.importorskip("libtpu")
    source = """
    import torch_pjrt
    x = torch.ones(256, 256)
    def f(x):
        for i in range(200):
            x = torch.tanh(x @ x) + torch.softmax(x, i % 2)
        return x
    text = torch_pjrt.export_program(f, (x,))
    interrupted(lambda: torch_pjrt.compile_for_topology(text, "v5e:2x2"))
    print("VALUE", (torch.ones(3, device="tpu") + 1).sum().item(), flush=True)
    """
    seconds, output = interrupt(source, 1.0)
    assert seconds < 1.5
    assert "VALUE 6.0" in output
