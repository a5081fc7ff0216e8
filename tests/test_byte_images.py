"""Interpolation of uint8 images: byte for byte what the CPU gives, which computes in 16-bit weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("no_fallback")

# Fewer than five channels take another kernel on the CPU.
IMAGES = [(2, 3, 37, 41), (1, 6, 9, 20), (1, 1, 1, 1), (1, 2, 5, 1)]
SIZES = [(37, 41), (12, 100), (80, 41), (9, 20), (3, 7)]


def image(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def compare(x, **how):
    want, got = F.interpolate(x, **how), F.interpolate(x.to("tpu"), **how)
    assert got.dtype == torch.uint8
    assert got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("shape", IMAGES)
def test_sizes(mode, antialias, shape):
    for size in SIZES:
        compare(image(*shape), size=size, mode=mode, antialias=antialias)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_corners_scales_and_layout(mode):
    x = image(2, 3, 30, 17)
    compare(x, size=(11, 50), mode=mode, align_corners=True)
    compare(x, scale_factor=(1.7, 0.6), mode=mode)
    # The size stays although the scale is not 1.
    compare(x, scale_factor=1.02, mode=mode)
    compare(x, scale_factor=1.02, mode=mode, antialias=True)
    compare(x.to(memory_format=torch.channels_last), size=(11, 50), mode=mode)


def test_edges_are_clipped_to_bytes():
    """Beyond a sharp edge the cubic kernel leaves the range of bytes."""
    x = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    x[..., 4:] = 255
    compare(x, size=(8, 31), mode="bicubic")


def test_antialiased_floats_keep_a_size_that_stays():
    x = torch.rand(1, 1, 30, 17, generator=torch.Generator().manual_seed(0))
    want = F.interpolate(x, scale_factor=(1.02, 0.5), mode="bilinear", antialias=True)
    got = F.interpolate(x.to("tpu"), scale_factor=(1.02, 0.5), mode="bilinear", antialias=True)
    torch.testing.assert_close(got.cpu(), want)
