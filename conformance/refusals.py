"""What the CPU refuses must be refused likewise: the same kind of exception, for the same cause."""

from __future__ import annotations

import re
from typing import Any

from .aspects.aspect import NotApplicable
from .verdict import Verdict

DEVICES = re.compile(r"\b(cpu|tpu|privateuse1|PrivateUse1)(:\d+)?\b", re.IGNORECASE)


def judge(ours: Exception | None, theirs: Exception, sample: Any) -> Verdict:
    """The message must fit the sample's pattern, where PyTorch has one, or say what the CPU says."""
    cause, kind = getattr(sample, "cause", None), getattr(sample, "kind", None) or type(theirs)
    if isinstance(theirs, NotApplicable):
        return Verdict("unjudged", str(theirs))
    asked = f"the CPU raises {said(theirs)}"
    if ours is None:
        return Verdict("wrong", f"refusal: {asked}; the device answers")
    if type(ours) is NotImplementedError and type(theirs) is not NotImplementedError:
        return Verdict("notimpl", str(ours))
    if not isinstance(ours, kind):
        return Verdict("wrong", f"refusal: {asked}; the device {said(ours)}")
    if cause is not None and not re.search(cause, str(ours)) and _plain(ours) != _plain(theirs):
        return Verdict("wrong", f"refusal: {asked}; the device says {ours}")
    return Verdict("green", notes={"refused": 1})


def said(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"


def _plain(failure: Exception) -> str:
    """The first line, without which device it is."""
    return DEVICES.sub("device", str(failure).strip().partition("\n")[0])
