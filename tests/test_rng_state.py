"""Seeds and generator states: 16 bytes (seed, offset), on the host, the same through every door."""

from __future__ import annotations

import struct

import pytest
import torch


def unpack(state: torch.Tensor) -> tuple[int, int]:
    return struct.unpack("<QQ", bytes(state.tolist()))


# On a stand-in ------------------------------------------------------------------------------------


def test_seed_and_state(stub_tpu):
    stub_tpu.manual_seed_all(5)
    assert stub_tpu.initial_seed() == 5
    assert [unpack(state) for state in stub_tpu.get_rng_state_all()] == [(5, 0), (5, 0)]
    stub_tpu.set_rng_state(torch.tensor([1] + [0] * 15, dtype=torch.uint8), 1)
    assert unpack(stub_tpu.get_rng_state(1)) == (1, 0)
    stub_tpu.set_rng_state_all([torch.zeros(16, dtype=torch.uint8)] * 2)
    assert unpack(stub_tpu.get_rng_state(1)) == (0, 0)
    stub_tpu.manual_seed(-1)
    assert stub_tpu.initial_seed() == 2**64 - 1
    stub_tpu.seed_all()
    assert len({unpack(state)[0] for state in stub_tpu.get_rng_state_all()}) == 1


def test_wrong_states_and_seeds(stub_tpu):
    with pytest.raises(RuntimeError, match="16 bytes"):
        stub_tpu.set_rng_state(torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(TypeError, match="ByteTensor"):
        stub_tpu.set_rng_state(torch.zeros(16))
    with pytest.raises(RuntimeError, match="Overflow"):
        stub_tpu.manual_seed(2**64)


# On the device ------------------------------------------------------------------------------------


def test_torch_manual_seed_reaches_the_device(tpu):
    torch.manual_seed(123)
    assert tpu.initial_seed() == 123
    a = torch.randn(100, device="tpu").cpu()
    torch.manual_seed(123)
    b = torch.randn(100, device="tpu").cpu()
    assert torch.equal(a, b)
    assert not torch.equal(b, torch.randn(100, device="tpu").cpu())


def test_state_restores_the_sequence(tpu):
    tpu.manual_seed(1)
    torch.rand(7, device="tpu")
    state = tpu.get_rng_state()
    assert state.numel() == 16
    assert unpack(state)[1] > 0
    a = torch.rand(50, device="tpu").cpu()
    tpu.set_rng_state(state)
    assert torch.equal(a, torch.rand(50, device="tpu").cpu())


def test_fork_rng(tpu):
    tpu.manual_seed(9)
    before = tpu.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.rand(5, device="tpu")
        tpu.manual_seed(10)
    assert torch.equal(before, tpu.get_rng_state())


def test_generators(tpu):
    generator = torch.Generator(device="tpu").manual_seed(4)
    assert generator.device.type == "tpu"
    a = torch.rand(20, device="tpu", generator=generator).cpu()
    copy = torch.Generator(device="tpu")
    copy.set_state(torch.tensor(list(struct.pack("<QQ", 4, 0)), dtype=torch.uint8))
    assert torch.equal(a, torch.rand(20, device="tpu", generator=copy).cpu())
    assert torch.equal(generator.get_state(), copy.get_state())
    default = torch.tpu.default_generators[0]
    default.manual_seed(31)
    assert tpu.initial_seed() == 31
    clone = default.clone_state()
    assert clone.initial_seed() == 31


def test_seeds_share_a_program(tpu):
    tpu.manual_seed(1)
    torch.rand(33, device="tpu")
    with tpu.freeze_compiles():
        for seed in range(5):
            tpu.manual_seed(seed)
            torch.rand(33, device="tpu")


def test_dropout_repeats_under_the_seed(tpu):
    x = torch.ones(1000, device="tpu")
    tpu.manual_seed(3)
    a = torch.nn.functional.dropout(x, 0.5).cpu()
    tpu.manual_seed(3)
    assert torch.equal(a, torch.nn.functional.dropout(x, 0.5).cpu())
    assert 300 < (a == 0).sum() < 700
