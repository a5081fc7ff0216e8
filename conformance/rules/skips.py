"""Pairs that are not run at all. They count as pairs and never as green."""

from __future__ import annotations

from ..pairs import Pair

OPERATORS: dict[str, str] = {}


def reason(pair: Pair) -> str | None:
    return OPERATORS.get(pair.operator)
