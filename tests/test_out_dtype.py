"""Sums, products and scans compute in the dtype of `out=`, as if the call had asked for it."""

import pytest
import torch

CALLS = {
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "prod": lambda x, out: torch.prod(x, 0, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "cumprod": lambda x, out: torch.cumprod(x, 0, out=out),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float64, torch.complex64])
@pytest.mark.parametrize("name", CALLS)
def test_values_are_converted_before(tpu, name, dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 5) * 3
    ours = CALLS[name](x.to("tpu"), torch.empty(0, dtype=dtype, device="tpu"))
    torch.testing.assert_close(ours.cpu(), CALLS[name](x, torch.empty(0, dtype=dtype)))


@pytest.mark.parametrize("function", [torch.sum, torch.mean])
def test_a_wide_result_of_narrow_numbers_is_not_rounded(tpu, function):
    x = torch.linspace(0, 1, 1000, dtype=torch.bfloat16)
    ours = function(x.to("tpu"), 0, out=torch.empty((), device="tpu"))
    torch.testing.assert_close(ours.cpu(), function(x, 0, out=torch.empty(())))
    assert ours.bfloat16().float() != ours


def test_in_place_scans_keep_their_dtype(tpu):
    x = torch.full((300,), 7, dtype=torch.int8)
    torch.testing.assert_close(x.to("tpu").cumsum_(0).cpu(), x.cumsum_(0))
