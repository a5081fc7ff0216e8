"""`out=`: which dtypes are taken, and what is computed in them."""

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


REFUSED = {
    "cross": lambda x, out: torch.linalg.cross(x, x, out=out),
    "softmax": lambda x, out: torch._softmax(x, 0, False, out=out),
    "scatter_reduce": lambda x, out: torch.scatter_reduce(x, 0, x.long() * 0, x, "sum", out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.empty(0, dtype=torch.int64, device=x.device))),
    "isin": lambda x, out: torch.isin(x, x, out=out),
    "neg": lambda x, out: torch.neg(x, out=out),
    "floor": lambda x, out: torch.floor(x, out=out),
    "heaviside": lambda x, out: torch.heaviside(x, x, out=out),
    "logcumsumexp": lambda x, out: torch.logcumsumexp(x, 0, out=out),
    "take": lambda x, out: torch.take(x, x.long() * 0, out=out),
    "norm": lambda x, out: torch.norm(x, 2, 0, out=out),
    "angle": lambda x, out: torch.angle(x, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "stack": lambda x, out: torch.stack([x, x], out=out),
    "nansum": lambda x, out: torch.nansum(x, 0, out=out),
    "normal": lambda x, out: torch.normal(x, x.abs(), out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, x[0].long() * 0, out=out),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_is_refused_and_nothing_is_written(tpu, name, dtype):
    x = torch.linspace(-2, 2, 9).reshape(3, 3)
    outcomes = []
    for device in ("cpu", "tpu"):
        out = torch.ones(2, dtype=dtype, device=device).resize_(0)
        try:
            REFUSED[name](x.to(device), out)
            outcomes.append((None, out.cpu().shape))
        except Exception as error:
            outcomes.append((type(error), None))
            if device == "tpu":
                assert out.shape == (0,)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_bernoulli_draws_in_any_dtype(tpu, dtype):
    out = torch.empty(0, dtype=dtype, device="tpu")
    torch.bernoulli(torch.tensor([0.0, 1.0, 1.0], device="tpu"), out=out)
    assert out.dtype == dtype
    assert out.cpu().tolist() == [0, 1, 1]


def test_results_of_several_kernels_are_written_where_they_shall_be(tpu):
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    a, tau = (torch.empty(0, device="tpu") for _ in range(2))
    torch.geqrf(x.to("tpu"), out=(a, tau))
    for ours, theirs in zip((a, tau), torch.geqrf(x), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
    with pytest.raises(RuntimeError, match="out tensor to have dtype"):
        torch.geqrf(x.to("tpu"), out=(a.long(), tau))


@pytest.mark.parametrize("given", [(0,), (1,)])
def test_resized_matrices_lie_as_on_the_cpu(tpu, given):
    x = torch.eye(3).repeat(2, 1, 1)
    strides = []
    for device in ("cpu", "tpu"):
        out = [torch.empty(given, device=device) for _ in range(2)]
        values, vectors = (torch.empty(given, dtype=torch.complex64, device=device) for _ in range(2))
        torch.cholesky_inverse(x.to(device), out=out[0])
        torch.linalg.householder_product(x.to(device), x[:, 0].to(device), out=out[1])
        torch.linalg.eig(x.to(device), out=(values, vectors))
        strides.append([tensor.stride() for tensor in (*out, vectors)])
    assert strides[0] == strides[1]
