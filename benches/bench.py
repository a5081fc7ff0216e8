"""Compares the device with CPU PyTorch on the same cores, and prints a table.

    make bench                                     # every case, on one thread and on two
    make bench BENCH_ARGS="--cases dispatch,mlp --threads 2"
    make bench PEERS=1                             # other ways to run PyTorch on this machine, beside it

Each case runs in a process of its own, twice: the first fills an empty cache of programs, the second reads it. Within a
process device and CPU alternate, so that a busy machine slows both; what counts is the ratio of their medians. Measure
on a quiet machine: the load average is printed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from cases import BY_NAME, CASES
from instructions import instructions_per_operator
from plot import plot
from report import REPORTS, close

Row = dict[str, object]
MEASURE = Path(__file__).resolve().with_name("measure.py")


def measured(case: str, threads: int, rounds: int, cache: Path) -> Row:
    """A row of measure.py. `cache` holds the compiled programs."""
    command = [sys.executable, MEASURE, case, "--threads", str(threads), "--rounds", str(rounds)]
    environment = {**os.environ, "TORCH_PJRT_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{case} on {threads} thread(s) failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_all(names: list[str], threads: list[int], rounds: int) -> list[Row]:
    rows = []
    with tqdm(total=len(names) * len(threads), unit="case", disable=not sys.stderr.isatty()) as progress:
        for name in names:
            for count in threads:
                progress.set_description(f"{name}, {count} thread(s)")
                with tempfile.TemporaryDirectory() as cache:
                    cold = measured(name, count, 1, Path(cache))
                    row = measured(name, count, rounds, Path(cache))
                row["cold_first_seconds"] = cold["first_seconds"]
                row["cold_compiles"] = cold["first_compiles"]
                rows.append(row)
                progress.update()
    return rows


def table(rows: list[Row]) -> str:
    """Milliseconds per call, and what each call counts."""
    head = (
        "case", "threads", "tpu ms", "cpu ms", "ratio", "limit",
        "first s", "2nd process s", "cpu first s", "compiles", "executions", "fallbacks",
    )  # fmt: skip
    lines = [head]
    for row in rows:
        limit = BY_NAME[row["case"]].limit
        lines.append((
            row["case"], str(row["threads"]),
            f"{row['seconds'] * 1e3:.2f}", f"{row['eager_seconds'] * 1e3:.2f}", f"{row['ratio']:.2f}",
            f"{limit:.1f}" if limit and row["threads"] == 2 else "",
            f"{row['cold_first_seconds']:.2f}", f"{row['first_seconds']:.2f}", f"{row['eager_first_seconds']:.2f}",
            f"{row['compiles']:.0f}", f"{row['executions']:.0f}", f"{row['fallbacks']:.0f}",
        ))  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", default="all", help="names or their beginnings, with commas: " + ", ".join(BY_NAME)
    )
    parser.add_argument("--threads", default="1,2", help="numbers of cores to run on (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per median (default: %(default)s)")
    parser.add_argument(
        "--peers", action="store_true", help="also measure the peers (builds their environments)"
    )
    return parser.parse_args()


def chosen(text: str) -> list[str]:
    if text == "all":
        return [case.name for case in CASES]
    wanted = text.split(",")
    names = [case.name for case in CASES if any(case.name.startswith(name) for name in wanted)]
    if not names:
        raise SystemExit(f"bench: no case is called {text!r}; there are {', '.join(BY_NAME)}")
    return names


def main() -> int:
    options = arguments()
    names = chosen(options.cases)
    load = os.getloadavg()
    print(f"load average before: {load[0]:.2f} (1 min), {load[1]:.2f} (5 min); cores: {os.cpu_count()}")
    rows = measure_all(names, [int(count) for count in options.threads.split(",")], options.rounds)
    print(table(rows))
    instructions = instructions_per_operator() if "dispatch" in names else {}
    for device, count in instructions.items():
        print(f"instructions per dispatched operator, {device}: {count:,.0f}")
    REPORTS.mkdir(parents=True, exist_ok=True)
    print(f"plot: {plot(rows, REPORTS / 'bench.png')}")
    peers = []
    if options.peers:
        from peers.run import measure_peers

        peers = measure_peers(names, options.rounds)

    limited = [row for row in rows if row["threads"] == 2 and BY_NAME[row["case"]].limit]
    over = [row["case"] for row in limited if row["ratio"] > BY_NAME[row["case"]].limit]
    recompiled = sum(row["compiles"] for row in rows)
    line = {
        "cases": len(rows),
        **{row["case"].replace(" ", "_"): f"{row['ratio']:.2f}" for row in limited},
        "over_limit": len(over),
        "recompiles": f"{recompiled:.0f}",
        "load": f"{load[0]:.2f}",
    }
    close("bench", line, {"rows": rows, "instructions": instructions, "peers": peers})
    return 1 if over or recompiled else 0


if __name__ == "__main__":
    sys.exit(main())
