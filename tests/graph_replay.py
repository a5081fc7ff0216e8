"""Runs a traced graph (the encoding of `_core.pyi`) on CPU tensors: checks the tracer without a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch_pjrt import _decompose, _graph_encoding, _recorder

CPU = torch.device("cpu")


def _constant(data: bytes, meta) -> torch.Tensor:
    dtype, sizes, _ = meta
    if not data:
        return torch.empty(sizes, dtype=_graph_encoding.DTYPES[dtype])
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(_graph_encoding.DTYPES[dtype])
    return flat.reshape(sizes)


def replay(graph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Outputs of `graph` for the tensors of the call. Checks the metadata of every node on the way."""
    inputs, nodes, outputs = graph
    values: dict[tuple[int, int], torch.Tensor] = {}
    for position, (kind, what, meta) in enumerate(inputs):
        values[-1, position] = tensors[what] if kind == "slot" else _constant(what, meta)
    for index, (name, arguments, metas) in enumerate(nodes):
        op = _graph_encoding.find_operator(name)
        assert not op._schema.is_mutable, f"{name} writes to its arguments"
        decoded = [_decode(argument, values) for argument in arguments]
        args, kwargs = _graph_encoding.decode_arguments(op, decoded, CPU)
        kwargs.pop("generator", None)
        packet = getattr(getattr(torch.ops, op.namespace), op._schema.name.split("::")[1])
        takes_number = any(
            isinstance(value, int | float | bool | complex) and str(argument.type) == "Tensor"
            for argument, value in zip(op._schema.arguments, decoded, strict=True)
        )
        results = _recorder.flatten((packet if takes_number else op)(*args, **kwargs))
        assert len(results) == len(metas), name
        for output, (result, meta) in enumerate(zip(results, metas, strict=True)):
            if result is None or meta is None:
                continue
            got = _graph_encoding.meta_of(result)
            assert got[:2] == (meta[0], tuple(meta[1])), f"{name}: {got} is not what was announced, {meta}"
            values[index, output] = result
    return [None if ref is None else values[tuple(ref)] for ref in outputs]


def _decode(argument, values):
    tag, *payload = argument
    if tag in ("none", "o"):
        return None
    if tag == "t":
        return values[tuple(payload[0])]
    if tag == "ts":
        return [None if ref is None else values[tuple(ref)] for ref in payload[0]]
    return payload[0]


def call(op: torch._ops.OpOverload, args: Sequence):
    """`op` with arguments by schema position, keyword-only ones included."""
    filled = _graph_encoding.bind(op, args, {})
    pairs = list(zip(op._schema.arguments, filled, strict=True))
    positional = [value for argument, value in pairs if not argument.kwarg_only]
    return op(*positional, **{argument.name: value for argument, value in pairs if argument.kwarg_only})


def for_core(op: torch._ops.OpOverload, args: Sequence) -> tuple[list, list[torch.Tensor]]:
    """The arguments as the core gives them to `trace`, and the tensors among them."""
    tensors: list[torch.Tensor] = []

    def convert(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _decompose.meta_tensor(
                value.shape, value.stride(), _graph_encoding.DTYPE_NUMBERS[value.dtype]
            )
        if isinstance(value, list | tuple):
            return [convert(item) for item in value]
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return _graph_encoding._number(value)
        return value

    filled = _graph_encoding.bind(op, args, {})
    return [convert(value) for value in filled], tensors
