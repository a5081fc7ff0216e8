"""A worker process as the parent sees it: it may crash or hang, and is replaced."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .pairs import Pair
from .records import Settings

ROOT = Path(__file__).resolve().parent.parent
# A child's memory grows with the programs it has seen.
PAIRS_PER_CHILD = 60
SECONDS_TO_START = 300


class Child:
    """Runs pairs one after another in a process that starts with the first."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: _Process | None = None

    def run(self, pair: Pair) -> dict[str, Any]:
        """The record of a pair; a death or a silence longer than the timeout is one, too."""
        if self._process and self._process.served >= PAIRS_PER_CHILD:
            self.stop()
        self._process = self._process or _Process(self._settings)
        started = time.monotonic()
        last: dict[str, Any] = {}
        try:
            self._process.send(pair._asdict())
            while "done" not in (message := self._process.receive(self._settings.timeout)):
                last = message
            return message["done"]
        except TimeoutError as failure:
            how = str(failure)
        except (EOFError, BrokenPipeError):
            how = self._process.ended()
        self.stop()
        return {
            **pair._asdict(),
            "status": "crash",
            "family": "",
            "available": last.get("of", 0),
            "samples": {"crash": 1},
            "notes": {},
            "failures": [
                {"status": "crash", "call": last.get("call", "before the first sample"), "message": how}
            ],
            "seconds": round(time.monotonic() - started, 2),
        }

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process = None


class _Process:
    def __init__(self, settings: Settings) -> None:
        self.served = 0
        self._buffer = b""
        self._pipe, theirs = os.pipe()
        # Whatever it prints, for the record of a crash.
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "conformance.worker", str(theirs), settings.source]
        self._process = subprocess.Popen(
            [*command, str(settings.max_samples), settings.fallback],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs],
            cwd=ROOT,
            # An interrupt from the keyboard is the parent's to handle.
            start_new_session=True,
        )
        os.close(theirs)
        try:
            self.receive(SECONDS_TO_START)
        except (EOFError, TimeoutError) as failure:
            how = self.ended()
            self.kill()
            raise RuntimeError(f"the worker does not start: {how}") from failure

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        self.served += 1
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next message. TimeoutError when it does not come, EOFError when the process has ended."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no answer in {timeout:g} s")
            data = os.read(self._pipe, 1 << 16)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def ended(self) -> str:
        """The exit status and the last of what was printed."""
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            status = None
        self._printed.seek(0)
        return f"exit status {status}; {self._printed.read()[-600:].decode(errors='replace').strip()}"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        os.close(self._pipe)
        self._printed.close()
