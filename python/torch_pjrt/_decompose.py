"""The tracer of a plan miss: one operator becomes a graph of operators that have a lowering.

`trace` answers the core's call; the encoding of its result is `TracedGraph` in `_core.pyi`. The operator runs
once on meta tensors under `Recorder`, below autograd and with the user's modes set aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from . import _functional_forms as functional_forms
from ._dispatch_state import clean_dispatch_state
from ._graph_encoding import DTYPES, Untraceable, bind, decode_arguments, find_operator
from ._recorder import Recorder, flatten

_META = torch.device("meta")


def meta_tensor(sizes: Sequence[int], strides: Sequence[int], dtype: int) -> torch.Tensor:
    """A tensor without data of that form; `dtype` is a c10 number."""
    return torch.empty_strided(tuple(sizes), tuple(strides), dtype=DTYPES[dtype], device=_META)


_native: frozenset[str] | None = None


def native_operators() -> frozenset[str]:
    """Names of the operators with a lowering."""
    global _native
    if _native is None:
        from . import _core

        _native = frozenset(_core.native_ops())
    return _native


def trace_call(op: str, args: Sequence[Any], native: frozenset[str] | set[str]) -> tuple:
    """`trace` with the lowered operators given; raises Untraceable."""
    func = find_operator(op)
    recorder = Recorder(native)
    with clean_dispatch_state():
        positional, keywords = decode_arguments(func, args, _META)
        # By position in the schema, as the core counts them.
        by_position = bind(func, positional, keywords)
        tensors = [item for item in tree_iter(by_position) if isinstance(item, torch.Tensor)]
        for slot, tensor in enumerate(tensors):
            recorder.add_input(tensor, slot)
        if any(
            _is_number(v) and str(a.type) in ("Tensor", "Optional[Tensor]")
            for a, v in _arguments(func, by_position)
        ):
            # A wrapped number in a tensor's place: overload resolution finds the form that takes a number.
            func = getattr(getattr(torch.ops, func.namespace), func._schema.name.split("::")[1])
        with recorder:
            results = func(*positional, **keywords)
        outputs = []
        if isinstance(func, torch._ops.OpOverload):
            written = functional_forms.written_arguments(func)
            targets = [t for position in written for t in flatten(by_position[position]) if t is not None]
            outputs = [recorder.result(tensor) for tensor in targets]
            if written:
                fresh = functional_forms.fresh_returns(func)
                returned = results if isinstance(results, tuple) else (results,)
                results = [returned[position] for position in fresh]
        for item in flatten(results) if results is not None else []:
            if item is not None and not isinstance(item, torch.Tensor):
                raise Untraceable(f"{op} answers on the host (data dependent)")
            outputs.append(None if item is None else recorder.result(item))
    return without_dead_nodes(recorder.inputs, recorder.nodes, outputs)


def _arguments(func: torch._ops.OpOverload, values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(func._schema.arguments, values, strict=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex)


def _refs(arguments: Sequence[tuple]) -> Iterator[tuple[int, int]]:
    for tag, *payload in arguments:
        if tag == "t":
            yield payload[0]
        elif tag == "ts":
            yield from (ref for ref in payload[0] if ref is not None)


def without_dead_nodes(inputs: list, nodes: list, outputs: list) -> tuple:
    """Nodes that no output needs go, and the constants that only they used; inputs of the call stay in their
    order.
    """
    live = {ref[0] for ref in outputs if ref is not None}
    live_inputs = {ref[1] for ref in outputs if ref is not None and ref[0] < 0}
    for index in range(len(nodes) - 1, -1, -1):
        if index in live:
            for node, position in _refs(nodes[index][1]):
                live.add(node)
                if node < 0:
                    live_inputs.add(position)
    kept_inputs = [i for i, spec in enumerate(inputs) if spec[0] == "slot" or i in live_inputs]
    kept_nodes = [i for i in range(len(nodes)) if i in live]
    new_input = {old: new for new, old in enumerate(kept_inputs)}
    new_node = {old: new for new, old in enumerate(kept_nodes)}

    def renumber(ref: tuple[int, int] | None) -> tuple[int, int] | None:
        if ref is None:
            return None
        return (-1, new_input[ref[1]]) if ref[0] < 0 else (new_node[ref[0]], ref[1])

    def rewrite(argument: tuple) -> tuple:
        if argument[0] == "t":
            return ("t", renumber(argument[1]))
        if argument[0] == "ts":
            return ("ts", [renumber(ref) for ref in argument[1]])
        return argument

    return (
        [inputs[i] for i in kept_inputs],
        [(nodes[i][0], [rewrite(a) for a in nodes[i][1]], nodes[i][2]) for i in kept_nodes],
        [renumber(ref) for ref in outputs],
    )


def trace(op: str, args: list[Any]) -> tuple:
    """What the core calls on a plan miss without a lowering: (graph | None, missing operators, reason).

    See `set_tracer` in `_core.pyi` for how `args` are given. Raises only KeyboardInterrupt and the like.
    """
    try:
        return trace_call(op, args, native_operators()), [], None
    except Untraceable as error:
        return None, error.missing, str(error)
    except (Exception, RecursionError) as error:
        return None, [], f"PyTorch's decomposition of {op} failed: {type(error).__name__}: {error}"
