"""Operators for which PyTorch chooses an algorithm by the kind of device: both are told which to take."""

from __future__ import annotations

import dataclasses
from typing import Any

OPERATORS: dict[str, str] = dict.fromkeys(
    ("nn.functional.linear_cross_entropy.chunked", "nn.functional.linear_cross_entropy.chunked_none"),
    'acc_policy "auto" is "accurate" for half precision on the CPU and "compact" on accelerators; both run "compact"',
)


def settle(name: str, sample: Any) -> None:
    """Change the arguments of a sample so that they say what would be chosen."""
    options = sample.kwargs.get("options")
    if name in OPERATORS and options is not None and options.acc_policy == "auto":
        sample.kwargs["options"] = dataclasses.replace(options, acc_policy="compact")
