"""Operators on the device against the CPU: values, dtypes, sizes and strides."""

from __future__ import annotations

import io
import math

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("no_fallback")

GRID = torch.arange(25.0).reshape(5, 5) / 4 + 3


def moved(value, device):
    return value.clone().to(device) if isinstance(value, torch.Tensor) else value


def compare(function, *args):
    """`function` gives the same on both devices."""
    want = function(*(moved(arg, "cpu") for arg in args))
    got = function(*(moved(arg, "tpu") for arg in args))
    if not isinstance(want, torch.Tensor):
        assert got == want
        return
    assert got.device.type == "tpu"
    assert got.stride() == want.stride() or not want.numel()
    torch.testing.assert_close(got.cpu(), want, equal_nan=True)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_mvlgamma(p):
    compare(lambda x: torch.mvlgamma(x, p), GRID)


def test_arange_into_a_given_tensor():
    def into(x):
        return torch.arange(1, 7, 2, out=x)

    compare(into, torch.zeros(3, dtype=torch.int64))
    compare(into, torch.zeros(0))
    compare(lambda x: torch.arange(4, out=x[::2]), torch.zeros(8))
    compare(into, torch.zeros(3))
    compare(lambda x: torch.arange(1, 9, 2, out=x), torch.zeros(3))
    compare(lambda x: torch.range(1, 7, 2, out=x), torch.zeros(0))
    compare(lambda x: torch.ops.aten.range.out_(1, 3, out=x), torch.zeros(3, dtype=torch.int64))


def test_equal():
    compare(torch.equal, GRID, GRID)
    compare(torch.equal, GRID, GRID + 1)
    compare(torch.equal, GRID, GRID[:2])
    compare(torch.equal, GRID[:0], GRID[:0])
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.equal(GRID.to("tpu"), GRID)
    with pytest.raises(RuntimeError, match="different devices"):
        torch.equal(GRID[0, 0].to("tpu"), GRID[0, 0])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_writes_its_statistics_only_in_training(training):
    def statistics(x, mean, variance):
        # Views: the rest of their storage keeps its values.
        result = torch.nn.functional.batch_norm(x, mean[:5], variance[1:], training=training)
        return torch.cat([result.flatten(), mean, variance])

    mean, variance = torch.arange(6.0), torch.arange(6.0) + 0.5
    compare(statistics, GRID, mean, variance)
    with pytest.raises(ValueError, match="must either both be None"):
        torch.native_batch_norm(GRID.to("tpu"), None, None, mean[:5].to("tpu"), None, True, 0.1, 1e-5)


@pytest.mark.parametrize("offset", [0, 5, 10])
def test_as_strided_reaches_the_whole_storage(offset):
    compare(lambda x: torch.as_strided(x[5:15], (2, 2), (1, 2), offset), torch.arange(20.0))


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (2, 0, 3)])
def test_flips_without_elements(sizes):
    compare(torch.fliplr, torch.ones(sizes))
    compare(torch.flipud, torch.ones(sizes))


