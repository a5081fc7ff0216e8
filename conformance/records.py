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

from .pairs import Pair

# What only says what was found.
REPORTING = ("page.py", "report.py", "cli.py", "check.py")


@dataclass(frozen=True)
class Settings:
    """What a record's verdict depends on, besides the build. timeout: seconds for one sample."""

    source: str
    max_samples: int
    fallback: str
    timeout: float

    def key(self) -> str:
        return f"{self.source} max_samples={self.max_samples} fallback={self.fallback}"


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
        self._path, self._stamp = path, {"build": build(), "settings": settings.key()}
        self._lock = threading.Lock()
        self.done: dict[Pair, dict[str, Any]] = {}
        self.dropped = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [] if fresh or not path.exists() else path.read_text().splitlines()
        for record in filter(None, map(_parsed, lines)):
            if all(record.get(key) == value for key, value in self._stamp.items()):
                self.done[Pair(record["operator"], record["dtype"])] = record
            else:
                self.dropped += 1
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as kept:
            kept.writelines(json.dumps(record) + "\n" for record in self.done.values())
        os.replace(kept.name, path)

    def add(self, record: dict[str, Any]) -> None:
        record = {**record, **self._stamp}
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            self.done[Pair(record["operator"], record["dtype"])] = record


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None
