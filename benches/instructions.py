"""Instructions per dispatched operator, counted by callgrind: repeatable where times are not."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

OPERATORS = 400
# Counting begins when the programs are compiled and PyTorch is warm.
_CHAIN = """
import os, subprocess, sys, torch
torch.set_num_threads(1)
device, operators = sys.argv[1], int(sys.argv[2])
x, y = torch.randn(16, 16).to(device), torch.randn(16, 16).to(device)
def chain(count):
    z = x
    for _ in range(count // 2):
        z = (z + y) * 0.5
    return z.cpu()
chain(40)
subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
chain(operators)
subprocess.run(["callgrind_control", "-i", "off", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
"""


def instructions_per_operator() -> dict[str, float]:
    """Instructions by device; empty, with a line that says why, where valgrind is missing."""
    if shutil.which("valgrind") is None:
        print("instructions per operator: not counted, valgrind is missing (apt-get install valgrind)")
        return {}
    return {device: _count(device) / OPERATORS for device in ("cpu", "tpu")}


def _count(device: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out",
            sys.executable, "-c", _CHAIN, device, str(OPERATORS),
        ]  # fmt: skip
        # A cache of its own: valgrind's processor has fewer features than the machine's.
        environment = {**os.environ, "TORCH_PJRT_CACHE_DIR": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"callgrind failed on {device}:\n{done.stderr[-2000:]}")
    return int(found[1])
