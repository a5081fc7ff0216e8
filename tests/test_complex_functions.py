"""Complex functions on the device against the CPU, which computes as C99 says: both sides of branch cuts, signed zeros,
infinities, NaN.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

INF, NAN = math.inf, math.nan
PARTS = [0.0, 0.5, 1.0, 2.0, 30.0, 1e-20, 1e20, INF]
PARTS = [*PARTS, *(-part for part in PARTS), NAN]
GRID = [complex(re, im) for re in PARTS for im in PARTS]
FUNCTIONS = [
    *(
        "abs",
        "acos",
        "acosh",
        "angle",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cos",
        "cosh",
        "exp",
        "exp2",
        "expm1",
    ),
    *("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sgn", "sigmoid", "sin", "sinh", "sqrt"),
    *("tan", "tanh"),
]
IN_NUMPY = {
    **{
        name: getattr(np, name)
        for name in ("cos", "cosh", "exp", "log", "sin", "sinh", "sqrt", "tan", "tanh")
    },
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
}
# The device takes subnormal numbers for zeros, and these results depend on one.
SUBNORMAL = {"angle", "reciprocal", "rsqrt"}


def differs(ours: complex, theirs: complex, rtol: float) -> bool:
    """Finite numbers are near, and have the same zeros with the same signs; otherwise each part is near, NaN, or
    infinite, beside NaN with any sign.
    """
    pairs = [(ours.real, theirs.real), (ours.imag, theirs.imag)]
    if all(math.isfinite(part) for pair in pairs for part in pair):
        signs = all(math.copysign(1, a) == math.copysign(1, b) for a, b in pairs if a == b == 0)
        return abs(ours - theirs) > rtol * abs(theirs) or not signs
    any_sign = any(math.isnan(b) for _, b in pairs)
    return not all(
        a == b
        or (math.isnan(a) and math.isnan(b))
        or (any_sign and abs(a) == abs(b) == INF)
        or abs(a - b) <= rtol * abs(b) < INF
        for a, b in pairs
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.complex64, 2e-6), (torch.complex128, 1e-14)])
def test_edges(name, dtype, rtol):
    numbers = GRID
    if dtype == torch.complex64 and name in SUBNORMAL:
        numbers = [z for z in GRID if not (1e-20 in map(abs, (z.real, z.imag)) and abs(z) >= 1e20)]
    if name == "log1p":  # The CPU's formula multiplies infinity by zero.
        numbers = [z for z in numbers if not math.isinf(z.imag)]
    x = torch.tensor(numbers, dtype=dtype)
    function = getattr(torch, name)
    ours, theirs = function(x.to("tpu")).cpu().tolist(), function(x).tolist()
    # Where the CPU leaves C99, in the signs of zeros, numpy does not.
    c99 = IN_NUMPY[name](x.numpy()).tolist() if name in IN_NUMPY else theirs
    wrong = [
        f"{name}({z}) = {a}, on the CPU {b}, by C99 {c}"
        for z, a, b, c in zip(numbers, ours, theirs, c99, strict=True)
        if differs(complex(a), complex(b), rtol) and differs(complex(a), complex(c), rtol)
    ]
    assert not wrong, "\n".join(wrong)


def test_accuracy():
    """Near poles, zeros and the unit circle, against twice the precision."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, dtype=torch.complex128, generator=generator)
    x = torch.cat([x, x / x.abs(), 1 + x * 1e-4, 1j + x * 1e-4, x * 1e-6, x * 20]).to(torch.complex64)
    for name in sorted(set(FUNCTIONS) - {"abs", "angle"}):
        function = getattr(torch, name)
        got, exact = function(x.to("tpu")).cpu().to(torch.complex128), function(x.to(torch.complex128))
        theirs = function(x).to(torch.complex128)
        finite = exact.isfinite() & theirs.isfinite()
        error, allowed = (got - exact).abs()[finite], (theirs - exact).abs()[finite]
        # A few roundings of the result, or of what the CPU loses.
        bound = 8 * torch.finfo(x.dtype).eps * exact.abs()[finite] + 4 * allowed
        assert (error <= bound).all(), (name, (error / bound).max())


def test_quotients():
    parts = [0.0, -0.0, 1.0, -3.0, 1e20, INF, NAN]
    x = torch.tensor([complex(a, b) for a in parts for b in parts])
    finite = x[x.isfinite()]
    got = (x.to("tpu")[:, None] / finite.to("tpu")).cpu()
    torch.testing.assert_close(got, x[:, None] / finite, equal_nan=True)
    # The CPU multiplies by the inverse of these, a subnormal number.
    large = torch.tensor([1e38 + 1e38j, 2e38j, -3e38])
    got = (finite.to("tpu")[:, None] / large.to("tpu")).cpu()
    exact = finite.to(torch.complex128)[:, None] / large.to(torch.complex128)
    torch.testing.assert_close(got, exact.to(torch.complex64), atol=2e-38, rtol=1e-6)


def test_powers():
    x = torch.randn(200, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    y = torch.randn(200, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close((x.to("tpu") ** y.to("tpu")).cpu(), x**y)
    for exponent in (0, 1, 2, 3, -1, 0.5, -0.5, 2.5, 1j):
        torch.testing.assert_close((x.to("tpu") ** exponent).cpu(), x**exponent)
    zero = torch.zeros(3, dtype=torch.complex64)
    exponents = torch.tensor([2.0, 0.5 + 1j, 0.0], dtype=torch.complex64)
    got = (zero.to("tpu") ** exponents.to("tpu")).cpu()
    torch.testing.assert_close(got, zero**exponents, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_sums_of_exponentials(dtype):
    generator = torch.Generator().manual_seed(3)
    x = 5 * torch.randn(4, 33, dtype=dtype, generator=generator)
    x[0, 3], x[1, 4], x[2, 5] = complex(-INF, 1), 1e4, complex(NAN, 0)
    y = 5 * torch.randn(4, 33, dtype=dtype, generator=generator)

    def compare(function, *args):
        got, want = function(*(arg.to("tpu") for arg in args)).cpu(), function(*args)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-5)

    compare(torch.logaddexp, x, y)
    compare(lambda x: torch.logcumsumexp(x, 1), x)
    compare(lambda x: torch.logcumsumexp(x, 0), x)
    compare(lambda x: torch.logsumexp(x, 1), x)
    compare(lambda x: torch.logcumsumexp(x, 0), x[0, 0])


def test_both_parts_of_normal_numbers_have_the_mean():
    """As on the CPU, where the parts are drawn as real numbers."""
    torch.manual_seed(0)
    x = torch.empty(100_000, dtype=torch.complex64, device="tpu").normal_(1.0, 2.0).cpu()
    parts = torch.view_as_real(x)
    torch.testing.assert_close(parts.mean(0), torch.ones(2), atol=0.03, rtol=0)
    torch.testing.assert_close(parts.std(0), torch.full((2,), math.sqrt(2)), atol=0.03, rtol=0)
