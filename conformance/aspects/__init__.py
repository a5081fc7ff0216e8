"""The ways to ask an operator, one in each file."""

from __future__ import annotations

from .aspect import Aspect, Call
from .errors import Errors
from .forward import Forward
from .gradient import Gradient
from .inplace import InPlace
from .noncontiguous import Noncontiguous
from .out import Out

ASPECTS: dict[str, Aspect] = {
    aspect.name: aspect for aspect in (Forward(), Gradient(), Out(), InPlace(), Noncontiguous(), Errors())
}

__all__ = ["ASPECTS", "Aspect", "Call"]
