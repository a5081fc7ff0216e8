"""The benchmark measures what it says: rows have their counts, and a side that computes something else is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benches"))
import measure
from cases import CASES, Case
from plot import plot

BENCHES = Path(measure.__file__).parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_a_row_has_times_and_counts() -> None:
    done = run(str(BENCHES / "measure.py"), "dispatch", "--threads", "1", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["case"], row["mode"], row["threads"]) == ("dispatch", "strict", 1)
    assert row["executions"] == 2_000
    assert row["compiles"] == row["fallbacks"] == 0
    assert len(row["all_seconds"]) == len(row["all_eager_seconds"]) == 2
    assert row["seconds"] > 0
    assert row["eager_seconds"] > 0


def test_a_result_unlike_the_cpus_is_refused() -> None:
    import torch

    wrong = Case(
        "wrong", lambda device: lambda: torch.full((2,), 1.0 if device == "cpu" else 1.1, device=device)
    )
    with pytest.raises(AssertionError, match="not close"):
        measure.measure(wrong, rounds=1)


def test_an_unknown_case_is_named() -> None:
    done = run(str(BENCHES / "bench.py"), "--cases", "nonsense")
    assert done.returncode == 1
    assert "no case is called 'nonsense'" in done.stderr
    assert all(case.name in done.stderr for case in CASES)


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    rows = [{"case": case.name, "threads": threads, "ratio": 1.5} for case in CASES for threads in (1, 2)]
    assert plot(rows, tmp_path / "bench.png").stat().st_size > 10_000
