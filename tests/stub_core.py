"""A stand-in for the Rust extension: enough to run the facade where the extension is not built."""

from __future__ import annotations

import sys
import types


def make(devices: int = 2) -> types.ModuleType:
    """A module with the functions of `_core.pyi` that the facade calls, keeping their state in Python."""
    core = types.ModuleType("torch_pjrt._core")
    state = types.SimpleNamespace(
        devices=0,
        current=0,
        fallback="warn",
        mode="strict",
        frozen=False,
        started=False,
        forked=False,
        streams={},
        rng={},
        limits={},
        message="",
        initialized_with=None,
    )
    core.state = state

    def initialize(shim_path, **options):
        state.initialized_with = (shim_path, options)
        state.devices = options["num_devices"]
        state.message = options["no_plugin_message"]

    def check(index):
        if not 0 <= index < state.devices:
            raise RuntimeError(f"invalid device ordinal {index}")

    def init():
        if not state.devices:
            raise RuntimeError(state.message)
        state.started = True

    def exchange_device(index):
        if index < 0:
            return state.current
        check(index)
        previous, state.current = state.current, index
        return previous

    def exchange(name, allowed=None):
        def function(value):
            if allowed is not None and value not in allowed:
                raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
            previous = getattr(state, name)
            setattr(state, name, value)
            return previous

        return function

    def set_rng_state(index, data):
        if len(data) != 16:
            raise ValueError("the state has 16 bytes")
        state.rng[index] = data

    def exchange_stream(index, stream):
        check(index)
        previous = state.streams.get(index, 0)
        state.streams[index] = stream
        return previous

    keys = (
        "allocated_current allocated_peak allocated_total freed_total free_bytes total_bytes "
        "limit host_pinned blocks_current blocks_peak blocks_total blocks_freed ooms"
    )

    def memory_stats(index):
        check(index)
        stats = dict.fromkeys(keys.split(), 0)
        stats.update(
            total_bytes=1000,
            free_bytes=900,
            allocated_current=100,
            allocated_peak=200,
            limit=state.limits.get(index) or 0,
        )
        return stats

    core.initialize = initialize
    core.init = init
    core.is_initialized = lambda: state.started and not state.forked
    core.in_bad_fork = lambda: state.forked
    core.after_fork_in_child = lambda: setattr(state, "forked", state.started)
    core.device_count = lambda: state.devices
    core.current_device = lambda: state.current
    core.set_device = lambda index: (check(index), setattr(state, "current", index))[1]
    core.exchange_device = exchange_device
    core.synchronize = check
    core.plugin_info = lambda: dict(
        name="cpu", path="/p", api_version="0.106", platform_name="cpu", platform_version="1", attributes={}
    )
    core.device_info = lambda index: (
        check(index),
        dict(
            name="TPU v5 lite",
            description="",
            id=index,
            local_hardware_id=index,
            process_index=0,
            total_memory=1000,
            float64="native",
            attributes={},
        ),
    )[1]
    core.memory_stats = memory_stats
    core.reset_peak_memory_stats = check
    core.reset_accumulated_memory_stats = check
    core.set_memory_limit = lambda index, limit: state.limits.__setitem__(index, limit)
    core.empty_cache = lambda: None
    core.default_generator_seed = lambda i, seed: state.rng.__setitem__(
        i, seed.to_bytes(8, "little") + bytes(8)
    )
    core.get_rng_state = lambda index: state.rng.get(index, bytes(16))
    core.set_rng_state = set_rng_state
    core.current_stream = lambda index: state.streams.get(index, 0)
    core.exchange_stream = exchange_stream
    core.stats = lambda: dict.fromkeys(
        ["compiles", "cache_hits", "disk_hits", "fallbacks", "host_kernels", "host_transfers", "executions"],
        0,
    )
    core.reset_stats = lambda: None
    core.set_fallback = exchange("fallback", ("error", "warn", "allow"))
    core.get_fallback = lambda: state.fallback
    core.set_eager_mode = exchange("mode", ("debug", "strict"))
    core.eager_mode = lambda: state.mode
    core.freeze_compiles = exchange("frozen")
    core.wait_compiles = lambda: None
    core.set_tracer = lambda *hooks: setattr(state, "tracer", hooks)
    core.native_ops = list
    core.core_version = lambda: "0.1.0"
    core.lowering_version = lambda: "0" * 64
    core.cache_info = lambda: dict(path="/c", enabled=True, entries=3, bytes=2048, refused=None)
    core.clear_cache = lambda: 3
    return core


def install(devices: int = 2) -> types.ModuleType:
    """Make `import torch_pjrt._core` give the stand-in."""
    core = sys.modules["torch_pjrt._core"] = make(devices)
    return core
