"""Grid sampling, interpolation and fractional pooling on the device against the CPU, with gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from gradients import compare

pytestmark = pytest.mark.usefixtures("no_fallback")
F = torch.nn.functional

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def image(*sizes, dtype=torch.float32):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1), dtype=dtype)


def grid(*sizes, dtype=torch.float32):
    """Points inside and outside of the image, away from where a position rounds to another element."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(2), dtype=dtype) * 0.9


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("mode", "padding"), [*itertools.product(MODES, PADDINGS)])
def test_grid_sample(mode, padding, align_corners):
    def sample(x, points):
        return F.grid_sample(x, points, mode, padding, align_corners)

    compare(sample, image(2, 3, 4, 5), grid(2, 3, 4, 2))
    compare(sample, image(2, 3, 1, 5), grid(2, 3, 4, 2))
    if mode != "bicubic":
        compare(sample, image(2, 2, 3, 4, 5), grid(2, 2, 3, 2, 3))


def test_grid_sample_takes_gradients_apart():
    x, points = image(2, 3, 4, 5), grid(2, 3, 4, 2)
    compare(lambda x: F.grid_sample(x, points.to(x.device), align_corners=False), x)
    compare(lambda points: F.grid_sample(x.to(points.device), points, align_corners=False), points)


@pytest.mark.parametrize("padding", PADDINGS)
def test_grid_sample_far_outside(padding):
    points = torch.tensor([[-3.0, 0.1], [1e4, 0.2], [-0.3, -7.7], [3.3, 5.1]]).reshape(1, 2, 2, 2)
    compare(
        lambda x, p: F.grid_sample(x, p, padding_mode=padding, align_corners=False), image(1, 2, 4, 5), points
    )


@pytest.mark.parametrize("sizes", [(0, 3, 4, 5), (2, 0, 4, 5)])
def test_grid_sample_of_nothing(sizes):
    compare(lambda x, p: F.grid_sample(x, p, align_corners=False), image(*sizes), grid(sizes[0], 3, 4, 2))


def test_grid_sample_refuses_what_does_not_fit():
    x = image(2, 3, 4, 5, 2).to("tpu")
    with pytest.raises(RuntimeError, match="same batch size"):
        F.grid_sample(x, grid(3, 3, 4, 1, 3).to("tpu"), align_corners=False)
    with pytest.raises(RuntimeError, match="size 3 in last dimension"):
        F.grid_sample(x, grid(2, 3, 4, 1, 2).to("tpu"), align_corners=False)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (9, 5), (12, 20), (6, 9), (1, 1)])
@pytest.mark.parametrize("align_corners", [False, True])
def test_antialiased_interpolation(mode, size, align_corners):
    def interpolate(x):
        return F.interpolate(x, size, mode=mode, align_corners=align_corners, antialias=True)

    compare(interpolate, image(2, 3, 6, 9))
    compare(interpolate, image(1, 2, 6, 9, dtype=torch.float64))


def test_antialiased_interpolation_by_a_factor():
    compare(
        lambda x: F.interpolate(x, scale_factor=(0.4, 1.7), mode="bilinear", antialias=True),
        image(1, 2, 9, 8),
    )
    compare(lambda x: torch.ops.aten._upsample_lanczos2d_aa(x, [4, 11], False), image(1, 2, 9, 8))


INTERPOLATIONS = [("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 1), ("nearest-exact", 2)]
INTERPOLATIONS += [("nearest-exact", 3), ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)]


@pytest.mark.parametrize(("mode", "rank"), INTERPOLATIONS)
@pytest.mark.parametrize("scale", [0.6, 2.0])
def test_gradients_of_interpolation(mode, rank, scale):
    compare(lambda x: F.interpolate(x, scale_factor=scale, mode=mode), image(2, 3, *(5, 6, 7)[:rank]))


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_fractional_max_pool(rank, batch):
    pool = F.fractional_max_pool2d if rank == 2 else F.fractional_max_pool3d
    x = image(*batch, 3, *(7, 8, 9)[:rank])
    samples = torch.rand(*(batch or (1,)), 3, rank, generator=torch.Generator().manual_seed(3))

    def pooled(x):
        return pool(
            x, 2, (4, 3, 5)[:rank], return_indices=True, _random_samples=samples.to(x.device, x.dtype)
        )

    compare(pooled, x)
    compare(pooled, x.double())
    # One window; positions of NaN.
    x = x.clone()
    x[..., 2, :] = torch.nan
    compare(lambda x: pool(x, 2, 1, return_indices=True, _random_samples=samples.to(x.device)), x)


PADS = [(F.pad, mode, rank) for mode in ("replicate", "reflect") for rank in (1, 2, 3)]


@pytest.mark.parametrize(("pad", "mode", "rank"), PADS)
def test_gradients_of_padding(pad, mode, rank):
    amounts = (1, 2, 0, 1, 2, 1)[: 2 * rank]
    compare(lambda x: pad(x, amounts, mode=mode), image(2, 3, *(4, 3, 5)[:rank]))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_gradients_of_adaptive_pooling(kind, rank):
    pool = getattr(F, f"adaptive_{kind}_pool{rank}d")
    for size in (1, 3, 6):
        compare(lambda x, size=size: pool(x, size), image(2, 3, *(7, 6, 5)[:rank]))


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_gradients_of_max_pooling_in_three_dimensions(dilation, ceil_mode):
    def pool(x):
        return F.max_pool3d(x, 2, 2, 1, dilation, ceil_mode, return_indices=True)

    compare(pool, image(2, 3, 7, 6, 5))
