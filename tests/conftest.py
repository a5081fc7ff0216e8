"""Fixtures of the device and of its stand-in."""

from __future__ import annotations

import importlib
import os
import sys

import pytest
import stub_core


@pytest.fixture(scope="session")
def tpu():
    """`torch.tpu` of the real device. Its absence is a failure, unless TORCH_PJRT_TESTS=host."""
    import torch

    if not (hasattr(torch, "tpu") and torch.tpu.is_available()):
        if os.environ.get("TORCH_PJRT_TESTS") == "host":
            pytest.skip("needs the device")
        pytest.fail("the device `tpu` is not available: run `torch-pjrt doctor`")
    return torch.tpu


@pytest.fixture
def no_fallback(tpu):
    """An operator without a lowering is an error."""
    with tpu.set_fallback("error"):
        yield


@pytest.fixture
def stub_core_module():
    """A stand-in for the Rust extension with two devices."""
    core = stub_core.make()
    core.initialize("shim", num_devices=2, no_plugin_message="")
    return core


@pytest.fixture
def stub_tpu(monkeypatch, stub_core_module):
    """The module `torch.tpu` over the stand-in."""
    if "torch_pjrt._core" not in sys.modules:
        try:
            importlib.import_module("torch_pjrt._core")
        except ImportError:
            monkeypatch.setitem(sys.modules, "torch_pjrt._core", stub_core_module)
    tpu = importlib.import_module("torch_pjrt.tpu")
    for name in (*tpu.SUBMODULES, "_index", "_memory_history"):
        module = importlib.import_module(f"torch_pjrt.tpu.{name}")
        if hasattr(module, "_core"):
            monkeypatch.setattr(module, "_core", stub_core_module)
    return tpu