def test_products_over_nothing():
    compare(
        lambda *matrices: torch.linalg.multi_dot(matrices), torch.ones(3, 0), torch.ones(0, 3), GRID[:3, :2]
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_repeat_interleave_by_a_tensor(dtype):
    repeats = torch.tensor([2, 0, 3, 1, 0], dtype=dtype)
    compare(torch.repeat_interleave, repeats)
    compare(torch.repeat_interleave, repeats[:0])
    compare(torch.repeat_interleave, torch.zeros(3, dtype=dtype))
    compare(lambda x, n: torch.repeat_interleave(x, n, dim=1), GRID, repeats)
    compare(lambda x, n: torch.repeat_interleave(x, n, dim=0, output_size=6), GRID, repeats)
    with pytest.raises(RuntimeError, match="negative"):
        torch.repeat_interleave(GRID.to("tpu"), (repeats - 1).to("tpu"), dim=0)
    for wrong in (5, 7):
        with pytest.raises(RuntimeError, match="allocated size does not match required size"):
            torch.repeat_interleave(GRID.to("tpu"), repeats.to("tpu"), dim=0, output_size=wrong).cpu()


def test_outputs_whose_size_depends_on_values_go_into_given_tensors():
    def nonzero(x, out):
        return torch.nonzero(x, out=out)

    def masked_select(x, out):
        return torch.masked_select(x, x > 5, out=out)

    for size in ((0,), (24, 2)):
        compare(nonzero, GRID - 3, torch.empty(size, dtype=torch.int64))
    compare(lambda x, out: nonzero(x, out[::2]), GRID[0] - 3, torch.zeros(8, 1, dtype=torch.int64))
    for size in (0, 16):
        compare(masked_select, GRID, torch.empty(size))
    compare(lambda x, out: (masked_select(x, out[::2]), out)[1], GRID, torch.zeros(32))
    with pytest.raises(RuntimeError, match="Long"):
        nonzero(GRID.to("tpu"), torch.empty(0, device="tpu"))
    with pytest.raises(RuntimeError, match="same scalar type"):
        masked_select(GRID.to("tpu"), torch.empty(0, dtype=torch.int64, device="tpu"))


def test_assertions_on_the_device():
    torch._assert_async(torch.tensor(2.0, device="tpu"), "not raised")
    wrong = torch.tensor(0, device="tpu")
    with pytest.raises(RuntimeError, match="is zero"):
        torch.tpu.synchronize(torch._assert_async(wrong, "is zero"))
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        torch._assert_async(torch.ones(2, device="tpu"))


INFINITE = torch.tensor([0.0, torch.nan, torch.inf, -torch.inf, -0.0, 2.0])
TRUTH = torch.tensor([False, True, False, True, True, False])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_truth_value_in_arithmetic_is_a_number(dtype):
    x = INFINITE.to(dtype)
    compare(torch.mul, TRUTH, x)
    compare(torch.mul, x, TRUTH)
    compare(torch.div, TRUTH, x)
    compare(lambda mask: mask / torch.tensor(0.0, dtype=dtype), TRUTH)
    compare(lambda mask, x: torch.addcmul(x, mask.to(x.dtype), x), TRUTH, x)
    compare(lambda mask, x: x.mul_(mask), TRUTH, x)


@pytest.mark.parametrize("function", [torch.log2, torch.log10, torch.exp2])
def test_logarithms_of_complex_zero(function):
    compare(function, torch.tensor([0j, 1j, -2 - 1j, 3 + 0j]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
def test_ldexp_beyond_the_range_of_powers(dtype):
    x = torch.tensor([0.0, 1.0, -3.0, 2.0**-14, 2.0**15]).to(dtype)
    for exponent in (0, 5, -7, 125, 200, 249, -2000):
        compare(torch.ldexp, x, torch.full((5,), exponent))
    small = torch.tensor([2.0**-120, -(2.0**-100), 1e-30])
    compare(torch.ldexp, small, torch.tensor([200, 220, 190], dtype=torch.int32))
    compare(torch.ldexp, small, torch.tensor([0.5, 1.5, -1.5]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float32])
def test_native_dropout_backward(dtype):
    compare(
        lambda x, kept: torch.ops.aten.native_dropout_backward(x, kept, 2.0),
        INFINITE[4:].to(dtype),
        TRUTH[4:],
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_takes_scalars(no_fallback, dtype):
    expected = torch.full((3,), 1.3, dtype=dtype).float()
    assert torch.equal(torch.full((3,), 1.3, dtype=dtype, device="tpu").float().cpu(), expected)
    filled = torch.zeros(3, dtype=dtype, device="tpu").fill_(1.3)
    assert torch.equal(filled.float().cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_nextafter_steps_through_subnormals(dtype):
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    x = torch.tensor([0.0, -0.0, 1, -1, 3, -3, 100, 1e9], dtype=torch.float64).mul(least).to(dtype)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    for y in (-1.0, 0.0, 1.0, 2 * least):
        towards = torch.full_like(x, y)
        # As bit patterns: a comparison may take subnormal numbers for zeros.
        compare(lambda x, y: torch.nextafter(x, y).view(integer), x, towards)


@pytest.mark.parametrize("sizes", [(6,), (4, 5), (2, 3, 4), (0, 3), (3, 0), ()])
def test_nonzero_lies_column_by_column(sizes):
    x = torch.arange(1, torch.Size(sizes).numel() + 1).reshape(sizes) % 3
    compare(torch.nonzero, x)
    compare(torch.nonzero, x == 0)
    compare(torch.nonzero, x * 0)
    compare(torch.argwhere, x)
    compare(lambda x: torch.nonzero(x).t().reshape(-1), x)
    for d in range(x.dim()):
        compare(lambda x, d=d: torch.nonzero(x, as_tuple=True)[d], x)
    compare(lambda x: x[x > 1], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_zeros_are_written_into_new_memory(dtype):
    compare(lambda x: torch.empty_like(x, dtype=dtype).zero_(), GRID)
    compare(lambda x: torch.zeros_like(x, dtype=dtype), GRID)
    compare(lambda x: x.new_zeros(3, dtype=dtype), GRID)
    compare(lambda x: torch.empty(4, 4, dtype=dtype, device=x.device).zero_()[1:].clone(), GRID)
    assert torch.empty(3, dtype=dtype, device="tpu").cpu().shape == (3,)


@pytest.mark.parametrize("beta", [0, 1, 0.6])
def test_addr_rounds_once(beta):
    torch.manual_seed(
        0
    )  # where float32 itself falls on the other side of a tie (3 in 1,000 elements) it differs
    x, y = torch.randn(5).bfloat16(), torch.randn(7).bfloat16()
    base = torch.randn(5, 7).bfloat16().masked_fill(torch.eye(5, 7).bool(), torch.nan)
    exact = torch.addr(base.double(), x.double(), y.double(), beta=beta, alpha=0.2)
    got = torch.addr(base.to("tpu"), x.to("tpu"), y.to("tpu"), beta=beta, alpha=0.2)
    torch.testing.assert_close(got.cpu(), exact.bfloat16(), rtol=0, atol=0, equal_nan=True)
    compare(lambda *args: torch.addr(*args, beta=beta, alpha=0.2), base.float()[:1], x.float(), y.float())
    compare(torch.addr, torch.ones(5, 7).long(), torch.arange(5), torch.arange(7))
    compare(torch.addr, torch.zeros(2, 3).bool(), torch.tensor([True, False]), torch.ones(3).bool())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_frexp(dtype):
    least = torch.finfo(dtype).smallest_normal
    x = torch.cat([INFINITE.to(dtype), torch.tensor([1, -3, 0.1, 65504]).to(dtype)])
    small = torch.tensor([1.0, -1.5, 0.5, 0.25]).to(dtype) * least
    for part in range(2):
        compare(lambda x, part=part: torch.frexp(x)[part], x)
        if dtype not in (torch.bfloat16, torch.float16):  # Widened first, and there subnormals may be zeros.
            compare(lambda x, part=part: torch.frexp(x)[part], small)
    compare(lambda x, m, e: torch.frexp(x, out=(m, e))[0], x, x[:0], torch.empty(0, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="only supports floating-point"):
        torch.frexp(torch.ones(2, dtype=torch.int64, device="tpu"))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]
)
def test_hash_tensor(dtype):
    x = (GRID - 4).to(dtype)
    compare(torch.hash_tensor, x)
    compare(lambda x: torch.hash_tensor(x, 1), x)
    compare(lambda x: torch.hash_tensor(x, (0, 1), keepdim=True), x)
    compare(lambda x: torch.hash_tensor(x, 1), x[:, :0].t())
    compare(lambda x: torch.hash_tensor(x, 0, out=x.new_empty(0, dtype=torch.uint64)), x)
    compare(torch.hash_tensor, x[0, 0])
    with pytest.raises(RuntimeError, match="mode"):
        torch.hash_tensor(x.to("tpu"), mode=1)
    with pytest.raises(RuntimeError, match="dim to be specified"):
        torch.hash_tensor(x[:0].to("tpu"))
    with pytest.raises(RuntimeError, match="uint64"):
        torch.hash_tensor(x.to("tpu"), 0, out=torch.empty(0, device="tpu"))


def test_complex_halves_are_refused_by_name():
    x = torch.ones(2, device="tpu")
    empty = torch.empty(2, dtype=torch.chalf, device="tpu")
    for use in (x.chalf, empty.cpu, lambda: empty + 1, lambda: torch.ones(2, dtype=torch.chalf).to("tpu")):
        with pytest.raises(NotImplementedError, match="chalf"):
            use()


def test_conjugates_in_place():
    x = torch.tensor([1 + 2j, -3 - 4j])
    for view in (lambda t: t, lambda t: t[1:], lambda t: t.conj()):
        ours, theirs = x.to("tpu", copy=True), x.clone()
        view(ours).conj_physical_()
        view(theirs).conj_physical_()
        torch.testing.assert_close(ours.cpu(), theirs)


def test_results_whose_size_depends_on_values_have_a_storage_of_their_size():
    x = torch.tensor([[0, 1, 0], [2, 0, 3]], device="tpu")
    for found in (x.nonzero(), x[x > 0], torch.unique(x)):
        assert found.untyped_storage().nbytes() == found.numel() * found.itemsize
        file = io.BytesIO()
        torch.save(found, file)
        file.seek(0)
        assert torch.load(file, map_location="cpu").tolist() == found.tolist()


@pytest.mark.parametrize("sizes", [(), (5,), (1, 5), (2, 5)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margin_losses_of_one_sample_and_of_several(sizes, reduction):
    x = torch.linspace(-1, 1, math.prod(sizes)).view(sizes)
    target = torch.zeros(sizes, dtype=torch.int64)
    compare(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x, target)
    compare(
        lambda x, t: F.multi_margin_loss(x, t, reduction=reduction), x, target[..., 0] if sizes else target
    )
