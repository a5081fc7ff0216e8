"""Whether a result's values are right: PyTorch's tolerances, or the error against a float64 run.

A half-precision result is one of few numbers, so a tolerance says little about it. It is judged by its error against
the same call in float64, which may be at most 1.2 times the CPU's own:

- in the norm: the largest error of a result, against the CPU's for the same sample; or, in units in the last place of
  the result's largest element, against the CPU's largest over many samples of the pair. How several roundings add up
  in a single sample is a matter of chance, and a result of one element has no second;
- element by element, so that small elements beside large ones count: the error is at most 1.2 times the CPU's, or
  one rounding, or the element is within PyTorch's tolerance for the dtype of the CPU's.

One rounding is 0.6 units in the last place: half a unit, and a tenth for what a float32 computation loses before.
A correctly rounded result always passes, since no number of the dtype is nearer to the exact one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

HALF = (torch.bfloat16, torch.float16)
WIDE = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
FACTOR = 1.2
ROUNDING = 0.6
# Of how many samples the CPU's own error is taken.
SAMPLES_FOR_ERROR = 64


def widen(leaf: Any) -> Any:
    """A tensor or dtype in double precision; everything else as it is."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype in WIDE:
        wide = leaf.detach().resolve_conj().resolve_neg().to(WIDE[leaf.dtype])
        return wide.requires_grad_(leaf.requires_grad)
    if isinstance(leaf, torch.dtype):
        return WIDE.get(leaf, leaf)
    return leaf


def difference(
    ours: torch.Tensor, theirs: torch.Tensor, rtol: float | None, atol: float | None
) -> str | None:
    """What PyTorch's comparison says, None when it is content. Both on the CPU, of one dtype and shape."""
    try:
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line]
        return "; ".join(lines[1:] or lines)
    return None


def exceeds(
    ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, error_of_cpu: Callable[[], float]
) -> str | None:
    """Compare the largest errors; None when ours is small enough.

    error_of_cpu(): over many samples, in units in the last place of the largest element.
    """
    our_error, their_error = _error(ours, exact), _error(theirs, exact)
    if our_error.numel() == 0:
        return None
    if (our_error.isinf() & ~their_error.isinf()).any():
        return "a number that is not finite, where the CPU's is"
    if our_error.max() <= FACTOR * their_error.max():
        return None
    if (our_error <= ROUNDING * _unit_in_last_place(exact, ours.dtype)).all():
        return None
    units, allowed = error_in_units(ours, exact), error_of_cpu()
    if units <= FACTOR * allowed:
        return None
    message = f"largest error {our_error.max():.4g}, the CPU's {their_error.max():.4g}"
    return f"{message}; {units:.3g} units in the last place, the CPU's {allowed:.3g} over many samples"


def half_exceeds(
    ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, error_of_cpu: Callable[[], float]
) -> str | None:
    """The rule for half precision: as `exceeds`, and element by element."""
    if message := exceeds(ours, theirs, exact, error_of_cpu):
        return message
    our_error, their_error = _error(ours, exact), _error(theirs, exact)
    rtol = 1.6e-2 if ours.dtype == torch.bfloat16 else 1e-3
    near = torch.isclose(ours, theirs, rtol=rtol, atol=1e-5, equal_nan=True)
    rounded = our_error <= ROUNDING * _unit_in_last_place(exact, ours.dtype)
    bad = ~(near | rounded | (our_error <= FACTOR * their_error))
    if not bad.any():
        return None
    at = tuple(bad.nonzero()[0].tolist())
    return f"{ours[at].item()} at {at}, exactly {exact[at].item():.6g}, the CPU's {theirs[at].item()}"


def error_in_units(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, in units in the last place of the largest element; 0 for what has no such error."""
    if (
        not (result.is_floating_point() and exact.is_floating_point())
        or result.shape != exact.shape
        or not result.numel()
    ):
        return 0.0
    unit = _unit_in_last_place(exact.abs().where(exact.isfinite(), 0.0).max(), result.dtype)
    return (_error(result, exact).max() / unit).item()


def _error(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distances; infinite where one is NaN or infinite and the other is not the same."""
    error = (result.to(exact.dtype) - exact).abs()
    same = (result.to(exact.dtype) == exact) | (result.isnan() & exact.isnan())
    return torch.where(same, 0.0, error.where(~error.isnan(), torch.inf))


def _unit_in_last_place(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().nan_to_num(0, 0, 0).clamp(min=info.tiny))
    return torch.ldexp(torch.full_like(exact.abs(), info.eps / 2), exponent)
