"""The child process: reads pairs from standard input and reports each sample before and after it runs.

One JSON object a line. In: {"operator", "dtype"}. Out, on the file descriptor given as the first argument:
{"ready": true} at the start, {"at": i, "of": n, "call": text} before a sample, {"done": record} after a pair.
"""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from typing import IO, Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from . import pairs
from .judge import Judge
from .rules import random_numbers, skips

# Different failures of a pair that are kept word for word.
KEPT = 6


def main(descriptor: str, source: str, max_samples: str, fallback: str) -> None:
    warnings.filterwarnings("ignore")
    entries = pairs.load(source)
    let_seeds_count()
    torch.tpu.set_fallback(fallback)
    with open(int(descriptor), "w", buffering=1) as out:
        print(json.dumps({"ready": True}), file=out)
        for line in sys.stdin:
            pair = pairs.Pair(**json.loads(line))
            record = run(pair, entries[pair.operator], int(max_samples), out)
            print(json.dumps({"done": record}), file=out)


def let_seeds_count() -> None:
    """PyTorch's random entries fix the seed inside the operator; here the seed is the harness's to choose."""
    for module in list(sys.modules.values()):
        if hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)


def run(pair: pairs.Pair, entry: Any, max_samples: int, out: IO[str]) -> dict[str, Any]:
    """Judge a pair's samples. The record counts verdicts and notes and keeps some failures."""
    start = time.monotonic()
    verdicts: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    failures: list[dict[str, str]] = []
    dtype = getattr(torch, pair.dtype)

    def count(status: str, call: str, message: str) -> None:
        verdicts[status] += 1
        message = message[:600]
        known = any((failure["status"], failure["message"]) == (status, message) for failure in failures)
        if status != "green" and not known and len(failures) < KEPT:
            failures.append({"status": status, "call": call, "message": message})

    available = 0
    if reason := skips.reason(pair):
        count("unjudged", "", reason)
    else:
        try:
            samples = all_samples(entry, dtype)
        except Exception as failure:
            samples = []
            count("unjudged", "", f"no samples: {failure!r}")
        available = len(samples)
        judge = Judge(pair.operator, entry, dtype, samples)
        for index in chosen(available, max_samples):
            call = describe(samples[index])
            print(json.dumps({"at": index, "of": available, "call": call}), file=out)
            try:
                verdict = judge.judge(samples[index])
            except Exception as failure:
                # The harness's own mistake, or a value that cannot be read: never green.
                place = traceback.extract_tb(failure.__traceback__)[-1]
                count("error", call, f"{failure!r} in {place.name}, line {place.lineno}")
                continue
            notes += verdict.notes
            count(verdict.status, call, verdict.message)
        if verdicts["green"] and (draws := random_numbers.OPERATORS.get(pair.operator)):
            print(json.dumps({"at": -1, "of": available, "call": "100,000 draws"}), file=out)
            message = draws.compare(dtype)
            count("wrong" if message else "green", "100,000 draws", message or "")
    return {
        **pair._asdict(),
        "status": worst(verdicts),
        "family": pairs.family(pair.operator, entry),
        "available": available,
        "samples": dict(verdicts),
        "notes": dict(notes),
        "failures": failures,
        "seconds": round(time.monotonic() - start, 2),
    }


def worst(verdicts: Counter[str]) -> str:
    """A pair is green when every sample that could be judged is, and at least one was."""
    return next((s for s in ("wrong", "error", "notimpl", "green") if verdicts[s]), "unjudged")


def all_samples(entry: Any, dtype: torch.dtype) -> list[Any]:
    """The same in every process: the generators use all three global sources of random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return list(entry.sample_inputs("cpu", dtype, requires_grad=False))


def chosen(available: int, most: int) -> list[int]:
    """Evenly spread over all samples, the first and the last among them; all for 0."""
    if most == 0 or available <= most:
        return list(range(available))
    if most == 1:
        return [0]
    return sorted({round(i * (available - 1) / (most - 1)) for i in range(most)})


def describe(sample: Any) -> str:
    """float32[2, 3] | 1 | {dim: 0}"""

    def leaf(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        text = f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
        strided = item.layout == torch.strided
        return text if not strided or item.is_contiguous() else f"{text} strides {list(item.stride())}"

    arguments = tree_map(leaf, (sample.input, tuple(sample.args), dict(sample.kwargs)))
    return " | ".join(str(part) for part in arguments).replace("'", "")[:300]


if __name__ == "__main__":
    main(*sys.argv[1:])
