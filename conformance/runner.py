"""The parent: hands pairs to child processes, several at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any

from .child import Child
from .pairs import Pair
from .records import Settings


def run(todo: Iterable[Pair], settings: Settings, jobs: int, done: Callable[[dict[str, Any]], None]) -> None:
    """Run pairs in `jobs` child processes at a time and call `done` with each record, one at a time."""
    waiting: queue.SimpleQueue[Pair] = queue.SimpleQueue()
    for pair in todo:
        waiting.put(pair)
    failures: list[BaseException] = []
    reporting = threading.Lock()

    def serve() -> None:
        child = Child(settings)
        try:
            while not failures:
                record = child.run(waiting.get_nowait())
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
