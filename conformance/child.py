"""Child processes that may crash or hang: they answer questions until they do, and are then replaced."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS_TO_START = 600


class Died(Exception):
    """A child died or did not answer in time. last: its last message before that."""

    def __init__(self, how: str, last: dict[str, Any]) -> None:
        super().__init__(how)
        self.last = last


class Child:
    """A module of this package in a process of its own, one JSON object a line.

    It reads questions from standard input and writes messages to the file descriptor that is its first argument:
    one when it is ready, any number while it works, and one with the key "done" as the answer.
    """

    def __init__(self, module: str, *words: str, timeout: float, questions: int = 1_000_000) -> None:
        """timeout: seconds between two messages. questions: after so many the process is replaced."""
        self._module, self._words = module, words
        self._timeout, self._questions = timeout, questions
        self._process: _Process | None = None

    def ask(self, question: dict[str, Any]) -> Any:
        """The answer. Died when there is none."""
        if self._process and self._process.asked >= self._questions:
            self.stop()
        self._process = self._process or _Process(self._module, self._words)
        last: dict[str, Any] = {}
        try:
            self._process.send(question)
            while "done" not in (message := self._process.receive(self._timeout)):
                last = message
            return message["done"]
        except TimeoutError as failure:
            how = str(failure)
        except (EOFError, BrokenPipeError):
            how = self._process.ended()
        self.stop()
        raise Died(how, last)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process = None


class _Process:
    def __init__(self, module: str, words: tuple[str, ...]) -> None:
        self.asked = 0
        self._buffer = b""
        self._pipe, theirs = os.pipe()
        # Whatever it prints, for the record of a crash.
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs), *words],
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
            raise RuntimeError(f"{module} does not start: {how}") from failure

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        self.asked += 1
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


def serve(descriptor: str, answer: Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], Any]) -> None:
    """The child's side: answer(question, tell) until there are no more questions; `tell` sends a message."""
    with open(int(descriptor), "w", buffering=1) as out:

        def tell(message: dict[str, Any]) -> None:
            out.write(json.dumps(message) + "\n")

        tell({"ready": True})
        for line in sys.stdin:
            tell({"done": answer(json.loads(line), tell)})
