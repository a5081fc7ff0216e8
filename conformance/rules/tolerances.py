"""How near float32 results must be: PyTorch's tolerances, and where those do not do."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo

# Classes of PyTorch's tests that compare an operator's values with another computation of them.
_TESTS = frozenset(
    {
        "TestCommon",
        "TestUnaryUfuncs",
        "TestBinaryUfuncsDevice",
        "TestReductions",
        "TestMasked",
        "TestFFT",
        None,
    }
)
_DEVICES = ("cpu", "cuda")
_RTOL, _ATOL = 1.3e-6, 1e-5

# Results that PyTorch's tolerances refuse, though their error against a float64 run is at most 1.2 times the CPU's.
AGAINST_FLOAT64: dict[str, str] = {
    **dict.fromkeys(
        ("nn.functional.conv1d", "nn.functional.conv2d"),
        "sums of products in another order; PyTorch has a tolerance for the other convolutions alone",
    ),
    "matrix_exp": "squaring doubles the rounding errors of either algorithm, up to a thousandth in samples of norm 28",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "the CPU's kernel sums in blocks; PyTorch has a "
    "tolerance for the public operator alone",
}

# Likewise for gradients, gradients of gradients and tangents.
_ANOTHER_ORDER = "sums in another order, of terms that cancel"
_BADLY_CONDITIONED = (
    "quotients by differences of eigenvalues or by pivots multiply the rounding errors of both"
)
GRADIENTS_AGAINST_FLOAT64: dict[str, str] = {
    **dict.fromkeys(
        ("grid_sampler_2d", "grid_sampler_3d", "ldexp", "nn.functional.ctc_loss", "pow", "stft"),
        _ANOTHER_ORDER,
    ),
    **dict.fromkeys(
        (
            *("linalg.cond", "linalg.eigh", "linalg.householder_product", "linalg.lstsq"),
            *("linalg.lstsq.grad_oriented", "linalg.pinv.hermitian"),
        ),
        _BADLY_CONDITIONED,
    ),
    **dict.fromkeys(
        ("logcumsumexp", "special.log_ndtr"),
        "PyTorch's formula takes differences of large logarithms, and the exponential of them",
    ),
    **dict.fromkeys(
        ("native_layer_norm", "nn.functional.layer_norm"),
        "the gradient of a single element's weight is nothing but what the CPU's rounding leaves",
    ),
    **{
        name: AGAINST_FLOAT64[name]
        for name in ("matrix_exp", "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu")
    },
}

# Half-precision results with a larger error than 1.2 times the CPU's: (units in the last place, reason).
HALF: dict[str, tuple[float, str]] = dict.fromkeys(
    (
        "nn.functional.scaled_dot_product_attention",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    ),
    (
        1.0,
        "the weights are rounded to half precision for the second product, as flash attention does on CUDA",
    ),
)

# Results that depend on the numbers there are in the dtype: they are compared exactly, without a float64 run.
EXACT: dict[str, str] = {"nextafter": "the neighbouring number"}


def of_pytorch(entry: Any, dtype: torch.dtype) -> tuple[float, float] | None:
    """The largest (rtol, atol) that the entry's own decorators set for this dtype; None when they set none."""
    found = []
    for decorator in entry.decorators:
        if isinstance(decorator, DecorateInfo):
            if _concerns_values(decorator):
                found += decorator.decorators
        else:
            found.append(decorator)
    rtol, atol = 0.0, 0.0
    for decorator in found:
        if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
            rtol, atol = max(rtol, decorator.d[dtype].rtol), max(atol, decorator.d[dtype].atol)
        elif isinstance(decorator, precisionOverride) and dtype in decorator.d:
            atol = max(atol, decorator.d[dtype])
    return (max(rtol, _RTOL), max(atol, _ATOL)) if rtol or atol else None


def _concerns_values(decorator: DecorateInfo) -> bool:
    devices = decorator.device_type
    devices = (devices,) if isinstance(devices, str) else devices
    return (
        decorator.cls_name in _TESTS
        # complex32 has tolerances of its own.
        and decorator.test_name != "test_complex_half_reference_testing"
        and (devices is None or any(device in devices for device in _DEVICES))
    )
