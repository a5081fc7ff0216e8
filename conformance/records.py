"""The file of results: what is done stays done, unless the build or the settings have changed since."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .child import ROOT
from .pairs import Pair

FOLDER = ROOT / "target/conformance"
# What only says what was found.
REPORTING = ("page.py", "html.py", "matrix.py", "report.py", "cli.py")


@dataclass(frozen=True)
class Settings:
    """What a record's verdict depends on, besides the build. timeout: seconds for one sample."""

    source: str
    aspect: str
    max_samples: int
    fallback: str
    timeout: float

    def key(self) -> str:
        return f"{self.source} {self.aspect} max_samples={self.max_samples} fallback={self.fallback}"


def build() -> str:
    """Digest of everything that decides a verdict: the package, as it would be imported, and the harness."""
    import torch_pjrt

    digest = hashlib.sha256()
    for folder in (Path(torch_pjrt.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".so") and path.name not in REPORTING:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Records:
    """A file of JSON lines, one for each pair that is done. A line is written whole or, after a crash, ignored."""

    def __init__(self, path: Path, settings: Settings, fresh: bool) -> None:
        self._path, self._stamp = path, _stamp(settings)
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        known = [] if fresh else _lines(path)
        self.done: dict[Pair, dict[str, Any]] = _stamped(known, self._stamp)
        self.dropped = len(known) - len(self.done)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as kept:
            kept.writelines(json.dumps(record) + "\n" for record in self.done.values())
        os.replace(kept.name, path)

    def add(self, record: dict[str, Any]) -> None:
        record = {**record, **self._stamp}
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            self.done[Pair(record["operator"], record["dtype"])] = record


def read(path: Path, settings: Settings) -> dict[Pair, dict[str, Any]]:
    """What is done with this build and these settings."""
    return _stamped(_lines(path), _stamp(settings))


def results_of(aspect: str) -> Path:
    return FOLDER / f"{aspect}.jsonl"


def _stamp(settings: Settings) -> dict[str, str]:
    return {"build": build(), "settings": settings.key()}


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(filter(None, map(_parsed, path.read_text().splitlines() if path.exists() else [])))


def _stamped(records: list[dict[str, Any]], stamp: dict[str, str]) -> dict[Pair, dict[str, Any]]:
    return {
        Pair(record["operator"], record["dtype"]): record
        for record in records
        if all(record.get(key) == value for key, value in stamp.items())
    }


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None
