"""Builds the peers' environments and measures each in its own process."""

import json
import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENTS = ROOT / "target" / "peers"

# Peer, its script, and the file of its pinned packages (None: the packages of this environment).
PEERS = [
    ("inductor", "inductor.py", None),
    ("jax", "jax_cpu.py", "jax.txt"),
    ("PyTorch/XLA", "pytorch_xla.py", "pytorch_xla.txt"),
    ("TorchTPU", "torchtpu.py", "torchtpu.txt"),
]

# A peer that compiles in every step would take the evening.
LONGEST = 300


def measure_peers(names: list[str], rounds: int) -> list[dict[str, object]]:
    """Rows {peer, version, case, threads, seconds, eager_seconds, ratio}, which are also printed.

    `eager_seconds` is CPU PyTorch's in the same process, where the peer has PyTorch; else None. A case that a peer
    fails is a row {peer, case, error}; a peer that cannot be installed is named with its reason and left out.
    """
    rows = []
    for peer, script, packages in PEERS:
        try:
            python = sys.executable if packages is None else environment(HERE / packages)
        except subprocess.CalledProcessError as error:
            print(f"{peer}: not installed: {error}")
            continue
        for name in names:
            row = measured(python, HERE / script, name, rounds)
            if row is not None:
                rows.append({"peer": peer, "case": name, **row})
                print(line(rows[-1]))
    return rows


def line(row: dict[str, object]) -> str:
    if "error" in row:
        return f"{row['peer']}: {row['case']}: fails: {row['error']}"
    ratio = f"{row['ratio']:.2f} of CPU eager" if row["ratio"] else "no CPU eager beside it"
    return f"{row['peer']} ({row['version']}): {row['case']}: {row['seconds'] * 1e3:.2f} ms, {ratio}"


def environment(packages: Path) -> str:
    """The Python of the environment with these packages, which is made on first use."""
    folder = ENVIRONMENTS / packages.stem
    python = folder / "bin" / "python"
    installed = folder / ".installed"
    if not installed.exists() or installed.read_text() != packages.read_text():
        print(f"==> Installing {packages.name} into {folder.relative_to(ROOT)}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", packages], check=True)
        installed.write_text(packages.read_text())
    return str(python)


def measured(python: str, script: Path, name: str, rounds: int) -> dict[str, object] | None:
    """The row that the script prints, or why there is none; None if the peer has no such case."""
    # A peer's process must not load our device beside it. The plugins of peers that take one are ours.
    plugin = find_spec("fastatomstruct_xla_cpu")
    variables = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TORCH_PJRT_PLUGIN": str(Path(plugin.origin).with_name("libpjrt_cpu.so")),
    }
    command = [python, script, name, "--rounds", str(rounds)]
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {LONGEST} s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        # Some peers say more after the exception.
        return {"error": next((text for text in reversed(lines) if "Error: " in text), lines[-1])}
    # Some peers print at exit, too.
    rows = [text for text in done.stdout.splitlines() if text.startswith("{")]
    return json.loads(rows[-1]) if rows else None
