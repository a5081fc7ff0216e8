"""Automatic mixed precision on `tpu`."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_amp_supported_dtype"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that torch.autocast may run operators in; bfloat16 is the default."""
    return [torch.bfloat16, torch.float16]


class autocast(torch.amp.autocast_mode.autocast):
    """`torch.autocast("tpu")` with bfloat16 as the default dtype."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool = True
    ) -> None:
        super().__init__("tpu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("tpu")`: needed for float16 only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("tpu", *args, **kwargs)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="tpu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="tpu")
