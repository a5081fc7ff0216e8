"""Fourier transforms: torch.fft and stft on the device against the CPU."""

import pytest
import torch

ONE = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
SEVERAL = [
    "fft2",
    "ifft2",
    "rfft2",
    "irfft2",
    "hfft2",
    "ihfft2",
    "fftn",
    "ifftn",
    "rfftn",
    "irfftn",
    "hfftn",
    "ihfftn",
]
REAL = {"rfft", "ihfft", "rfft2", "ihfft2", "rfftn", "ihfftn"}
# CUDA transforms some shapes in steps, and the result has the strides of the last; PyTorch's Meta kernels say which.
AS_CUDA = "meta"
NORMS = ["backward", "ortho", "forward"]


def sample(name, *sizes, dtype=torch.float32):
    torch.manual_seed(0)
    real = torch.randn(*sizes, dtype=dtype)
    return real if name in REAL else torch.complex(real, torch.randn(*sizes, dtype=dtype))


def check(function, x, strides_of="cpu"):
    """Values, dtype and strides, and the gradient of the sum of squared magnitudes."""
    ours, theirs = (x.detach().to(device).requires_grad_() for device in ("tpu", "cpu"))
    got, want = function(ours), function(theirs)
    assert got.device.type == "tpu"
    assert got.stride() == function(x.to(strides_of)).stride()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)
    for result in (got, want):
        (result.abs() ** 2).sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ONE)
def test_one_dimension(no_fallback, name, norm):
    function = getattr(torch.fft, name)
    check(lambda x: function(x, norm=norm), sample(name, 3, 8))
    check(lambda x: function(x, n=7, dim=0, norm=norm), sample(name, 5, 2))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", SEVERAL)
def test_several_dimensions(no_fallback, name, norm):
    function = getattr(torch.fft, name)
    check(lambda x: function(x, norm=norm), sample(name, 2, 4, 6), AS_CUDA if name == "rfftn" else "cpu")
    check(lambda x: function(x, s=(3, 8), dim=(2, 0), norm=norm), sample(name, 4, 2, 5))


def test_more_dimensions_than_one_operation_takes(no_fallback):
    for name in ("fftn", "rfftn"):
        check(getattr(torch.fft, name), sample(name, 2, 3, 4, 3, 4), AS_CUDA)
    check(torch.fft.irfftn, sample("irfftn", 2, 3, 4, 3, 4))


@pytest.mark.parametrize("dims", [(0, 1), (0, 2, 3), (3, 1), (2, 0), (1,)])
@pytest.mark.parametrize("name", ["irfftn", "hfftn"])
def test_real_results_lie_as_the_last_step_leaves_them(no_fallback, name, dims):
    check(lambda x: getattr(torch.fft, name)(x, dim=dims), sample(name, 3, 4, 5, 6))


def test_views_integers_and_float64(no_fallback):
    check(lambda x: torch.fft.fft(x.t().conj()), sample("fft", 4, 6))
    check(torch.fft.rfft, sample("rfft", 9, dtype=torch.float64))
    x = torch.arange(12).view(3, 4)
    torch.testing.assert_close(torch.fft.fft(x.to("tpu")).cpu(), torch.fft.fft(x))
    empty = torch.empty(0, 4, dtype=torch.complex64)
    assert torch.fft.fft(empty.to("tpu")).shape == (0, 4)
    with pytest.raises(RuntimeError, match="Invalid number of data points"):
        torch.fft.fft(torch.ones(3, device="tpu"), n=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(no_fallback, dtype):
    x = torch.ones(8, dtype=dtype)
    for function in (torch.fft.fft, torch.fft.irfft):
        for device in ("cpu", "tpu"):
            with pytest.raises(NotImplementedError, match="Unsupported dtype"):
                function(x.to(device))


@pytest.mark.parametrize("name", ONE)
def test_into_given_tensors(no_fallback, name):
    function, x = getattr(torch.fft, name), sample(name, 4, 6)
    want = function(x)
    for out in (torch.empty(0, dtype=want.dtype), torch.empty_like(want), torch.empty_like(want.mT).mT):
        ours = out.to("tpu")
        function(x.to("tpu"), out=ours)
        function(x, out=out)
        assert ours.stride() == out.stride()
        torch.testing.assert_close(ours.cpu(), out, rtol=1e-5, atol=1e-5)
    for dtype in (torch.complex128, torch.float64, torch.int64):
        ours, theirs = (outcome(function, x.to(device), dtype) for device in ("tpu", "cpu"))
        assert ours == theirs


def outcome(function, x, dtype):
    """The dtype that is written, or the error."""
    try:
        return function(x, out=torch.empty(0, dtype=dtype, device=x.device)).dtype
    except RuntimeError:
        return RuntimeError


def test_infinite_parts_stay_apart(no_fallback):
    x = torch.complex(torch.tensor([float("inf")]), torch.tensor([1.0]))
    want = torch.fft.fft(x, norm="ortho")
    torch.testing.assert_close(torch.fft.fft(x.to("tpu"), norm="ortho").cpu(), want, equal_nan=True)


def test_stft(no_fallback):
    x = sample("rfft", 2, 64)
    window = torch.hann_window(16)
    spectrum = torch.stft(x, 16, window=window, return_complex=True)
    ours = torch.stft(x.to("tpu"), 16, window=window.to("tpu"), return_complex=True)
    torch.testing.assert_close(ours.cpu(), spectrum, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        torch.istft(ours, 16, window=window.to("tpu")).cpu(),
        torch.istft(spectrum, 16, window=window),
        rtol=1e-5,
        atol=1e-5,
    )
