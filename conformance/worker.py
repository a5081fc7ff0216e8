"""The child process that judges pairs: {"operator", "dtype"} is the question, the pair's record the answer.

Before each sample it says which: {"at": i, "of": n, "call": text}.
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from . import pairs
from .aspects import ASPECTS, Aspect
from .child import serve
from .judge import Asked, Judge
from .rules import random_numbers, skips
from .verdict import Verdict

# Different failures of a pair that are kept word for word.
KEPT = 6


def main(descriptor: str, source: str, aspect: str, max_samples: str, fallback: str) -> None:
    warnings.filterwarnings("ignore")
    entries = pairs.load(source)
    let_seeds_count()
    torch.tpu.set_fallback(fallback)

    def answer(question: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        pair = pairs.Pair(**question)
        return run(pair, entries[pair.operator], ASPECTS[aspect], int(max_samples), tell)

    serve(descriptor, answer)


def let_seeds_count() -> None:
    """PyTorch's random entries fix the seed inside the operator; here the seed is the harness's to choose."""
    for module in list(sys.modules.values()):
        if hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)


class _Tally:
    """Counts verdicts and notes, and keeps some failures."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.failures: list[dict[str, str]] = []

    def add(self, call: str, verdict: Verdict) -> None:
        self.verdicts[verdict.status] += 1
        self.notes += verdict.notes
        failure = {"status": verdict.status, "message": verdict.message[:600]}
        known = any(failure.items() <= other.items() for other in self.failures)
        if verdict.status != "green" and not known and len(self.failures) < KEPT:
            self.failures.append({**failure, "call": call})

    def status(self) -> str:
        """A pair is green when every sample that could be judged is, and at least one was."""
        order = ("wrong", "error", "notimpl", "green")
        return next((status for status in order if self.verdicts[status]), "unjudged")


def run(
    pair: pairs.Pair, entry: Any, aspect: Aspect, max_samples: int, tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """The record of a pair."""
    start = time.monotonic()
    tally = _Tally()
    available = 0
    for number, available, call, judge in questions(pair, entry, aspect, max_samples):
        tell({"at": number, "of": available, "call": call})
        tally.add(call, protected(judge))
    return {
        **pair._asdict(),
        "status": tally.status(),
        "available": available,
        "samples": dict(tally.verdicts),
        "notes": dict(tally.notes),
        "failures": tally.failures,
        "seconds": round(time.monotonic() - start, 2),
    }


def questions(
    pair: pairs.Pair, entry: Any, aspect: Aspect, max_samples: int
) -> Iterator[tuple[int, int, str, Callable[[], Verdict]]]:
    """What is judged of a pair: (number, number of samples there are, call in words, how)."""
    if reason := skips.reason(pair):
        yield 0, 0, "", lambda: Verdict("unjudged", reason)
        return
    dtype = getattr(torch, pair.dtype)
    samples, failure = [], ""
    try:
        samples = aspect.samples(pair.operator, entry, dtype)
    except Exception as error:
        failure = repr(error)
    if not samples:
        yield 0, 0, "", lambda: Verdict("unjudged", f"no samples {failure}")
        return
    judge = Judge(pair.operator, entry, dtype, aspect, samples)
    for index in chosen(len(samples), max_samples):
        sample = samples[index]
        for words, call in aspect.calls(entry, sample):
            text = " | ".join(filter(None, (describe(sample), words)))
            yield index, len(samples), text, partial(judge.judge, Asked(sample, call))
    if aspect.name == "forward" and (draws := random_numbers.OPERATORS.get(pair.operator)):
        yield len(samples), len(samples), f"{random_numbers.N} draws", partial(draws.judge, dtype)


def protected(judge: Callable[[], Verdict]) -> Verdict:
    try:
        return judge()
    except NotImplementedError as failure:
        return Verdict("notimpl", str(failure))
    except Exception as failure:
        # The harness's own mistake, or a value that cannot be read: never green.
        place = traceback.extract_tb(failure.__traceback__)[-1]
        return Verdict("error", f"{failure!r} in {place.name}, line {place.lineno}")


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
