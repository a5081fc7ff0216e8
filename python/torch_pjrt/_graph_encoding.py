"""How an operator call is written for the core: plain tuples, described in `_core.pyi` (Meta, Ref, Arg,
NodeSpec).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

DTYPE_NUMBERS = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
    torch.float8_e5m2fnuz: 25,
    torch.float8_e4m3fnuz: 26,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}
DTYPES = {number: dtype for dtype, number in DTYPE_NUMBERS.items()}
_LAYOUTS = {torch.strided: 0, torch.sparse_coo: 1, torch.sparse_csr: 2, torch._mkldnn: 3}
_LAYOUT_BY_NUMBER = {number: layout for layout, number in _LAYOUTS.items()}
_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
_MEMORY_FORMAT_BY_NUMBER = {number: layout for layout, number in _MEMORY_FORMATS.items()}


class Untraceable(Exception):
    """The operator has no static program; `missing` names the operators that have neither lowering nor
    decomposition.
    """

    def __init__(self, reason: str, missing: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.missing = list(missing)


def operator_name(op: torch._ops.OpOverload) -> str:
    """For example "aten::add.Tensor"; the overload "default" is written out."""
    namespace, name = op._schema.name.split("::")
    return f"{namespace}::{name}.{op._overloadname}"


def find_operator(name: str) -> torch._ops.OpOverload:
    """The overload for "aten::add.Tensor" or, without an overload, the default one. AttributeError when
    unknown.
    """
    qualified, _, overload = name.partition(".")
    namespace, _, base = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def meta_of(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(dtype, sizes, strides)."""
    number = DTYPE_NUMBERS.get(tensor.dtype)
    if number is None or tensor.layout != torch.strided:
        raise Untraceable(f"a {tensor.dtype} tensor of layout {tensor.layout} cannot be part of a program")
    return number, tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))


def schema_type(argument: Any) -> str:
    """Type of a schema argument as written in native_functions.yaml, with dtype, layout and memory format
    told apart from int: "Tensor?[]", "ScalarType?", "SymInt[]" ...
    """
    # `type` shows ScalarType, Layout and MemoryFormat as int; `real_type` keeps them, and SymInt.
    kind = getattr(argument, "real_type", argument.type)
    return _written(str(kind))


def _written(kind: str) -> str:
    kind = kind.replace("__torch__.torch.classes.", "")
    while match := re.fullmatch(r"Optional\[(.*)\]", kind):
        kind = match[1] + "?"
    if match := re.fullmatch(r"List\[(.*)\](\??)", kind):
        kind = f"{_written(match[1])}[]{match[2]}"
    return kind


def _number(value: Any) -> bool | int | float | complex:
    if isinstance(value, torch.dtype):
        if value not in DTYPE_NUMBERS:
            raise Untraceable(f"the dtype {value} cannot be part of a program")
        return DTYPE_NUMBERS[value]
    if isinstance(value, torch.layout):
        return _LAYOUTS[value]
    if isinstance(value, torch.memory_format):
        return _MEMORY_FORMATS[value]
    if isinstance(value, bool | int | float | complex):
        return value
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise Untraceable(f"the size {value} is not known before the program runs")
    raise Untraceable(f"an argument of type {type(value).__name__} cannot be part of a program")


def encode_argument(argument: Any, value: Any, ref: Callable[[torch.Tensor], tuple[int, int]]) -> tuple:
    """One argument as a tagged tuple. `ref` gives the graph value of a tensor."""
    kind = schema_type(argument)
    base = kind.rstrip("?")
    if value is None:
        return ("none",)
    if base in ("Device", "Generator", "Storage", "Stream"):
        return ("o",)
    if isinstance(value, torch.Tensor):
        return ("t", ref(value))
    if isinstance(value, str):
        return ("s", value)
    if base.endswith("[]") or re.search(r"\[\d+\]$", base):
        return _encode_list(base, argument, value, ref)
    number = _number(value)
    return ("n", float(number) if base == "float" else number)


def _encode_list(kind: str, argument: Any, value: Any, ref: Callable) -> tuple:
    if not isinstance(value, list | tuple):
        # `int[2] stride` accepts one number for all.
        value = [value] * (getattr(argument, "N", None) or 1)
    element = kind[: kind.rindex("[")].rstrip("?")
    if element == "Tensor":
        return ("ts", [None if item is None else ref(item) for item in value])
    numbers = [_number(item) for item in value]
    if element in ("int", "SymInt", "ScalarType"):
        return ("is", [int(item) for item in numbers])
    if element == "float":
        return ("fs", [float(item) for item in numbers])
    if element == "bool":
        return ("bs", [bool(item) for item in numbers])
    return ("ns", numbers)


def bind(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Values by schema position, defaults filled in."""
    values = []
    for position, argument in enumerate(op._schema.arguments):
        if position < len(args):
            values.append(args[position])
        elif argument.name in kwargs:
            values.append(kwargs[argument.name])
        elif argument.has_default_value():
            values.append(argument.default_value)
        else:
            values.append(None)
    return values


def encode_call(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    ref: Callable[[torch.Tensor], tuple[int, int]],
) -> list[tuple]:
    """The arguments of one node."""
    values = bind(op, args, kwargs)
    return [encode_argument(a, v, ref) for a, v in zip(op._schema.arguments, values, strict=True)]


def decode_arguments(
    op: torch._ops.OpOverload, args: Sequence[Any], device: torch.device
) -> tuple[list, dict]:
    """The core's argument list for `op` as (args, kwargs): c10 numbers become dtypes, layouts and memory
    formats, devices become `device`, generators None.
    """
    positional, keywords = [], {}
    for argument, value in zip(op._schema.arguments, args, strict=True):
        base = schema_type(argument).rstrip("?")
        if base == "Device":
            value = device
        elif base == "Generator":
            value = None
        elif isinstance(value, int) and not isinstance(value, bool):
            if base == "ScalarType":
                value = DTYPES[value]
            elif base == "Layout":
                value = _LAYOUT_BY_NUMBER[value]
            elif base == "MemoryFormat":
                value = _MEMORY_FORMAT_BY_NUMBER[value]
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    return positional, keywords
