"""Devices: how many there are, which is current, what they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import torch

from .. import _core
from ._index import Device, device_index

_T = TypeVar("_T", bound=Callable[..., Any])


def is_available() -> bool:
    """Whether a device can be used. Starts nothing, so that it is safe before a fork."""
    return _core.device_count() > 0


def device_count() -> int:
    """Number of devices of this process. Starts nothing."""
    return _core.device_count()


def is_initialized() -> bool:
    """Whether the PJRT client runs in this process."""
    return _core.is_initialized()


def init() -> None:
    """Start the PJRT client. Done by the first use of the device; call it to pay for it at a chosen time.

    RuntimeError when there is no usable plugin, or in a child forked after the parent had started the client.
    """
    _lazy_init()


def _lazy_init() -> None:
    if _core.is_initialized():
        return
    if _core.in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, "
            "you must use the 'spawn' start method"
        )
    _core.init()


def _is_in_bad_fork() -> bool:
    return _core.in_bad_fork()


def current_device() -> int:
    """Index of the device that new tensors on "tpu" go to."""
    return _core.current_device()


def set_device(device: Device) -> None:
    """Make `device` current for this thread. Prefer the context manager `torch.tpu.device`. A negative index
    is a no-op.
    """
    index = device_index(device)
    if index >= 0:
        _core.set_device(index)


def _exchange_device(device: int) -> int:
    return _core.exchange_device(device) if device >= 0 else -1


def _maybe_exchange_device(device: int) -> int:
    return _core.exchange_device(device) if device >= 0 else -1


class device:
    """Make a device current within a block. None and negative indices change nothing.

    Usable as a decorator too.
    """

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = _exchange_device(self.idx)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _maybe_exchange_device(self.prev_idx)

    def __call__(self, function: _T) -> _T:
        @wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self.idx):
                return function(*args, **kwargs)

        return inner  # type: ignore[return-value]


class device_of(device):
    """Make the device of a tensor or storage current within a block; an object that is not on a tpu changes
    nothing.
    """

    def __init__(self, obj: Any) -> None:
        place = getattr(obj, "device", None)
        on_tpu = isinstance(place, torch.device) and place.type == "tpu"
        super().__init__(place if on_tpu else None)


def synchronize(device: Device = None) -> None:
    """Wait until everything submitted to `device` is done, and raise the first error that happened there."""
    _core.synchronize(device_index(device))


@dataclass(frozen=True)
class DeviceProperties:
    """What the plugin says about a device.

    name: kind of device, "TPU v5 lite" or "cpu". total_memory: bytes. platform: PJRT platform name.
    float64: "native", or "emulated" where the hardware has none. major: the TPU generation, 0 for others.
    multi_processor_count: always 1; PJRT has no such number and PyTorch reads it for scheduling hints.
    """

    name: str
    total_memory: int
    platform: str
    platform_version: str
    api_version: str
    major: int
    minor: int
    float64: str
    multi_processor_count: int = 1
    attributes: dict[str, Any] = field(default_factory=dict, compare=False)


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Properties of `device`. Starts the client."""
    index = device_index(device)
    info, plugin = _core.device_info(index), _core.plugin_info()
    generation = re.search(r"(?:TPU ?v?|v)(\d+)", info["name"], re.IGNORECASE)
    return DeviceProperties(
        name=info["name"],
        total_memory=info["total_memory"],
        platform=plugin["platform_name"],
        platform_version=plugin["platform_version"],
        api_version=plugin["api_version"],
        major=int(generation[1]) if generation else 0,
        minor=0,
        float64=info["float64"],
        attributes={**plugin.get("attributes", {}), **info.get("attributes", {})},
    )


def get_device_name(device: Device = None) -> str:
    """The plugin's name for the kind of device, for example "TPU v5 lite". Starts the client."""
    return _core.device_info(device_index(device))["name"]


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """(TPU generation, 0), for example (5, 0); (0, 0) for a device that is not a TPU. Starts the client."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bfloat16 works on every PJRT device."""
    return True


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether two devices can copy to each other without the host; always False: PJRT does not say."""
    device_index(device), device_index(peer_device)
    return False


def get_arch_list() -> list[str]:
    """Architectures that this build has code for: none, programs are compiled for the device at run time."""
    return []
