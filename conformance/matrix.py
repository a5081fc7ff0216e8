"""The whole table: how each operator fares in each dtype, and in each way to ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .pairs import DTYPES

# A cell, its sign in the table of the page, and what it means.
LEGEND: dict[str, tuple[str, str]] = {
    "native": ("●", "green; every operator that ran has a native lowering"),
    "decomposed": ("◐", "green; some operator ran as one program made from PyTorch's decomposition"),
    "host": ("○", "green; some operator ran as a listed host kernel"),
    "not implemented": ("–", "`NotImplementedError`"),
    "wrong": ("✗", "a mismatch, another exception, or a crash"),
    "unjudged": ("?", "the CPU raises for every sample"),
    "": ("", "the CPU does not have the dtype"),
}


def cell(record: dict[str, Any]) -> str:
    """The word of LEGEND for a pair."""
    notes = record["notes"]
    if record["status"] == "green":
        if any(note.startswith("host kernel ") for note in notes):
            return "host"
        return "decomposed" if any(note.startswith("decomposed ") for note in notes) else "native"
    return {"notimpl": "not implemented", "unjudged": "unjudged"}.get(record["status"], "wrong")


def rows(
    forward: Iterable[dict[str, Any]], others: Mapping[str, Sequence[dict[str, Any]]]
) -> dict[str, dict[str, str]]:
    """By operator, its cells by dtype, and by the name of each further aspect.

    forward: records in any dtypes; others: the records of further aspects.
    """
    table: dict[str, dict[str, str]] = {}
    for record in forward:
        table.setdefault(record["operator"], {})[record["dtype"]] = cell(record)
    for aspect, records in others.items():
        for record in records:
            table.setdefault(record["operator"], {})[aspect] = cell(record)
    return dict(sorted(table.items(), key=lambda item: item[0].lower()))


def columns(table: Mapping[str, Mapping[str, str]], others: Iterable[str]) -> list[str]:
    """Those that some operator has, dtypes first."""
    present = {name for cells in table.values() for name in cells}
    return [name for name in (*DTYPES, *others) if name in present]


def markdown(table: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> Iterator[str]:
    yield "\n".join(f"- {sign} {meaning}" for word, (sign, meaning) in LEGEND.items() if word)
    yield ""
    yield f"| operator | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for operator, cells in table.items():
        signs = (LEGEND[cells.get(name, "")][0] for name in names)
        yield f"| `{operator}` | {' | '.join(signs)} |"
    yield ""
