"""Streams and events, ordered on the host; they mean what they mean on CUDA."""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from ._index import Device, device_index

_TPU_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


class Stream(torch.Stream):
    """A queue of work on one device, in order in itself and independent of other streams.

    device: the current one by default. priority: lower runs first; a hint.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        """A new stream, or with stream_id, device_index and device_type the existing one that they name."""
        if "stream_id" in kwargs and "device_index" in kwargs:
            kwargs.setdefault("device_type", _TPU_DEVICE_TYPE)
            return super().__new__(cls, priority=priority, **kwargs)
        place = torch.device("tpu", device_index(device))
        return super().__new__(cls, device=place, priority=priority, **kwargs)

    def wait_event(self, event: torch.Event) -> None:
        """Make work submitted to this stream from now on wait for `event`."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Make work submitted to this stream from now on wait for all work submitted to `stream` so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record `event`, or a new one, at the end of what this stream has, and return it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device={self.device}, stream_id={self.stream_id})"


class _EventType(type):
    """Makes `Event(...)` a plain `torch.Event` of the device: PyTorch takes no subclass as the other event of
    `elapsed_time`.
    """

    def __call__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError(
                "torch.tpu.Event(interprocess=True) is not implemented: PJRT events are of one process"
            )
        return torch.Event(device=torch.device("tpu"), enable_timing=enable_timing, blocking=blocking)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "tpu"


class Event(metaclass=_EventType):
    """A mark in a stream, to wait for or to measure time between; not recorded yet.

    enable_timing: keep the time, for `elapsed_time`. blocking: accepted, waiting never spins.
    interprocess: NotImplementedError, PJRT has no events between processes.
    """


def _stream(device: int, stream_id: int) -> Stream:
    return Stream(stream_id=stream_id, device_index=device, device_type=_TPU_DEVICE_TYPE)


def current_stream(device: Device = None) -> Stream:
    """The stream that work for `device` goes to."""
    index = device_index(device)
    return _stream(index, _core.current_stream(index))


def default_stream(device: Device = None) -> Stream:
    """The stream that is current until another is set."""
    return _stream(device_index(device), 0)


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` and its device current. None changes nothing. Prefer the context manager
    `torch.tpu.stream`.
    """
    if stream is None:
        return
    _check(stream)
    _core.set_device(stream.device_index)
    _core.exchange_stream(stream.device_index, stream.stream_id)


def _check(stream: Any) -> None:
    if not isinstance(stream, torch.Stream):
        raise TypeError(f"expected a torch.Stream, got {type(stream).__name__}")
    if stream.device.type != "tpu":
        raise ValueError(f"expected a stream of a tpu device, but got one of {stream.device}")


class StreamContext:
    """Make a stream and its device current within a block; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        if stream is not None:
            _check(stream)
        self.stream = stream
        self._previous: list[tuple[int, int]] = []

    def __enter__(self) -> None:
        if self.stream is None:
            return
        index = self.stream.device_index
        previous_device = _core.exchange_device(index)
        self._previous.append((previous_device, _core.exchange_stream(index, self.stream.stream_id)))

    def __exit__(self, *exc_info: object) -> None:
        if self.stream is None:
            return
        previous_device, previous_stream = self._previous.pop()
        _core.exchange_stream(self.stream.device_index, previous_stream)
        _core.exchange_device(previous_device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that makes `stream` current."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Always False: there are no captured graphs on this device."""
    return False
