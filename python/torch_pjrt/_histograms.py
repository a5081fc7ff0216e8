"""Counts of values, and of values in bins, made of other operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The greatest value decides the size: it is read."""
    if self.dtype not in _INTEGERS:
        raise NotImplementedError(f"\"bincount\" not implemented for '{self.dtype}'")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.dim() == 1 and self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    least, greatest = torch.stack(self.aminmax()).tolist() if self.dim() == 1 else (-1, 0)
    if least < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is None:
        weights = torch.ones_like(self, dtype=torch.int64)
    elif weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    elif weights.dtype != torch.float32:
        weights = weights.double()
    counts = torch.zeros(max(greatest + 1, minlength), dtype=weights.dtype, device=self.device)
    return counts.index_add_(0, self.long(), weights)


def histogram(
    self: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    edges = bin_edges(self.reshape(-1, 1), [bins], range=range)
    return from_edges(self.reshape(-1, 1), edges, _flat(weight), density), edges[0]


def histogram_with_edges(
    self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return from_edges(self.reshape(-1, 1), [bins], _flat(weight), density), bins.clone()


def histogramdd(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    return from_edges(self, bin_edges(self, bins, range=range), weight, density)


def histogramdd_with_edges(
    self: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return from_edges(self, bins, weight, density)


def bin_edges(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    """Of bins of equal width in each of the coordinates `[..., len(bins)]`."""
    if self.dim() < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    if self.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"\"histogramdd\" not implemented for '{self.dtype}'")
    dims = self.size(-1)
    if len(bins) != dims:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the input."
        )
    if range is not None and len(range) != 2 * dims:
        raise RuntimeError(
            f"torch.histogramdd: for a {dims}-dimensional histogram range should have {2 * dims} elements, "
            f"but got {len(range)}"
        )
    for dim, count in enumerate(bins):
        if count <= 0:
            raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {count} for dimension {dim}")
    if range is not None:
        limits = [_given_limits(dim, *range[2 * dim : 2 * dim + 2]) for dim, _ in enumerate(bins)]
    elif self.numel() == 0:
        limits = [(0.0, 1.0)] * dims
    else:
        limits = _limits_of(self.reshape(-1, dims))
    return [
        torch.linspace(low, high, count + 1, dtype=self.dtype, device=self.device)
        for (low, high), count in zip(limits, bins, strict=True)
    ]


def _given_limits(dim: int, low: float, high: float) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"torch.histogramdd: dimension {dim}'s range [{low:g}, {high:g}] is not finite")
    if low > high:
        raise RuntimeError(
            f"torch.histogramdd: min should not exceed max, but got min {low:g} max {high:g} for dimension {dim}"
        )
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _limits_of(rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    low, high = rows.aminmax(dim=0)
    finite = low.isfinite() & high.isfinite()
    same = low == high
    low, high = torch.where(same, low - 0.5, low), torch.where(same, high + 0.5, high)
    for dim, is_finite in enumerate(finite.unbind()):
        torch._assert_async(is_finite, f"torch.histogramdd: dimension {dim}'s range is not finite")
    return list(zip(low.unbind(), high.unbind(), strict=True))


def from_edges(self: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """Bins hold what is at their left edge and below their right one; the last one of a dimension both."""
    _check(self, edges, weight)
    rows = self.reshape(math.prod(self.shape[:-1]), self.size(-1))
    counts = [edge.numel() - 1 for edge in edges]
    ones = torch.ones(len(rows), dtype=self.dtype, device=self.device)
    amounts = ones if weight is None else weight.reshape(-1)
    position = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
    for column, edge, count in zip(rows.unbind(1), edges, counts, strict=True):
        inside = (column >= edge[0]) & (column <= edge[-1])
        amounts = torch.where(inside, amounts, 0)
        bin = torch.bucketize(column.contiguous(), edge.contiguous(), right=True) - 1
        position = position * count + bin.clamp(0, count - 1)
    histogram = torch.zeros(math.prod(counts), dtype=self.dtype, device=self.device)
    if edges:
        histogram.index_add_(0, position, amounts)
    histogram = histogram.view(counts)
    if density:
        histogram /= histogram.sum()
        for dim, edge in enumerate(edges):
            histogram /= edge.diff().view([-1 if d == dim else 1 for d in range(len(edges))])
    return histogram


def _check(self: Tensor, edges: Sequence[Tensor], weight: Tensor | None) -> None:
    def refuse(message: str) -> None:
        raise RuntimeError(f"torch.histogramdd: {message}")

    if not self.is_floating_point():
        raise NotImplementedError(f"\"histogram\" not implemented for '{self.dtype}'")
    if self.dim() < 2:
        refuse("input tensor should have at least 2 dimensions")
    dims = self.size(-1)
    if len(edges) != dims:
        refuse(
            f"expected {dims} sequences of bin edges for a {dims}-dimensional histogram but got {len(edges)}"
        )
    for dim, edge in enumerate(edges):
        if edge.dtype != self.dtype:
            refuse(
                "input tensor and bins tensors should have the same dtype, but got input with dtype "
                f"{self.dtype} and bins for dimension {dim} with dtype {edge.dtype}"
            )
        if edge.dim() != 1:
            refuse(
                f"bins tensor should have one dimension, but got {edge.dim()} dimensions in the bins tensor for "
                f"dimension {dim}"
            )
        if edge.numel() == 0:
            refuse(
                "bins tensor should have at least 1 element, but got 0 elements in the bins tensor for "
                f"dimension {dim}"
            )
        if edge.numel() == 1:
            raise RuntimeError(f"torch.histogram(): bins must be > 0, but got 0 for dimension {dim}")
    if weight is None:
        return
    if weight.dtype != self.dtype:
        refuse(
            "if weight tensor is provided, input tensor and weight tensor should have the same dtype, but got "
            f"input({self.dtype}), and weight({weight.dtype})"
        )
    if weight.shape != self.shape[:-1]:
        refuse(
            "if weight tensor is provided it should have the same shape as the input tensor excluding its "
            f"innermost dimension, but got input with shape {list(self.shape)} and weight with shape "
            f"{list(weight.shape)}"
        )


def _flat(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.reshape(-1)


def _into(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The form that writes into given tensors."""

    def written(self: Tensor, *args: object, hist: Tensor, bin_edges: Tensor, **options: object):
        for name, out in (("hist", hist), ("bin_edges", bin_edges)):
            if out.dtype != self.dtype:
                raise RuntimeError(
                    f"torch.histogram: input tensor and {name} tensor should have the same dtype, but got input "
                    f"{self.dtype} and {name} {out.dtype}"
                )
        for out, result in zip((hist, bin_edges), function(self, *args, **options), strict=True):
            out.resize_(result.shape).copy_(result)
        return hist, bin_edges

    return written


KERNELS = [
    ("bincount", bincount, "PrivateUse1"),
    ("histogram.bin_ct", histogram, "PrivateUse1"),
    ("histogram.bin_ct_out", _into(histogram), "PrivateUse1"),
    ("histogram.bins_tensor", histogram_with_edges, "PrivateUse1"),
    ("histogram.bins_tensor_out", _into(histogram_with_edges), "PrivateUse1"),
    ("_histogramdd_bin_edges", bin_edges, "PrivateUse1"),
    ("_histogramdd_from_bin_cts", histogramdd, "PrivateUse1"),
    ("_histogramdd_from_bin_tensors", histogramdd_with_edges, "PrivateUse1"),
]
