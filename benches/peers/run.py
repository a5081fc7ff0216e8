"""Builds the peers' environments and measures each in its own process."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENTS = ROOT / "target" / "peers"

# Peer, its script, and the file of its pinned packages (None: the packages of this environment).
PEERS = [
    ("inductor", "inductor.py", None),
    ("jax", "jax_cpu.py", "jax.txt"),
]


def measure_peers(names: list[str], rounds: int) -> list[dict[str, object]]:
    """Rows {peer, version, case, threads, seconds, eager_seconds, ratio}, which are also printed.

    `eager_seconds` is CPU PyTorch's in the same process, where the peer has PyTorch; else None. A peer that cannot be
    installed or fails is named with its reason and left out.
    """
    rows = []
    for peer, script, packages in PEERS:
        try:
            python = sys.executable if packages is None else environment(peer, HERE / packages)
            rows += measured(peer, python, HERE / script, names, rounds)
        except (subprocess.CalledProcessError, RuntimeError) as error:
            print(f"{peer}: not measured: {error}")
    for row in rows:
        ratio = f"{row['ratio']:.2f} of CPU eager" if row["ratio"] else "no CPU eager beside it"
        print(f"{row['peer']} ({row['version']}): {row['case']}: {row['seconds'] * 1e3:.2f} ms, {ratio}")
    return rows


def environment(peer: str, packages: Path) -> str:
    """The Python of the peer's environment, which is made on first use."""
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    installed = folder / ".installed"
    if not installed.exists() or installed.read_text() != packages.read_text():
        print(f"==> Installing {peer} into {folder.relative_to(ROOT)}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", packages], check=True)
        installed.write_text(packages.read_text())
    return str(python)


def measured(peer: str, python: str, script: Path, names: list[str], rounds: int) -> list[dict[str, object]]:
    # A peer's process must not load our device beside it.
    variables = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    rows = []
    for name in names:
        command = [python, script, name, "--rounds", str(rounds)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"{name}: {last[0]}")
        if done.stdout.strip():
            rows.append({"peer": peer, **json.loads(done.stdout.splitlines()[-1])})
    return rows
