"""The second run of the demo's model finds its programs on disk: it compiles nothing and starts fast.

The plugin in these processes is pjrt-count, which forwards to the real one: the count is not our own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEW_TOKENS = 48


def counting_plugin() -> Path:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = Path(os.environ.get("TORCH_PJRT_COUNTER", target / "release" / "libpjrt_count.so"))
    if not path.exists():
        pytest.skip(f"{path} is not built; `make test` builds it")
    return path


def cpu_plugin() -> Path:
    package = pytest.importorskip("fastatomstruct_xla_cpu")
    return Path(package.__path__[0]) / "libpjrt_cpu.so"


def generate(folder: Path, run: str) -> tuple[dict, dict]:
    """One process: what generate.py reports of the device, and what the counting plugin saw."""
    report, counts = folder / f"{run}.json", folder / f"{run}-counts.json"
    environment = os.environ | {
        "TORCH_PJRT_PLUGIN": str(counting_plugin()),
        "PJRT_COUNT_PLUGIN": str(cpu_plugin()),
        "PJRT_COUNT_REPORT": str(counts),
        "TORCH_PJRT_CACHE_DIR": str(folder / "cache"),
        "TQDM_DISABLE": "1",
    }
    command = [sys.executable, str(ROOT / "examples" / "generate.py"), "--device", "tpu"]
    command += ["--new-tokens", str(NEW_TOKENS), "--report", str(report)]
    subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL)
    return json.loads(report.read_text())["devices"]["tpu"], json.loads(counts.read_text())


@pytest.mark.slow
def test_second_run_compiles_nothing_and_starts_fast(tmp_path: Path) -> None:
    first, first_counts = generate(tmp_path, "first")
    second, second_counts = generate(tmp_path, "second")

    assert first_counts["compile"] > 0
    assert second_counts["compile"] == 0
    assert second_counts["deserialize"] > 0
    assert second["compiles"] == 0
    assert second["text"] == first["text"]
    assert second["new_tokens"] == NEW_TOKENS
    assert first["fallbacks"] == second["fallbacks"] == 0
    assert second["first_token_seconds"] < first["first_token_seconds"] / 3
