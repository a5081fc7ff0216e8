"""Every function of torch.accelerator answers for `tpu`, or raises a NotImplementedError that says so."""

from __future__ import annotations

import warnings

import pytest
import torch

CALLS = {
    "current_accelerator": (),
    "current_device_idx": (),
    "current_device_index": (),
    "get_device_capability": (),
    "current_stream": (),
    "device_count": (),
    "empty_cache": (),
    "empty_host_cache": (),
    "get_memory_info": (),
    "is_available": (),
    "max_memory_allocated": (),
    "max_memory_reserved": (),
    "memory_allocated": (),
    "memory_reserved": (),
    "memory_stats": (),
    "reset_accumulated_memory_stats": (),
    "reset_peak_memory_stats": (),
    "set_device_idx": (0,),
    "set_device_index": (0,),
    "synchronize": (),
    "device_index": (0,),
    "Graph": (),
}


def test_the_list_is_complete():
    assert set(torch.accelerator.__all__) - set(CALLS) == {"set_stream"}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_answers_or_says_that_it_does_not(tpu, name):
    torch.ones(1, device="tpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            getattr(torch.accelerator, name)(*CALLS[name])
        except NotImplementedError as error:
            assert str(error)


def test_answers_agree_with_torch_tpu(tpu):
    x = torch.ones(1000, device="tpu")
    acc = torch.accelerator
    assert acc.current_accelerator() == torch.device("tpu")
    assert acc.is_available()
    assert acc.device_count() == tpu.device_count()
    assert acc.current_device_index() == tpu.current_device()
    assert acc.memory_allocated() == tpu.memory_allocated() > 0
    assert acc.max_memory_allocated() == tpu.max_memory_allocated()
    assert acc.memory_stats()["allocated_bytes.all.current"] == tpu.memory_allocated()
    assert acc.get_memory_info()[1] == tpu.mem_get_info()[1]
    assert torch.float32 in acc.get_device_capability()["supported_dtypes"]
    assert acc.current_stream() == tpu.current_stream()
    del x


def test_set_stream(tpu):
    before = tpu.current_stream()
    stream = torch.Stream(device="tpu")
    torch.accelerator.set_stream(stream)
    try:
        assert tpu.current_stream().stream_id == stream.stream_id
    finally:
        torch.accelerator.set_stream(before)


def test_device_index_context(tpu):
    last = tpu.device_count() - 1
    with torch.accelerator.device_index(last):
        assert tpu.current_device() == last
    assert tpu.current_device() == 0


def test_random_state_through_the_accelerator(tpu):
    tpu.manual_seed(77)
    assert torch.accelerator.random.initial_seed() == 77
    assert torch.equal(torch.accelerator.random.get_rng_state(), tpu.get_rng_state())
