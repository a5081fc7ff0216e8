"""`torch.tpu` behaves as torch.cuda does: first against a stand-in for the core, then on the device."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

# The functions of the module, on a stand-in -------------------------------------------------------


def test_device_context_managers(stub_tpu):
    tpu = stub_tpu
    assert tpu.device_count() == 2
    assert tpu.is_available()
    assert tpu.current_device() == 0
    with tpu.device(1):
        assert tpu.current_device() == 1
        with tpu.device("cpu") if False else tpu.device(None):
            assert tpu.current_device() == 1
    assert tpu.current_device() == 0
    with pytest.raises(KeyError), tpu.device(1):
        raise KeyError
    assert tpu.current_device() == 0
    with tpu.device_of(torch.ones(1)):
        assert tpu.current_device() == 0

    @tpu.device(1)
    def inner():
        return tpu.current_device()

    assert inner() == 1
    tpu.set_device(1)
    assert tpu.current_device() == 1
    tpu.set_device(-1)
    assert tpu.current_device() == 1


def test_device_arguments(stub_tpu):
    from torch_pjrt.tpu._index import device_index

    stub_tpu.set_device(1)
    assert device_index(None) == 1
    assert device_index(0) == 0
    with pytest.raises(ValueError, match="Expected a tpu device"):
        device_index("cpu")
    with pytest.raises(ValueError, match="Expected a tpu device"):
        device_index(torch.device("cpu"))
    with pytest.raises(TypeError, match="Expected a torch"):
        device_index(1.5)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        stub_tpu.synchronize(7)


def test_bad_fork_has_cudas_words(stub_tpu, stub_core_module):
    stub_tpu.init()
    assert stub_tpu.is_initialized()
    stub_core_module.state.forked = True
    assert stub_tpu._is_in_bad_fork()
    with pytest.raises(RuntimeError, match=r"Cannot re-initialize TPU in forked subprocess.*'spawn'"):
        stub_tpu.init()


def test_no_device_names_the_fix(stub_tpu, stub_core_module):
    stub_core_module.state.devices = 0
    stub_core_module.state.message = "torch-pjrt has no device: Fix: pip install"
    assert not stub_tpu.is_available()
    with pytest.raises(RuntimeError, match="pip install"):
        stub_tpu.init()
    stub_tpu.manual_seed_all(1)  # silently ignored, as on CUDA
    stub_tpu.manual_seed(1)


def test_properties(stub_tpu):
    assert stub_tpu.get_device_name() == "TPU v5 lite"
    properties = stub_tpu.get_device_properties(1)
    assert properties.total_memory == 1000
    assert properties.platform == "cpu"
    assert stub_tpu.get_device_capability() == (5, 0)
    assert stub_tpu.is_bf16_supported()
    assert torch.bfloat16 in stub_tpu.get_amp_supported_dtype()


def test_memory_statistics(stub_tpu, stub_core_module):
    assert stub_tpu.memory_allocated() == 100
    assert stub_tpu.max_memory_allocated(1) == 200
    stats = stub_tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == 100
    assert stats["reserved_bytes.all.peak"] == 200
    assert stats["num_ooms"] == 0
    assert stub_tpu.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"] == 200
    assert stub_tpu.mem_get_info() == (900, 1000)
    assert "Allocated memory" in stub_tpu.memory_summary()
    stub_tpu.set_per_process_memory_fraction(0.5)
    assert stub_core_module.state.limits == {0: 500}
    assert stub_tpu.get_per_process_memory_fraction() == 0.5
    stub_tpu.set_per_process_memory_fraction(1.0)
    assert stub_core_module.state.limits == {0: None}
    with pytest.raises(TypeError):
        stub_tpu.set_per_process_memory_fraction(1)
    with pytest.raises(ValueError, match="0~1"):
        stub_tpu.set_per_process_memory_fraction(1.5)
    with pytest.raises(ValueError, match="negative"):
        stub_tpu.set_memory_limit(-1)
    with pytest.raises(TypeError):
        stub_tpu.set_memory_limit("1")


@pytest.mark.parametrize(
    "name",
    [
        "utilization",
        "temperature",
        "power_draw",
        "clock_rate",
        "memory_usage",
        "list_gpu_processes",
    ],
)
def test_what_pjrt_does_not_know_says_so(stub_tpu, name):
    with pytest.raises(NotImplementedError, match=rf"torch\.tpu\.{name} is not implemented"):
        getattr(stub_tpu, name)()


@pytest.mark.parametrize(
    ("setter", "getter", "values", "wrong"),
    [
        ("set_fallback", "get_fallback", ["error", "allow"], "maybe"),
        ("eager_mode", "eager_mode", ["debug", "strict"], "fast"),
    ],
)
def test_settings_are_functions_and_context_managers(stub_tpu, setter, getter, values, wrong):
    setter, getter = getattr(stub_tpu, setter), getattr(stub_tpu, getter)
    before = getter()
    with setter(values[0]):
        assert getter() == values[0]
        with setter(values[1]):
            assert getter() == values[1]
        assert getter() == values[0]
    assert getter() == before
    setter(values[0])
    assert getter() == values[0]
    with pytest.raises(ValueError, match=wrong):
        setter(wrong)


def test_frozen_compiles_are_restored(stub_tpu, stub_core_module):
    with stub_tpu.freeze_compiles():
        assert stub_core_module.state.frozen
    assert not stub_core_module.state.frozen


def test_every_name_of_all_exists(stub_tpu):
    for name in stub_tpu.__all__:
        if name != "default_generators":
            assert hasattr(stub_tpu, name), name


# On the device ------------------------------------------------------------------------------------


def test_the_device_is_there(tpu):
    assert torch.tpu is tpu
    assert torch.device("tpu").type == "tpu"
    assert tpu.is_available()
    assert tpu.device_count() >= 1
    assert tpu.get_device_name()
    assert tpu.get_device_properties().total_memory > 0


def test_moving_with_the_methods_of_cuda(tpu):
    x = torch.arange(6.0).view(2, 3)
    y = x.tpu()
    assert y.is_tpu
    assert y.device == torch.device("tpu", 0)
    torch.testing.assert_close(y.cpu(), x)
    module = torch.nn.Linear(3, 2).tpu()
    assert module.weight.is_tpu
    storage = x.untyped_storage().tpu()
    assert storage.is_tpu


def test_invalid_device_ordinal(tpu):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        tpu.set_device(99)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="tpu:99")


def test_memory_follows_tensors(tpu):
    tpu.synchronize()
    before = tpu.memory_allocated()
    tpu.reset_peak_memory_stats()
    x = torch.ones(1024, 256, device="tpu")
    tpu.synchronize()
    assert tpu.memory_allocated() - before == 1024 * 256 * 4
    assert tpu.max_memory_allocated() >= before + 1024 * 256 * 4
    del x
    tpu.synchronize()
    assert tpu.memory_allocated() == before
    free, total = tpu.mem_get_info()
    assert 0 < free <= total


def test_out_of_memory_is_torchs_and_recoverable(tpu):
    tpu.set_memory_limit(tpu.memory_allocated() + 2**20)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(2**20, device="tpu")
        small = torch.ones(2**10, device="tpu")
        assert small.sum().item() == 2**10
    finally:
        tpu.set_memory_limit(None)
    assert torch.ones(2**20, device="tpu").sum().item() == 2**20
    assert tpu.memory_stats()["num_ooms"] >= 1


def test_stats_count(tpu):
    tpu.reset_stats()
    x = torch.ones(3, 5, device="tpu")
    (x + 1).cpu()
    stats = tpu.stats()
    for key in (
        "compiles",
        "cache_hits",
        "disk_hits",
        "fallbacks",
        "host_kernels",
        "host_transfers",
        "executions",
    ):
        assert isinstance(stats[key], int), key
    assert stats["executions"] >= 1
    assert stats["host_transfers"] >= 1
    other = torch.ones(3, 41, device="tpu")
    with tpu.freeze_compiles():
        (x + 1).cpu()
        with pytest.raises(RuntimeError, match="add"):
            other + 1


def test_debug_mode_raises_at_the_line(tpu):
    with tpu.eager_mode("debug"):
        x = torch.ones(3, device="tpu")
        with pytest.raises(IndexError):
            x[torch.tensor([7], device="tpu")]


def test_autocast_defaults_to_bfloat16(tpu):
    x, w = torch.randn(4, 8, device="tpu"), torch.randn(8, 2, device="tpu")
    with torch.autocast("tpu"):
        assert (x @ w).dtype == torch.bfloat16
    with tpu.amp.autocast(dtype=torch.float16):
        assert (x @ w).dtype == torch.float16


def test_use_without_a_plugin_names_the_fix(tpu):
    # A path that does not exist leaves the device without a plugin.
    source = "import torch\ntry: torch.ones(1, device='tpu')\nexcept RuntimeError as e: print('ERROR', e)"
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True, text=True, timeout=120,
        env={**__import__("os").environ, "TORCH_PJRT_PLUGIN": "/no/such/plugin.so"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ERROR" in done.stdout
    assert "/no/such/plugin.so" in done.stdout
    assert done.stderr.count("torch-pjrt:") == 1
