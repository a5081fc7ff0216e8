"""Programs by the digest of their text, and what the compiler said of each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

_CUSTOM_CALL = re.compile(r"custom_call @([\w.$]+)|call_target_name = \"([^\"]+)\"")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def custom_calls(text: str) -> list[str]:
    """The targets that a program of StableHLO calls."""
    return sorted({one or other for one, other in _CUSTOM_CALL.findall(text)})


class Programs:
    """A folder of texts, one file for each digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, text: str) -> str:
        key = digest(text)
        path = self._path(key)
        if not path.exists():
            with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as file:
                file.write(text)
            os.replace(file.name, path)
        return key

    def read(self, key: str) -> str:
        return self._path(key).read_text()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.mlir"


class Answers:
    """A file of JSON lines that remembers answers by key, for one version of what was asked."""

    def __init__(self, path: Path, version: str) -> None:
        self._path, self._version = path, version
        self._known: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                entry = json.loads(line)
            except ValueError:  # A write that was interrupted.
                continue
            if entry["version"] == version:
                self._known[entry["key"]] = entry["answer"]

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def add(self, key: str, answer: Any) -> None:
        self._known[key] = answer
        with self._path.open("a") as file:
            file.write(json.dumps({"version": self._version, "key": key, "answer": answer}) + "\n")


def compiler_version(topology: str) -> str:
    return f"libtpu {version('libtpu')} {topology}"
