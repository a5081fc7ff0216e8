"""Whether a result's values are right: PyTorch's tolerances, or the error against a float64 run.

A half-precision result is one of few numbers, so a tolerance says little about it. It is judged by its error against
the same call in float64, which may be at most 1.2 times the error that the CPU's own result has:

- in the norm: the largest error of a tensor, unless every error is one rounding (0.6 units in the last place: half
  a unit, and a tenth for what a float32 computation inside loses before the rounding), and
- element by element: an error at most 1.2 times the CPU's, or one rounding, or a from the CPU's element within PyTorch's tolerance for the dtype.

A correctly rounded result passes always: no number of the dtype is nearer to the exact one. The second rule keeps
small elements honest beside large ones; its last clause is there because two results that are rounded several times
differ by chance in single elements.
"""

from __future__ import annotations

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


def widen(leaf: Any) -> Any:
    """A tensor or dtype in double precision; everything else as it is."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype in WIDE:
        return leaf.detach().resolve_conj().resolve_neg().to(WIDE[leaf.dtype])
    if isinstance(leaf, torch.dtype):
        return WIDE.get(leaf, leaf)
    return leaf


def difference(ours: torch.Tensor, theirs: torch.Tensor, rtol: float | None, atol: float | None) -> str | None:
    """What PyTorch's comparison says, None when it is content. Both on the CPU, of one dtype and shape."""
    try:
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line]
        return "; ".join(lines[1:] or lines)
    return None


def error_exceeds(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, half: bool) -> str | None:
    """Compare both errors against `exact`; None when ours is small enough. `half`: judge single elements, too."""
    our_error, their_error = _error(ours, exact), _error(theirs, exact)
    if our_error.numel() == 0:
        return None
    largest, allowed = our_error.max().item(), FACTOR * their_error.max().item()
    unit = _unit_in_last_place(exact, ours.dtype)
    if not largest <= allowed and (our_error > ROUNDING * unit).any():
        return f"largest error {largest:.4g}, the CPU's {allowed / FACTOR:.4g}"
    if not half:
        return None
    near = torch.isclose(ours, theirs, rtol=0.016 if ours.dtype == torch.bfloat16 else 1e-3, atol=1e-5, equal_nan=True)
    bad = ~((our_error <= FACTOR * their_error) | (our_error <= ROUNDING * unit) | near)
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        return f"{ours[at].item()} at {at}, exactly {exact[at].item():.6g}, the CPU {theirs[at].item()}"
    return None


def _error(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distances; infinite where one is NaN or infinite and the other is not the same."""
    error = (result.to(exact.dtype) - exact).abs()
    same = (result.to(exact.dtype) == exact) | (result.isnan() & exact.isnan())
    return torch.where(same, 0.0, error.where(~error.isnan(), torch.inf))


def _unit_in_last_place(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().nan_to_num(0, 0, 0).clamp(min=info.tiny))
    return torch.ldexp(torch.full_like(exact.abs(), info.eps / 2), exponent)
