"""torch.compile with inductor on the CPU against CPU eager, on two threads."""

import argparse
import json
import logging
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import BY_NAME, Run

THREADS = 2


def seconds(run: Run, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=BY_NAME)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(THREADS)
    case = BY_NAME[options.case]
    eager, compiled = case.make("cpu"), torch.compile(case.make("cpu"))
    torch.testing.assert_close(compiled(), eager(), rtol=case.tolerance, atol=case.tolerance)
    for run in (eager, compiled, eager, compiled):
        run()
    pairs = [(seconds(eager, case.repeat), seconds(compiled, case.repeat)) for _ in range(options.rounds)]
    base, own = (statistics.median(side) for side in zip(*pairs, strict=True))
    row = {"version": f"torch {torch.__version__}", "case": case.name, "threads": THREADS}
    print(json.dumps({**row, "seconds": own, "eager_seconds": base, "ratio": own / base}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
