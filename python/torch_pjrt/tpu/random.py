"""Random numbers: the seed and the 16-byte state (seed, offset) of each device's default generator.

The state lives on the host, so nothing here starts the client: seeding works in a forked child and before the
first use of the device.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import torch
from torch import Tensor

from .. import _core
from ._index import Device, device_index


def _unsigned(seed: int) -> int:
    """The seed as torch.manual_seed takes it: -2**63 to 2**64 - 1, negative ones wrapping around."""
    seed = int(seed)
    if not -(2**63) <= seed < 2**64:
        raise RuntimeError(
            f"Overflow when unpacking long long: the seed {seed} is outside [-2**63, 2**64 - 1]"
        )
    return seed % 2**64


def manual_seed(seed: int) -> None:
    """Seed the current device's generator. Ignored when there is no device."""
    seed = _unsigned(seed)
    if _core.device_count():
        _core.default_generator_seed(_core.current_device(), seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices. Ignored when there is no device."""
    seed = _unsigned(seed)
    for index in range(_core.device_count()):
        _core.default_generator_seed(index, seed)


def seed() -> None:
    """Seed the current device's generator with a random number."""
    manual_seed(secrets.randbits(53))


def seed_all() -> None:
    """Seed the generators of all devices with one random number."""
    manual_seed_all(secrets.randbits(53))


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return int.from_bytes(_core.get_rng_state(_core.current_device())[:8], "little")


def get_rng_state(device: Device = "tpu") -> Tensor:
    """State of a device's generator: a CPU ByteTensor of 16 elements, seed u64 then offset u64, little
    endian.
    """
    return torch.frombuffer(bytearray(_core.get_rng_state(device_index(device))), dtype=torch.uint8)


def get_rng_state_all() -> list[Tensor]:
    """States of all devices' generators."""
    return [get_rng_state(index) for index in range(_core.device_count())]


def set_rng_state(new_state: Tensor, device: Device = "tpu") -> None:
    """Set the state of a device's generator to what `get_rng_state` gave.

    TypeError unless a CPU ByteTensor, RuntimeError unless it has 16 elements.
    """
    if not isinstance(new_state, Tensor) or new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
        raise TypeError("expected a torch.ByteTensor on the CPU as RNG state")
    if new_state.numel() != 16:
        raise RuntimeError(
            f"RNG state is wrong size: expected 16 bytes (seed, offset), got {new_state.numel()}"
        )
    _core.set_rng_state(device_index(device), bytes(new_state.flatten().tolist()))


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Set the states of all devices' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def default_generators() -> tuple[torch.Generator, ...]:
    """The default generator of each device, as `torch.tpu.default_generators` shows them."""
    return tuple(torch._C._accelerator_getDefaultGenerator(index) for index in range(_core.device_count()))
