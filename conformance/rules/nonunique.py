"""Results that are right in more than one way: what is unique of them is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Unique(NamedTuple):
    """of(result, sample): the tensors to compare instead of the result, all on the CPU."""

    of: Callable[[Any, Any], Any]
    reason: str


def _of_opinfo(result: Any, sample: Any) -> Any:
    """What PyTorch's own tests compare."""
    return sample.output_process_fn_grad(result)


def _with_ties(values: Any, sample: Any, position: int, keepdim: int | None) -> tuple[Tensor, ...]:
    """Values; the input's elements at the indices; whether the indices are distinct."""
    values, indices = values if isinstance(values, tuple) else (None, values)
    if sample.kwargs.get("stable"):
        return indices if values is None else (values, indices)
    dim = _argument(sample, "dim", position, -1)
    if keepdim is not None and not _argument(sample, "keepdim", keepdim, False) and sample.input.dim():
        indices = indices.unsqueeze(dim)
    indices = torch.atleast_1d(indices)
    at_indices = torch.take_along_dim(torch.atleast_1d(sample.input), indices, dim)
    distinct = (indices.sort(dim=dim).values.diff(dim=dim) != 0).all()
    return (at_indices, distinct) if values is None else (values, at_indices, distinct)


def _argument(sample: Any, name: str, position: int, default: Any) -> Any:
    return sample.kwargs.get(name, sample.args[position] if len(sample.args) > position else default)


def _ties(position: int, keepdim: int | None = None) -> Unique:
    """position: of `dim` among the arguments after the input, and of `keepdim` where there is one."""
    return Unique(
        lambda result, sample: _with_ties(result, sample, position, keepdim),
        "equal elements may come in any order; asked for a stable order, indices are compared as they stand",
    )


def _svd(result: Any, sample: Any) -> Any:
    """Singular values, the product, and how far the vectors are from orthonormal."""
    u, s, v = result
    vh = v.mH if "some" in sample.kwargs else v
    rank = s.shape[-1]
    return s, (u[..., :rank] * s.unsqueeze(-2)) @ vh[..., :rank, :], _gram(u), _gram(vh.mH)


def _gram(vectors: Tensor) -> Tensor:
    return vectors.mH @ vectors


def _eigh(result: Any, sample: Any) -> Any:
    values, vectors = result
    return values, (vectors * values.unsqueeze(-2)) @ vectors.mH, _gram(vectors)


def _eig(result: Any, sample: Any) -> Any:
    """Eigenvalues in an order of their own; each pair satisfies A v = lambda v, with v of length 1."""
    values, vectors = result
    rounded = torch.view_as_real(values).mul(1024).round()
    order = (rounded[..., 0] * 2**24 + rounded[..., 1]).sort(dim=-1).indices
    residual = sample.input.to(vectors.dtype) @ vectors - vectors * values.unsqueeze(-2)
    return values.gather(-1, order), residual, torch.linalg.vector_norm(vectors, dim=-2)


def _eigvals(result: Any, sample: Any) -> Any:
    return _eig((result, torch.zeros(*result.shape, result.shape[-1], dtype=result.dtype)), sample)[0]


def _qr(result: Any, sample: Any) -> Any:
    """The product, whether Q is orthonormal, and R without signs."""
    q, r = result
    return q @ r if q.numel() else r, _gram(q), r.abs()


def _svd_lowrank(result: Any, sample: Any) -> Any:
    """As PyTorch compares it; of a difference from M, which has a larger rank than is asked for, the bases alone."""
    if sample.kwargs.get("M") is None:
        return _of_opinfo(result, sample)
    u, _, v = result
    return _gram(u), _gram(v)


# Samples whose gradient is not compared.
WITHOUT_GRADIENT: dict[str, str] = {
    "svd_lowrank": "with M, whose rank is larger than what is asked for, it depends on the numbers drawn"
}


def has_no_gradient(name: str, sample: Any) -> bool:
    return name in WITHOUT_GRADIENT and sample.kwargs.get("M") is not None


_ANY_SIGN = "vectors are unique up to a sign, or a rotation where values are equal"

OPERATORS: dict[str, Unique] = {
    "sort": _ties(0),
    "argsort": _ties(0),
    "topk": _ties(1),
    "kthvalue": _ties(1, keepdim=2),
    "mode": _ties(0, keepdim=1),
    "svd": Unique(_svd, _ANY_SIGN),
    "linalg.svd": Unique(_svd, _ANY_SIGN),
    "svd_lowrank": Unique(
        _svd_lowrank,
        f"a randomised algorithm; {_ANY_SIGN}; where the rank is larger than q the values depend on the draw",
    ),
    "pca_lowrank": Unique(_of_opinfo, "a randomised algorithm; " + _ANY_SIGN),
    "linalg.eigh": Unique(_eigh, _ANY_SIGN),
    "linalg.eig": Unique(_eig, "eigenvalues come in any order, vectors with any phase"),
    "linalg.eigvals": Unique(_eigvals, "eigenvalues come in any order"),
    "linalg.qr": Unique(_qr, "columns of Q are unique up to a sign"),
}
