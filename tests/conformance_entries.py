"""Entries whose operators go wrong on the device in a known way: what the conformance harness must notice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput


def _samples(info: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any):
    torch.manual_seed(0)
    for shape in ((3, 4), (2, 3, 4)):
        yield SampleInput(make_tensor(shape, device=device, dtype=dtype))


def _entry(name: str, op: Callable[..., Any], **options: Any) -> OpInfo:
    return OpInfo(
        name,
        op=op,
        dtypes=options.pop("dtypes", {torch.float32}),
        sample_inputs_func=options.pop("samples", _samples),
        supports_out=False,
        supports_autograd=False,
        **options,
    )


def _on_device(
    wrong: Callable[[torch.Tensor], Any], right: Callable[[torch.Tensor], Any]
) -> Callable[..., Any]:
    return lambda x: wrong(x) if x.device.type == "tpu" else right(x)


def _no_answer(_: torch.Tensor) -> None:
    time.sleep(600)


def _one_wrong(x: torch.Tensor) -> torch.Tensor:
    result = x + 1
    result.view(-1)[-1] *= 1.0001
    return result


def _raise(kind: type[Exception]) -> Callable[..., Any]:
    def function(_: torch.Tensor) -> None:
        raise kind("as asked")

    return function


def _changes_its_input(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 1


def _half_precision_twice(x: torch.Tensor) -> torch.Tensor:
    """Rounded several times, where the CPU rounds once."""
    return sum(x for _ in range(7)) * 1.1 / 7.7  # type: ignore[return-value]


def _only_wrong_in_the_second_sample(x: torch.Tensor) -> torch.Tensor:
    return x + (1 if x.dim() == 2 else 1.001)


ENTRIES = [
    _entry("right", lambda x: x + 1, dtypes={torch.float32, torch.bfloat16, torch.int64}),
    _entry("right_view", lambda x: x.transpose(0, 1)[1:]),
    _entry("right_in_place", lambda x: x.add_(1)),
    _entry("value", _on_device(_one_wrong, lambda x: x + 1)),
    _entry("value_nan", _on_device(lambda x: x / 0 * 0, lambda x: x + 1)),
    _entry("value_second", _on_device(_only_wrong_in_the_second_sample, lambda x: x + 1)),
    _entry("value_integer", _on_device(lambda x: x + 2, lambda x: x + 1), dtypes={torch.int64}),
    _entry("value_number", _on_device(lambda x: x.shape[0] + 1, lambda x: x.shape[0])),
    _entry("value_half", _on_device(_half_precision_twice, lambda x: x * 1), dtypes={torch.bfloat16}),
    _entry("dtype", _on_device(lambda x: (x + 1).double(), lambda x: x + 1)),
    _entry("shape", _on_device(lambda x: (x + 1).unsqueeze(0), lambda x: x + 1)),
    _entry("strides", _on_device(lambda x: (x + 1).mT.contiguous().mT, lambda x: x + 1)),
    _entry("device", _on_device(lambda x: x.cpu() + 1, lambda x: x + 1)),
    _entry("structure", _on_device(lambda x: [x + 1], lambda x: (x + 1,))),
    _entry("lost_alias", _on_device(lambda x: x.mT.clone(), lambda x: x.mT)),
    _entry("false_alias", _on_device(lambda x: x.view(-1), lambda x: x.reshape(-1).clone())),
    _entry("other_offset", _on_device(lambda x: x[:1], lambda x: x[1:2])),
    _entry("new_object", _on_device(lambda x: x.add_(1).view_as(x), lambda x: x.add_(1))),
    _entry("lost_write", _on_device(lambda x: x + 1, lambda x: x.add_(1).clone())),
    _entry("spoilt_input", _on_device(_changes_its_input, lambda x: x + 1)),
    _entry("not_implemented", _on_device(_raise(NotImplementedError), lambda x: x + 1)),
    _entry("raises", _on_device(_raise(ValueError), lambda x: x + 1)),
    _entry("raises_everywhere", _raise(ValueError)),
    _entry(
        "host", _on_device(lambda x: torch.linalg.eigvals(x @ x.mT).real.abs() * 0, lambda x: x[..., 0] * 0)
    ),
    _entry("abort", _on_device(lambda _: os.abort(), lambda x: x + 1)),
    _entry("exit", _on_device(lambda _: os._exit(0), lambda x: x + 1)),
    _entry("hang", _on_device(_no_answer, lambda x: x + 1)),
]
