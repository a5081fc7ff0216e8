"""What is said of one sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Verdict:
    """status: "green", "wrong", "notimpl", "error" or "unjudged". notes: the rules that were needed."""

    status: str
    message: str = ""
    notes: Counter[str] = field(default_factory=Counter)
