"""Measures one case in this process, device and CPU one for one, and prints a JSON row.

Run by bench.py in a process of its own for each case and number of threads: both sides take the cores that the process
may use, PyTorch as its threads and XLA as its pool.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import time
import warnings

import torch
from cases import BY_NAME, Case, Run

COUNTED = ("compiles", "executions", "fallbacks")


def measure(case: Case, rounds: int) -> dict[str, object]:
    """First call and median of `rounds` rounds on each side; raises if the two disagree on the result."""
    cpu, tpu = case.make("cpu"), case.make("tpu")
    eager_first, expected = timed(cpu)
    first, actual = timed(tpu)
    torch.testing.assert_close(actual, expected, rtol=case.tolerance, atol=case.tolerance)
    # Allocators and branch predictors settle on both sides.
    for run in (cpu, tpu, cpu, tpu):
        timed(run)

    before = torch.tpu.stats()
    seconds: list[float] = []
    eager_seconds: list[float] = []
    for _ in range(rounds):
        eager_seconds.append(repeated(cpu, case.repeat))
        seconds.append(repeated(tpu, case.repeat))
    after = torch.tpu.stats()
    calls = rounds * case.repeat
    return {
        "seconds": statistics.median(seconds) / case.repeat,
        "eager_seconds": statistics.median(eager_seconds) / case.repeat,
        "ratio": statistics.median(seconds) / statistics.median(eager_seconds),
        "first_seconds": first,
        "eager_first_seconds": eager_first,
        "all_seconds": seconds,
        "all_eager_seconds": eager_seconds,
        **{name: (after[name] - before[name]) / calls for name in COUNTED},
        "first_compiles": before["compiles"],
    }


def timed(run: Run) -> tuple[float, torch.Tensor]:
    """Seconds until the result is in host memory, and the result."""
    start = time.perf_counter()
    result = run().cpu()
    return time.perf_counter() - start, result


def repeated(run: Run, times: int) -> float:
    """Seconds of `times` calls until all their work is done."""
    start = time.perf_counter()
    for _ in range(times):
        result = run()
    if result.device.type == "tpu":
        torch.tpu.synchronize()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=BY_NAME)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    torch.set_num_threads(options.threads)
    torch.tpu.set_fallback("error")
    row = measure(BY_NAME[options.case], options.rounds)
    print(json.dumps({"case": options.case, "mode": "strict", "threads": options.threads, **row}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
