"""Training steps of ten models on the device against the CPU: same parameters, same batch, five losses.

Nothing may fall back to the host, in either form of the optimizer.
"""

from __future__ import annotations

import copy

import pytest
import torch
import training_models

STEPS = 5

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_fallback")]


def losses(name: str, *, fused: bool, autocast: bool) -> tuple[list[float], list[float]]:
    """On the device and on the CPU."""
    pytest.importorskip("transformers")
    model, batch = training_models.make(name)
    want = training_models.train(copy.deepcopy(model), batch, STEPS, fused=fused, autocast=autocast)
    before = torch.tpu.stats()
    got = training_models.train(model.to("tpu"), batch, STEPS, fused=fused, autocast=autocast)
    after = torch.tpu.stats()
    assert after["fallbacks"] == before["fallbacks"]
    assert after["host_kernels"] == before["host_kernels"]
    assert want[-1] < want[0]
    return got, want


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("name", training_models.MODELS)
def test_losses_in_float32(name, fused):
    got, want = losses(name, fused=fused, autocast=False)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-4, atol=0)


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("name", training_models.MODELS)
def test_losses_under_autocast(name, fused):
    """bfloat16 keeps 8 bits, so that one rounding moves a logit by up to 2^-9 of its size, and CPU and device round in
    different places. A loss is a mean, in which roundings cancel: they may differ by 2^-8, one unit in the last place.
    """
    got, want = losses(name, fused=fused, autocast=True)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=2**-8, atol=0)
