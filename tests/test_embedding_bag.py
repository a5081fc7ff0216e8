"""Bags of embeddings and the norm of embeddings on the device against the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from gradients import compare

pytestmark = pytest.mark.usefixtures("no_fallback")
F = torch.nn.functional

MODES = ("sum", "mean", "max")
INDICES = torch.tensor([1, 2, 2, 5, 0, 3, 1, 4, 4])
OFFSETS = torch.tensor([0, 3, 3, 4, 9])


def table(dtype=torch.float32):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(dtype)


def bag(mode, **options):
    def call(weight, indices=INDICES, offsets=OFFSETS, samples=None):
        indices, offsets = indices.to(weight.device), offsets.to(weight.device)
        return F.embedding_bag(indices, weight, offsets, mode=mode, per_sample_weights=samples, **options)

    return call


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bags(mode, dtype):
    compare(bag(mode), table(dtype))
    compare(lambda x: bag(mode)(x, INDICES.int(), OFFSETS.int()), table(dtype))
    compare(bag(mode, include_last_offset=True), table(dtype))


@pytest.mark.parametrize(("mode", "padding"), [*itertools.product(MODES, (2, 4, -1))])
def test_padding(mode, padding):
    compare(bag(mode, padding_idx=padding), table())


@pytest.mark.parametrize("mode", MODES)
def test_matrix_of_bags(mode):
    compare(lambda x: F.embedding_bag(INDICES.view(3, 3).to(x.device), x, mode=mode), table())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_scaled_by_frequency(mode):
    compare(bag(mode, scale_grad_by_freq=True), table())


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_samples(padding, dtype):
    samples = torch.linspace(-1, 1, 9).to(dtype)
    compare(lambda x, samples: bag("sum", padding_idx=padding)(x, samples=samples), table(dtype), samples)


@pytest.mark.parametrize("mode", MODES)
def test_no_indices(mode):
    compare(lambda x: bag(mode)(x, INDICES[:0], OFFSETS[:1]), table())
    compare(lambda x: bag(mode)(x, INDICES[:0], torch.zeros(3, dtype=torch.int64)), table())


@pytest.mark.parametrize("row", [1, 2, 4, 5])
def test_maxima_of_nan(row):
    weight = table()
    weight[row, 1] = torch.nan
    compare(bag("max"), weight)


def test_what_is_refused():
    weight = table().to("tpu")
    with pytest.raises(RuntimeError, match="found idx to be 6"):
        bag("sum")(weight, INDICES + 1).cpu()
    with pytest.raises(RuntimeError, match=r"offsets\[0\] has to be 0"):
        bag("sum")(weight, INDICES, OFFSETS + 1).cpu()
    with pytest.raises(RuntimeError, match="greater than input's length"):
        bag("sum")(weight, INDICES[:5], OFFSETS).cpu()


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
def test_norms_of_embeddings(norm):
    def renormed(weight):
        weight = weight.detach().clone()
        looked_up = F.embedding(INDICES[:4].to(weight.device), weight, max_norm=0.8, norm_type=norm)
        return weight, looked_up

    compare(renormed, table())
    compare(lambda x: torch.embedding_renorm_(x.detach().clone(), INDICES.to(x.device), 0.5, norm), table())
    compare(
        lambda x: torch.embedding_renorm_(x.detach().clone(), INDICES[:0].to(x.device), 0.5, norm), table()
    )
