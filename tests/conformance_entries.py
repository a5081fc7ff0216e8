"""Entries whose operators go wrong on the device in a known way: what the conformance harness must notice.

The name of each says what is wrong; `test_conformance.py` says how it must be recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from conformance.rules import random_numbers

Function = Callable[[torch.Tensor], Any]
FLOAT, HALF, INTEGER = torch.float32, torch.bfloat16, torch.int64


def _samples(
    info: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any
) -> Iterator[SampleInput]:
    for shape in ((3, 4), (2, 3, 4)):
        yield SampleInput(make_tensor(shape, device=device, dtype=dtype))


def _none(*_: Any, **__: Any) -> Iterator[SampleInput]:
    return iter(())


def _entry(
    name: str, device: Function, cpu: Function, *dtypes: torch.dtype, samples: Any = _samples
) -> OpInfo:
    def op(x: torch.Tensor) -> Any:
        return (device if x.device.type == "tpu" else cpu)(x)

    return OpInfo(
        name,
        op=op,
        dtypes=set(dtypes or [FLOAT]),
        sample_inputs_func=samples,
        supports_out=False,
        supports_autograd=False,
    )


# An operator of which the device knows nothing.
torch.library.define("conformance_test::plus_one", "(Tensor x) -> Tensor")
torch.library.impl("conformance_test::plus_one", "cpu", lambda x: x + 1)


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _one_element_off(x: torch.Tensor) -> torch.Tensor:
    result = x + 1
    result.view(-1)[-1:].mul_(1.0001)
    return result


def _off_in_the_second_sample(x: torch.Tensor) -> torch.Tensor:
    return x + (1 if x.dim() == 2 else 1.001)


def _rounded_often(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = (x * 1.1) * 0.91
    return x


def _rounded_once(x: torch.Tensor) -> torch.Tensor:
    return (x.double() * 1.1**6 * 0.91**6).to(x.dtype)


def _small_elements_lost(x: torch.Tensor) -> torch.Tensor:
    """Nobody sees it in the largest error."""
    return _small_and_large(x).masked_fill(torch.arange(4, device=x.device) == 0, 0)


def _small_and_large(x: torch.Tensor) -> torch.Tensor:
    # Large elements with a rounding error, small ones without.
    return torch.where(torch.arange(4, device=x.device) == 0, x.abs() * 0.0 + 0.5, _rounded_once(x) * 1000)


def _spoils_its_input(x: torch.Tensor) -> torch.Tensor:
    result = x + 1
    x.zero_()
    return result


def _raise(kind: type[Exception]) -> Function:
    def function(_: torch.Tensor) -> NoReturn:
        raise kind("as asked")

    return function


def _on_the_host(x: torch.Tensor) -> torch.Tensor:
    return (x.cpu() + 1).to(x.device)


def _hang(_: torch.Tensor) -> None:
    time.sleep(600)


def _same_numbers_always(x: torch.Tensor) -> torch.Tensor:
    return x * 0 + torch.arange(x.numel(), device=x.device).view(x.shape)


def _own_numbers(x: torch.Tensor) -> torch.Tensor:
    """Random, and not from the seed."""
    return x * 0 + time.perf_counter_ns() % 1_000_003


def _uniform(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


def _drawn(scale: float) -> random_numbers.Draws:
    """Draws that the device scales."""

    def draw(device: str, dtype: torch.dtype) -> torch.Tensor:
        numbers = torch.rand(random_numbers.N, device=device)
        return numbers * scale if device == "tpu" else numbers

    return random_numbers.Draws(draw)


random_numbers.OPERATORS.update(
    random_right=_drawn(1.0), random_same=_drawn(1.0), random_seedless=_drawn(1.0), random_scaled=_drawn(1.05)
)

ENTRIES = [
    _entry("right", plus_one, plus_one, FLOAT, HALF, INTEGER),
    _entry("right_view", lambda x: x.transpose(0, 1)[1:], lambda x: x.transpose(0, 1)[1:]),
    _entry("right_in_place", lambda x: x.add_(1), lambda x: x.add_(1)),
    _entry("right_half", _rounded_once, _rounded_often, HALF),
    _entry("value", _one_element_off, plus_one),
    _entry("value_nan", lambda x: x / 0 * 0, plus_one),
    _entry("value_second", _off_in_the_second_sample, plus_one),
    _entry("value_integer", lambda x: x + 2, plus_one, INTEGER),
    _entry("value_number", lambda x: x.dim() + 1, lambda x: x.dim()),
    _entry("value_half", _rounded_often, _rounded_once, HALF),
    _entry("value_half_small", _small_elements_lost, _small_and_large, HALF),
    _entry("dtype", lambda x: (x + 1).double(), plus_one),
    _entry("shape", lambda x: (x + 1).unsqueeze(0), plus_one),
    _entry("strides", lambda x: (x + 1).mT.contiguous().mT, plus_one),
    _entry("device", lambda x: torch.ones(x.shape), lambda x: torch.ones(x.shape)),
    _entry("structure", lambda x: [x + 1], lambda x: (x + 1,)),
    _entry("alias_lost", lambda x: x.mT.clone(), lambda x: x.mT),
    _entry("alias_false", lambda x: x.view(-1), lambda x: x.view(-1).clone()),
    _entry("alias_offset", lambda x: x[:1], lambda x: x[1:2]),
    _entry("alias_of_outputs", lambda x: (x + 1).unbind(), lambda x: tuple(t + 1 for t in x.unbind())),
    _entry("alias_object", lambda x: x.add_(1).view_as(x), lambda x: x.add_(1)),
    _entry("write_lost", plus_one, lambda x: x.add_(1).clone()),
    _entry("write_false", _spoils_its_input, plus_one),
    _entry("host", _on_the_host, plus_one),
    _entry("random_right", _uniform, _uniform),
    _entry("random_same", _same_numbers_always, _uniform),
    _entry("random_seedless", _own_numbers, _uniform),
    _entry("random_scaled", _uniform, _uniform),
    _entry("notimpl", _raise(NotImplementedError), plus_one),
    _entry("notimpl_fallback", torch.ops.conformance_test.plus_one, plus_one),
    _entry("error", _raise(ValueError), plus_one),
    _entry("unjudged", _raise(ValueError), _raise(ValueError)),
    _entry("unjudged_answers", plus_one, _raise(ValueError)),
    _entry("unjudged_without_samples", plus_one, plus_one, samples=_none),
    _entry("crash_abort", lambda _: os.abort(), plus_one),
    _entry("crash_exit", lambda _: os._exit(0), plus_one),
    _entry("crash_hang", _hang, plus_one),
]
