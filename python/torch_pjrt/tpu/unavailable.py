"""Functions of torch.cuda that PJRT has no counterpart for: they say so instead of guessing."""

from __future__ import annotations

from typing import Any, NoReturn


def _unavailable(name: str, what: str) -> Any:
    def function(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"torch.tpu.{name} is not implemented: PJRT does not report {what}")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Not available: PJRT does not report {what}."
    return function


utilization = _unavailable("utilization", "how busy a device is")
temperature = _unavailable("temperature", "temperatures")
power_draw = _unavailable("power_draw", "power")
clock_rate = _unavailable("clock_rate", "clock rates")
memory_usage = _unavailable("memory_usage", "memory bandwidth in use")
list_gpu_processes = _unavailable("list_gpu_processes", "other processes on a device")
