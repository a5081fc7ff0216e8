"""The ways to ask an operator, one in each file."""

from __future__ import annotations

from .aspect import Aspect, Call
from .double_backward import DoubleBackward
from .errors import Errors
from .forward import Forward
from .forward_mode import ForwardMode
from .gradient import Gradient
from .inplace import InPlace
from .noncontiguous import Noncontiguous
from .out import Out

ASPECTS: dict[str, Aspect] = {
    aspect.name: aspect
    for aspect in (
        *(Forward(), Gradient(), DoubleBackward(), ForwardMode()),
        *(Out(), InPlace(), Noncontiguous(), Errors()),
    )
}

__all__ = ["ASPECTS", "Aspect", "Call"]
