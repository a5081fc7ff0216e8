"""The parent: hands pairs to child processes, several at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from .child import Child, Died
from .pairs import Pair
from .records import Settings

# A child's memory grows with the programs it has seen.
PAIRS_PER_CHILD = 60


def run(todo: Iterable[Pair], settings: Settings, jobs: int, done: Callable[[dict[str, Any]], None]) -> None:
    """Run pairs in `jobs` child processes at a time and call `done` with each record, one at a time."""
    waiting: queue.SimpleQueue[Pair] = queue.SimpleQueue()
    for pair in todo:
        waiting.put(pair)
    failures: list[BaseException] = []
    reporting = threading.Lock()

    def serve() -> None:
        child = Child(
            "conformance.worker",
            *(settings.source, settings.aspect, str(settings.max_samples), settings.fallback),
            timeout=settings.timeout,
            questions=PAIRS_PER_CHILD,
        )
        try:
            while not failures:
                record = ask(child, waiting.get_nowait())
                with reporting:
                    done(record)
        except queue.Empty:
            pass
        except BaseException as failure:
            failures.append(failure)
        finally:
            child.stop()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt as interrupt:
        failures.append(interrupt)
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def ask(child: Child, pair: Pair) -> dict[str, Any]:
    """The record of a pair; a crash or a hang makes one, too."""
    started = time.monotonic()
    try:
        return child.ask(pair._asdict())
    except Died as failure:
        call = failure.last.get("call", "before the first sample")
        return {
            **pair._asdict(),
            "status": "crash",
            "available": failure.last.get("of", 0),
            "samples": {"crash": 1},
            "notes": {},
            "failures": [{"status": "crash", "call": call, "message": str(failure)}],
            "seconds": round(time.monotonic() - started, 2),
        }
