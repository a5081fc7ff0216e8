"""How reporting commands end: a line `NAME: key=value ...`, and the same in target/reports/NAME.json."""

import json
from pathlib import Path

REPORTS = Path(__file__).resolve().parent.parent / "target" / "reports"


def close(name: str, line: dict[str, object], details: dict[str, object] | None = None) -> None:
    """Write the report and print the closing line. `details` go into the JSON file alone."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**line, **(details or {})}, indent=2) + "\n"
    (REPORTS / f"{name}.json").write_text(text)
    print(f"{name}: " + " ".join(f"{key}={value}" for key, value in line.items()), flush=True)
