"""Times one case on a peer and on CPU eager in the same process, one for one, and prints a JSON row."""

import argparse
import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import BY_NAME, Case, Run

THREADS = 2


def seconds(run: Run, times: int, finish: Callable[[], None]) -> float:
    """Of one call, until all work is done."""
    start = time.perf_counter()
    for _ in range(times):
        run()
    finish()
    return (time.perf_counter() - start) / times


def main(description: str, version: str, make: Callable[[Case], Run], finish: Callable[[], None]) -> int:
    """Runs the case that the command line names.

    `make` makes what the peer runs, a call of which starts all its work; `finish` waits until that work is done. Raises
    if the peer's result is not the CPU's.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("case", choices=BY_NAME)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    torch.set_num_threads(THREADS)
    case = BY_NAME[options.case]
    eager, own = case.make("cpu"), make(case)
    torch.testing.assert_close(own().cpu(), eager(), rtol=case.tolerance, atol=case.tolerance)
    for _ in range(2):
        seconds(eager, 1, finish)
        seconds(own, 1, finish)
    pairs = [
        (seconds(eager, case.repeat, finish), seconds(own, case.repeat, finish))
        for _ in range(options.rounds)
    ]
    eager_seconds, own_seconds = (statistics.median(side) for side in zip(*pairs, strict=True))
    row = {"version": version, "case": case.name, "threads": THREADS, "seconds": own_seconds}
    print(json.dumps({**row, "eager_seconds": eager_seconds, "ratio": own_seconds / eager_seconds}))
    return 0
