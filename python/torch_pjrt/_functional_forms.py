"""From operators that write to their arguments to those that return new values; how to undo a view."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ._graph_encoding import Untraceable, operator_name

_aten = torch.ops.aten
Overload = torch._ops.OpOverload

# In-place operators whose functional form has another name or argument list.
_RENAMED = {
    "aten::normal_.default": "normal_functional.default",
    "aten::bernoulli_.float": "bernoulli.p",
    "aten::bernoulli_.Tensor": "bernoulli.Tensor",
    "aten::copy_.default": "copy.default",
    "aten::set_data.default": None,
}


def written_arguments(op: Overload) -> list[int]:
    """Positions of the arguments that `op` writes to."""
    return [
        position
        for position, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def fresh_returns(op: Overload) -> list[int]:
    """Positions of the returns that are not one of the written arguments."""
    return [
        position
        for position, value in enumerate(op._schema.returns)
        if value.alias_info is None or not value.alias_info.is_write
    ]


def is_view(op: Overload) -> bool:
    """Whether a result of `op` shares storage with an argument that it does not write to."""
    return any(value.alias_info is not None and not value.alias_info.is_write for value in op._schema.returns)


def _argument_types(op: Overload, *, without_out: bool) -> list[str]:
    """Types by position. Matching goes by these, not by names: `normal_` and `normal` differ in what they
    take.
    """
    return [
        str(argument.real_type)
        for argument in op._schema.arguments
        if not (without_out and argument.kwarg_only and argument.alias_info is not None)
    ]


@functools.cache
def functional_form(op: Overload) -> Overload | None:
    """The overload that computes what `op` writes: `add.Tensor` for `add_.Tensor` and for `add.out`. None if
    there is none.
    """
    name = op._schema.name.split("::")[1]
    full = operator_name(op)
    if full in _RENAMED:
        renamed = _RENAMED[full]
        if renamed is None:
            return None
        packet, overload = renamed.split(".")
        return getattr(getattr(_aten, packet), overload)
    namespace = getattr(torch.ops, op.namespace)
    is_out = any(
        a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments
    )
    base = name if is_out else (name[:-1] if name.endswith("_") and not name.endswith("__") else name)
    if name.startswith("__i") and name.endswith("__"):
        base = "__" + name[3:]
    packets = [base] if is_out else [base, f"{base}_functional", f"{name}_functional"]
    wanted = _argument_types(op, without_out=is_out)
    for packet_name in packets:
        packet = getattr(namespace, packet_name, None)
        if packet is None:
            continue
        for overload_name in packet.overloads():
            candidate = getattr(packet, overload_name)
            if not candidate._schema.is_mutable and _argument_types(candidate, without_out=False) == wanted:
                return candidate
    return None


def _view_shape(parent: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return _aten.view.default(new, list(parent.shape))


def _undo_split(
    parent: torch.Tensor, new: torch.Tensor, values: Sequence[Any], output: int, sizes: Sequence[int]
):
    dim = values[2] if len(values) > 2 else 0
    start = sum(sizes[:output])
    return _aten.slice_scatter.default(parent, new, dim, start, start + sizes[output], 1)


def _inverse_permutation(dims: Sequence[int]) -> list[int]:
    rank = len(dims)
    inverse = [0] * rank
    for position, dim in enumerate(dims):
        inverse[dim % rank] = position
    return inverse


def _split_sizes(parent: torch.Tensor, size: int, dim: int) -> list[int]:
    length = parent.shape[dim]
    return [min(size, length - start) for start in range(0, length, size)] if size else [0]


# View -> (parent, new value of the view, the view's arguments by schema position, output) -> new value of the
# parent.
_UNDO: dict[str, Callable[[torch.Tensor, torch.Tensor, list[Any], int], torch.Tensor]] = {
    "aten::alias.default": lambda p, n, a, k: n,
    "aten::detach.default": lambda p, n, a, k: n,
    "aten::view.default": lambda p, n, a, k: _view_shape(p, n),
    "aten::_unsafe_view.default": lambda p, n, a, k: _view_shape(p, n),
    "aten::_reshape_alias.default": lambda p, n, a, k: _view_shape(p, n),
    "aten::unsqueeze.default": lambda p, n, a, k: _view_shape(p, n),
    "aten::squeeze.default": lambda p, n, a, k: _view_shape(p, n),
    "aten::squeeze.dim": lambda p, n, a, k: _view_shape(p, n),
    "aten::squeeze.dims": lambda p, n, a, k: _view_shape(p, n),
    "aten::t.default": lambda p, n, a, k: _aten.t.default(n),
    "aten::transpose.int": lambda p, n, a, k: _aten.transpose.int(n, a[1], a[2]),
    "aten::permute.default": lambda p, n, a, k: _aten.permute.default(n, _inverse_permutation(a[1])),
    "aten::view.dtype": lambda p, n, a, k: _aten.view.dtype(n, p.dtype),
    "aten::view_as_real.default": lambda p, n, a, k: _aten.view_as_complex.default(n),
    "aten::view_as_complex.default": lambda p, n, a, k: _aten.view_as_real.default(n),
    "aten::select.int": lambda p, n, a, k: _aten.select_scatter.default(p, n, a[1], a[2]),
    "aten::slice.Tensor": lambda p, n, a, k: _aten.slice_scatter.default(p, n, *a[1:]),
    "aten::diagonal.default": lambda p, n, a, k: _aten.diagonal_scatter.default(p, n, *a[1:]),
    "aten::as_strided.default": lambda p, n, a, k: _aten.as_strided_scatter.default(p, n, *a[1:]),
    "aten::unbind.int": lambda p, n, a, k: _aten.select_scatter.default(p, n, a[1], k),
    "aten::split_with_sizes.default": lambda p, n, a, k: _undo_split(p, n, a, k, a[1]),
    "aten::split.Tensor": lambda p, n, a, k: _undo_split(p, n, a, k, _split_sizes(p, a[1], a[2])),
}


def undo_view(
    op: Overload, parent: torch.Tensor, new: torch.Tensor, values: list[Any], output: int
) -> torch.Tensor:
    """New value of `parent` when output `output` of the view `op(parent, ...)` became `new`."""
    undo = _UNDO.get(operator_name(op))
    if undo is None:
        raise Untraceable(
            f"writing through the view {operator_name(op)} is not supported", [operator_name(op)]
        )
    return undo(parent, new, values, output)
