"""What the records say together: the closing line and the JSON file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .child import ROOT
from .records import Settings

sys.path.insert(0, str(ROOT / "tools"))
import report as closing

STATUSES = ("green", "wrong", "notimpl", "error", "crash", "unjudged")


class Counts:
    """How many pairs have which status."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        self._counts = Counter(record["status"] for record in records)

    def add(self, record: dict[str, Any]) -> None:
        self._counts[record["status"]] += 1

    def clean(self) -> bool:
        return not (self._counts["wrong"] or self._counts["crash"] or self._counts["error"])

    def line(self) -> dict[str, object]:
        return {"pairs": self._counts.total(), **{status: self._counts[status] for status in STATUSES}}

    def text(self, name: str) -> str:
        return f"{name}: " + " ".join(f"{key}={value}" for key, value in self.line().items())

    def __str__(self) -> str:
        return " ".join(f"{status}={self._counts[status]}" for status in STATUSES if self._counts[status])


def show(records: Iterable[dict[str, Any]]) -> None:
    for record in records:
        if record["status"] != "green":
            print(f"{record['status']:8} {record['operator']} {record['dtype']}  {record['samples']}")
            for failure in record["failures"]:
                print(
                    f"         {failure['status']}: {failure['call']}\n             {failure['message'][:400]}"
                )


def close(name: str, records: list[dict[str, Any]], settings: Settings) -> None:
    details = {
        "settings": settings.key(),
        "builds": sorted({record["build"] for record in records}),
        "by_dtype": {
            dtype: Counts(r for r in records if r["dtype"] == dtype).line()
            for dtype in dict.fromkeys(record["dtype"] for record in records)
        },
        "samples": dict(sum((Counter(record["samples"]) for record in records), Counter())),
        "notes": dict(sum((Counter(record["notes"]) for record in records), Counter())),
        "not_green": [record for record in records if record["status"] != "green"],
    }
    closing.close(name, Counts(records).line(), details)
