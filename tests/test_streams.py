"""Streams and events mean what they mean on CUDA."""

from __future__ import annotations

import pytest
import torch


def test_current_and_default(tpu):
    assert tpu.current_stream() == tpu.default_stream()
    assert isinstance(tpu.current_stream(), tpu.Stream)
    assert tpu.current_stream().device == torch.device("tpu", 0)


def test_stream_context(tpu):
    stream = tpu.Stream()
    before = tpu.current_stream()
    assert stream != before
    with tpu.stream(stream):
        assert tpu.current_stream() == stream
        with tpu.stream(None):
            assert tpu.current_stream() == stream
    assert tpu.current_stream() == before
    with stream:
        assert tpu.current_stream() == stream
    assert tpu.current_stream() == before
    tpu.set_stream(stream)
    assert tpu.current_stream() == stream
    tpu.set_stream(before)
    tpu.set_stream(None)
    assert tpu.current_stream() == before


def test_nested_use_of_one_context(tpu):
    context = tpu.stream(tpu.Stream())
    before = tpu.current_stream()
    with context, context:
        pass
    assert tpu.current_stream() == before


def test_foreign_streams_are_refused(tpu):
    with pytest.raises(TypeError, match="expected a torch"):
        tpu.set_stream(3)


def test_work_on_two_streams_is_ordered_by_waiting(tpu):
    stream = tpu.Stream()
    x = torch.arange(1000.0, device="tpu")
    stream.wait_stream(tpu.current_stream())
    with tpu.stream(stream):
        y = x * 2
        y.record_stream(stream)
    tpu.current_stream().wait_stream(stream)
    assert torch.equal((y + 1).cpu(), torch.arange(1000.0) * 2 + 1)
    stream.synchronize()
    assert stream.query()


def test_events(tpu):
    start, end = tpu.Event(enable_timing=True), tpu.Event(enable_timing=True)
    start.record()
    x = torch.randn(256, 256, device="tpu")
    for _ in range(5):
        x = x @ x
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    event = tpu.current_stream().record_event()
    assert isinstance(event, tpu.Event)
    event.wait(tpu.Stream())
    tpu.Stream().wait_event(event)


def test_timing_must_have_been_asked_for(tpu):
    start, end = tpu.Event(), tpu.Event()
    start.record()
    end.record()
    with pytest.raises((RuntimeError, ValueError)):
        start.elapsed_time(end)


def test_interprocess_events_say_no(tpu):
    with pytest.raises(NotImplementedError, match="interprocess"):
        tpu.Event(interprocess=True)


def test_generic_streams_work_too(tpu):
    stream = torch.Stream(device="tpu")
    event = torch.Event(device="tpu", enable_timing=True)
    with stream:
        event.record(stream)
    event.synchronize()
    assert stream.device.type == "tpu"
