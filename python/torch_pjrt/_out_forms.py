"""`out=` forms of operators whose sizes depend on values, or for which PyTorch's Meta kernels do not answer."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _write(out: Tensor, result: Tensor, casts: bool) -> None:
    if not (torch.can_cast(result.dtype, out.dtype) if casts else result.dtype == out.dtype):
        raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {out.dtype} instead")
    if out.layout == torch.strided:
        is_empty = out.numel() == 0
        _resized(out, result)
        if is_empty:
            out.as_strided_(result.size(), result.stride())
    else:
        out.resize_as_sparse_(result)
    out.copy_(result)


def out_form(name: str, functional: Callable[..., Any], casts: bool = False) -> Callable[..., Any]:
    """The kernel of an ATen operator that writes what `functional` returns for the other arguments.

    casts: whether into tensors of wider dtypes, too.
    """
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(_aten, packet), overload)._schema
    names = [argument.name for argument in schema.arguments if argument.is_out]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        results = functional(*args, **kwargs)
        for out, result in zip(outs, results if len(outs) > 1 else (results,), strict=True):
            _write(out, result, casts)
        return tuple(outs) if len(outs) > 1 else outs[0]

    return kernel


def nonzero_out(self: Tensor, *, out: Tensor) -> Tensor:
    return _positions_into(out, "nonzero", torch.nonzero, self)


def nonzero_static_out(self: Tensor, *, size: int, fill_value: int = -1, out: Tensor) -> Tensor:
    function = functools.partial(torch.nonzero_static, size=size, fill_value=fill_value)
    return _positions_into(out, "nonzero_static", function, self)


def _positions_into(out: Tensor, name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if out.dtype != torch.int64:
        raise RuntimeError(
            f"{name}: Expected out tensor to have scalar type Long but got scalar type {out.dtype}"
        )
    _refuse_overlap(out, x)
    result = function(x)
    if _resized(out, result):
        out.as_strided_(result.size(), result.stride())
    return out.copy_(result)


def masked_select_out(self: Tensor, mask: Tensor, *, out: Tensor) -> Tensor:
    if self.dtype != out.dtype:
        raise RuntimeError("masked_select(): self and result must have the same scalar type")
    _refuse_overlap(out, self, mask)
    result = torch.masked_select(self, mask)
    _resized(out, result)
    return out.copy_(result)


def randperm_out(n: int, *, generator: torch.Generator | None, out: Tensor) -> Tensor:
    result = torch.randperm(n, generator=generator, dtype=out.dtype, device=out.device)
    return out.resize_(result.shape).copy_(result)


def _refuse_overlap(out: Tensor, *read: Tensor) -> None:
    clone = "Please clone() the tensor before performing the operation."
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            + clone
        )
    if any(torch._C._overlaps(out, tensor) for tensor in read):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
            f"memory location. {clone}"
        )


def _resized(out: Tensor, result: Tensor) -> bool:
    """Gives `out` the size of the result. Whether it had another."""
    if out.shape == result.shape:
        return False
    if out.numel() != 0:
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not "
            f"match the required output shape {list(result.shape)}. Give it no elements, or the right ones",
            stacklevel=3,
        )
    out.resize_(result.shape)
    return True


def bernoulli_out(self: Tensor, *, generator: torch.Generator | None = None, out: Tensor) -> Tensor:
    """In the dtype of `out`, whatever that of the probabilities."""
    _resized(out, self)
    return out.bernoulli_(self, generator=generator)


KERNELS = [
    ("bernoulli.out", bernoulli_out, "PrivateUse1"),
    ("masked_select.out", masked_select_out, "PrivateUse1"),
    ("nonzero.out", nonzero_out, "PrivateUse1"),
    ("nonzero_static.out", nonzero_static_out, "PrivateUse1"),
    ("randperm.generator_out", randperm_out, "PrivateUse1"),
    ("geqrf.a", out_form("geqrf.a", _aten.geqrf.default, casts=True), "PrivateUse1"),
    *(
        (name, out_form(name, functional), key)
        for name, functional, key in (
            ("_native_batch_norm_legit.out", _aten._native_batch_norm_legit.default, "PrivateUse1"),
            ("_native_batch_norm_legit.no_stats_out", _aten._native_batch_norm_legit.no_stats, "PrivateUse1"),
            ("native_batch_norm.out", _aten.native_batch_norm.default, "PrivateUse1"),
            ("sparse_sampled_addmm.out", _aten.sparse_sampled_addmm.default, "SparseCsrPrivateUse1"),
        )
    ),
]
