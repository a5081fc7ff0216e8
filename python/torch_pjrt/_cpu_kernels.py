"""Kernels that PyTorch registers for the CPU and that hold for every device, because they only call others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def kernel_of_the_cpu(name: str, key: str) -> Callable[..., Any]:
    """That of an ATen operator. key: the device's dispatch key, of which the CPU's is the counterpart."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    cpu = getattr(torch._C.DispatchKey, key.replace("PrivateUse1", "CPU"))
    return functools.partial(operator.redispatch, torch._C.DispatchKeySet(cpu))


KERNELS = [
    (name, kernel_of_the_cpu(name, "PrivateUse1"), "PrivateUse1")
    for name in ("is_set_to", "set_.source_Tensor", "set_.source_Storage")
]
