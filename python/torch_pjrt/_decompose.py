"""The tracer of a plan miss: one operator becomes a graph of operators that have a lowering.

`trace` answers the core's call; the encoding of its result is `TracedGraph` in `_core.pyi`. The operator runs once on
meta tensors under `Recorder`, below autograd and with the user's modes set aside. Each operator that the recorder sees is,
in this order: kept as a node when it has a lowering; a write turned into its functional form; PyTorch's C++ composite;
PyTorch's Python decomposition; a C++ composite with autograd formula. What remains is missing.

Writes inside a decomposition are followed through views: a storage has a version, a view knows how it was made, a write
becomes a new value of the base (`select_scatter` and so on), and a stale view is made again when it is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from . import _functional_forms as functional_forms
from ._decomposition_table import decomposition
from ._graph_encoding import (
    DTYPES,
    Untraceable,
    bind,
    decode_arguments,
    encode_call,
    find_operator,
    meta_of,
    operator_name,
)

_aten = torch.ops.aten
_META = torch.device("meta")
_Key = torch._C.DispatchKey

# How deep an operator may contain itself. Some composites call the operator on smaller inputs; a cycle (index_put and
# index_put_) would recurse until Python dies.
_MAX_NESTING = 4

_ALLOCATES = {
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    _aten.empty_permuted.default,
}
# These give every element of their first argument a new value, so they may be given memory that nothing wrote.
_OVERWRITES = {
    _aten.copy.default,
    _aten.fill.Scalar,
    _aten.fill.Tensor,
    _aten.zero.default,
    _aten.uniform.default,
    _aten.normal_functional.default,
    _aten.bernoulli.p,
    _aten.exponential.default,
    _aten.random.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
    _aten.rand_like.default,
    _aten.randn_like.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_zeros.default,
    _aten.new_full.default,
    _aten.new_ones.default,
}
_SAME_VIEWS = {_aten.detach.default, _aten.alias.default}
# The value does not change.
_IDENTITIES = {_aten.lift_fresh.default, _aten.lift_fresh_copy.default, _aten.resolve_conj.default, _aten.resolve_neg.default}


def meta_tensor(sizes: Sequence[int], strides: Sequence[int], dtype: int) -> torch.Tensor:
    """A tensor without data of that form; `dtype` is a c10 number."""
    return torch.empty_strided(tuple(sizes), tuple(strides), dtype=DTYPES[dtype], device=_META)


@dataclass
class _Storage:
    """State of the memory that some tensors share. written: a value has been given to it."""

    version: int = 0
    written: bool = True


@dataclass
class _Value:
    """What is known of one tensor: where its value is in the graph, as of a version of its storage, and how it was made
    from another one when it is a view."""

    tensor: torch.Tensor  # keeps its id and its storage's from being used again
    ref: tuple[int, int] | None
    storage: _Storage
    version: int
    parent: torch.Tensor | None = None
    op: torch._ops.OpOverload | None = None
    arguments: tuple = ()
    output: int = 0


class Recorder(TorchDispatchMode):
    """Records the operators that run under it on meta tensors as a graph.

    native: names of the operators that may be nodes. Constants on the CPU become inputs.
    """

    def __init__(self, native: frozenset[str] | set[str]) -> None:
        super().__init__()
        self.native = native
        self.inputs: list[tuple] = []
        self.nodes: list[tuple] = []
        self._values: dict[int, _Value] = {}
        self._storages: dict[int, _Storage] = {}
        self._nesting: dict[torch._ops.OpOverload, int] = {}
        self._stand_ins: dict[int, torch.Tensor] = {}  # by id of the tensor with data
        self._constants: dict[int, torch.Tensor] = {}  # by id of the stand-in
        self._kept: list[torch.Tensor] = []  # so that no id is used again

    # Values ------------------------------------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, slot: int) -> None:
        """Make `tensor` an input of the graph: tensor number `slot` of the call."""
        self.inputs.append(("slot", slot, meta_of(tensor)))
        self._bind(tensor, (-1, len(self.inputs) - 1))

    def _storage(self, tensor: torch.Tensor) -> _Storage:
        return self._storages.setdefault(tensor.untyped_storage()._cdata, _Storage())

    def _bind(self, tensor: torch.Tensor, ref: tuple[int, int] | None, **origin: Any) -> _Value:
        storage = self._storage(tensor)
        value = _Value(tensor, ref, storage, storage.version, **origin)
        self._values[id(tensor)] = value
        return value

    def _lookup(self, tensor: torch.Tensor) -> _Value:
        value = self._values.get(id(tensor))
        if value is None:
            raise Untraceable(f"a {tensor.device} tensor from outside the operator was read")
        return value

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """The meta tensor that stands for a tensor with data: a constant input of the graph."""
        stand_in = self._stand_ins.get(id(tensor))
        if stand_in is None:
            if tensor.device.type != "cpu":
                raise Untraceable(f"a {tensor.device} tensor from outside the operator was read")
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            data = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
            self.inputs.append(("constant", data, meta_of(dense)))
            stand_in = torch.empty(dense.shape, dtype=dense.dtype, device=_META)
            self._bind(stand_in, (-1, len(self.inputs) - 1))
            self._constants[id(stand_in)] = dense
            self._stand_ins[id(tensor)] = stand_in
            self._kept.append(tensor)
        return stand_in

    def read(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Where the current value of `tensor` is in the graph."""
        value = self._lookup(tensor)
        if value.version == value.storage.version and value.ref is not None:
            return value.ref
        if not value.storage.written:
            raise Untraceable("memory was read that the decomposition had not written")
        if value.parent is None:
            raise Untraceable("a tensor lost its value while its storage was written")
        # A view of something that was written after it was made: make it again.
        fresh = self._call(value.op, (self._snapshot(value.parent), *value.arguments[0]), value.arguments[1])
        value.ref = self.read(_flatten(fresh)[value.output])
        value.version = value.storage.version
        return value.ref

    def result(self, tensor: torch.Tensor) -> tuple[int, int]:
        """`read`, for what the traced function returned: a constant may be among it."""
        return self.read(self._on_meta(tensor))

    def _snapshot(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor that holds the value that `tensor` has now."""
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
        storage = self._storage(tensor)
        if storage.written:
            self._bind(copy, self.read(tensor))
        else:
            self._bind(copy, None).storage.written = False
        return copy

    def _write(self, tensor: torch.Tensor, new: torch.Tensor) -> None:
        """`tensor` has the value of `new` from now on, and everything that shares its storage sees it."""
        chain: list[tuple[_Value, tuple[int, int]]] = []
        value = self._lookup(tensor)
        while True:
            chain.append((value, self.read(new)))
            if value.parent is None:
                break
            parent = self._lookup(value.parent)
            if not parent.storage.written:
                self._allocate(parent)
            before = self._snapshot(value.parent)
            arguments = bind(value.op, (None, *value.arguments[0]), value.arguments[1])
            with self:
                new = functional_forms.undo_view(value.op, before, new, arguments, value.output)
            value = parent
        storage = value.storage
        storage.version += 1
        storage.written = True
        for written, ref in chain:
            written.ref, written.version = ref, storage.version

    def _allocate(self, base: _Value) -> None:
        """Memory that is about to be written in part begins as zeros: whatever is left unwritten has no meaning."""
        tensor = base.tensor
        while base.parent is not None:
            base = self._lookup(base.parent)
            tensor = base.tensor
        with self:
            zeros = _aten.full.default(list(tensor.shape), 0, dtype=tensor.dtype, device=_META)
        base.ref = self.read(zeros)
        base.storage.written = True
        base.version = base.storage.version

    # Operators ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Record or take apart one operator."""
        args, kwargs = tree_map(self._on_meta, (args, kwargs or {}))
        return self._run(func, args, kwargs)

    def _on_meta(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor) and item.device.type != "meta":
            return self._constant(item)
        return _META if isinstance(item, torch.device) else item

    def _call(self, func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with self:
            return func(*args, **kwargs)

    def _run(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        if func in _IDENTITIES:
            return args[0]
        if func is _aten.detach_.default:
            return args[0]
        if func is _aten._local_scalar_dense.default:
            return self._host_value(args[0])
        if func in (_aten._conj.default, _aten._neg_view.default):
            # The result is a view with a bit set; its value is computed at once, a write through it is refused.
            physical = _aten.conj_physical.default if func is _aten._conj.default else _aten.neg.default
            value = self._call(physical, (args[0],), {})
            result = func(args[0])
            self._bind(result, self.read(value), parent=args[0], op=func, arguments=((), {}))
            return result
        if func in _SAME_VIEWS:
            result = func(args[0])
            same = self._lookup(args[0])
            self._bind(result, same.ref, parent=args[0], op=func, arguments=((), {})).version = same.version
            return result
        if func is _aten.as_strided.default:
            args, kwargs = self._from_base(args[0], *bind(func, args, kwargs)[1:]), {}
        if func in _ALLOCATES:
            return self._allocation(func, args, kwargs)
        if torch.Tag.inplace_view in func.tags:
            return self._change_view_in_place(func, args, kwargs)
        if functional_forms.written_arguments(func):
            return self._run_write(func, args, kwargs)
        if operator_name(func) in self.native:
            return self._record(func, args, kwargs)
        return self._decompose(func, args, kwargs)

    def _host_value(self, tensor: torch.Tensor) -> Any:
        constant = self._constants.get(id(tensor))
        if constant is None or self._lookup(tensor).storage.version:
            raise Untraceable("the operator needs the value of a tensor on the host (data dependent)")
        return constant.item()

    def _evaluate(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run the operator on meta tensors, for the form of its results."""
        if any(argument.name == "device" for argument in func._schema.arguments):
            kwargs = {**kwargs, "device": _META}
        kwargs.pop("generator", None)
        return func(*args, **kwargs)

    def _from_base(self, tensor: torch.Tensor, sizes: Any, strides: Any, offset: int | None) -> tuple:
        """`as_strided` addresses memory, not the logical tensor: it is recorded on the tensor that owns the memory."""
        offset = tensor.storage_offset() if offset is None else offset
        value = self._lookup(tensor)
        while value.parent is not None:
            value = self._lookup(value.parent)
        base = value.tensor
        if not base.is_contiguous() or base.storage_offset() or base.dtype != tensor.dtype:
            raise Untraceable("as_strided on memory that is not row-major", ["aten::as_strided.default"])
        return base, sizes, strides, offset

    def _allocation(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
        result = self._evaluate(func, args, kwargs)
        self._bind(result, None).storage.written = False
        return result

    def _record(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        for position, item in enumerate(tree_iter((args, kwargs))):
            if isinstance(item, torch.Tensor):
                value = self._lookup(item)
                if not value.storage.written and not functional_forms.is_view(func):
                    if func not in _OVERWRITES or position != 0:
                        self.read(item)  # raises
                    self._allocate(value)
        result = self._evaluate(func, args, kwargs)
        outputs = _flatten(result)
        if any(not isinstance(item, torch.Tensor) and item is not None for item in outputs):
            raise Untraceable(f"{operator_name(func)} answers on the host (data dependent)", [operator_name(func)])
        view = functional_forms.is_view(func) and isinstance(args[0], torch.Tensor)
        # A view of memory that nothing wrote yet has no value, only a place to write to.
        pending = view and not self._lookup(args[0]).storage.written
        if not pending:
            self.nodes.append(
                (
                    operator_name(func),
                    encode_call(func, args, kwargs, self.read),
                    [None if item is None else meta_of(item) for item in outputs],
                )
            )
        for output, item in enumerate(outputs):
            if item is None:
                continue
            ref = None if pending else (len(self.nodes) - 1, output)
            if view:
                self._bind(item, ref, parent=args[0], op=func, arguments=(args[1:], kwargs), output=output)
            else:
                self._bind(item, ref)
        return result

    def _run_write(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An operator that writes to arguments: the functional form, then its results as their new values."""
        if func is torch.ops.prims.copy_to.default:
            self._assign(*args)
            return args[0]
        functional = functional_forms.functional_form(func)
        if functional is None:
            raise Untraceable(
                f"{operator_name(func)} writes to its arguments and has no functional form", [operator_name(func)]
            )
        values = bind(func, args, kwargs)
        written = functional_forms.written_arguments(func)
        targets = [tensor for position in written for tensor in _flatten(values[position]) if tensor is not None]
        for position in sorted(written, reverse=True):
            if func._schema.arguments[position].kwarg_only:
                del values[position]  # out=
        positional, keywords = [], {}
        for argument, value in zip(functional._schema.arguments, values, strict=True):
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
        results = [item for item in _flatten(self._call(functional, positional, keywords)) if item is not None]
        fresh = results[: len(results) - len(targets)]
        for target, new in zip(targets, results[len(fresh) :], strict=True):
            self._assign(target, new)
        return self._returned(func, args, kwargs, fresh)

    def _assign(self, target: torch.Tensor, new: torch.Tensor) -> None:
        if new.dtype != target.dtype:
            new = self._call(_aten._to_copy.default, (new,), {"dtype": target.dtype})
        if new.shape != target.shape:
            new = self._call(_aten.expand.default, (new, list(target.shape)), {})
        self._write(target, new)

    def _returned(
        self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any], fresh: Sequence[torch.Tensor]
    ) -> Any:
        """What `func` returns: written arguments themselves, and fresh results in their places."""
        by_position = bind(func, args, kwargs)
        written = iter([by_position[position] for position in functional_forms.written_arguments(func)])
        fresh_results = iter(fresh)
        results = [
            next(written if declared.alias_info is not None and declared.alias_info.is_write else fresh_results)
            for declared in func._schema.returns
        ]
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def _change_view_in_place(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        """`transpose_` and the like change what the tensor shows, not its memory: it becomes a view of what it was."""
        functional = functional_forms.functional_form(func)
        target = args[0]
        if functional is None:
            raise Untraceable(f"{operator_name(func)} has no functional form", [operator_name(func)])
        value = self._lookup(target)
        before = target.as_strided(target.shape, target.stride(), target.storage_offset())
        self._values[id(before)] = replace(value, tensor=before)
        for other in self._values.values():
            if other.parent is target:
                other.parent = before
        view = self._call(functional, (before, *args[1:]), kwargs)
        func(*args, **kwargs)
        self._values[id(target)] = replace(self._lookup(view), tensor=target)
        return target

    def _decompose(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        nesting = self._nesting.get(func, 0)
        if nesting >= _MAX_NESTING:
            raise Untraceable(f"{operator_name(func)} has no lowering", [operator_name(func)])
        self._nesting[func] = nesting + 1
        try:
            if _has_kernel(func, _Key.CompositeImplicitAutograd):
                with self:
                    return func._op_dk(_Key.CompositeImplicitAutograd, *args, **kwargs)
            if (python := decomposition(func)) is not None:
                # Entered here, not once outside: a function mode is off while its own handler runs.
                with self, _KeepConstants():
                    result = python(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            if _has_kernel(func, _Key.CompositeExplicitAutograd):
                with self:
                    return func._op_dk(_Key.CompositeExplicitAutograd, *args, **kwargs)
            if _has_kernel(func, _Key.CompositeExplicitAutogradNonFunctional):
                with self:
                    return func._op_dk(_Key.CompositeExplicitAutogradNonFunctional, *args, **kwargs)
        finally:
            self._nesting[func] = nesting
        raise Untraceable(f"{operator_name(func)} has neither a lowering nor a decomposition", [operator_name(func)])


def _has_kernel(func: torch._ops.OpOverload, key: torch._C.DispatchKey) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def _flatten(value: Any) -> list[Any]:
    """Results of an operator in order, through lists; an undefined tensor is None."""
    if value is None or isinstance(value, torch.Tensor) or not isinstance(value, list | tuple):
        return [value]
    return [item for part in value for item in _flatten(part)]


class _KeepConstants(TorchFunctionMode):
    """Tensors made from Python data stay on the CPU: on the meta device their data would be lost."""

    _MAKERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
    _INDEXING = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Redirect the makers of constants, and index lists, to the CPU."""
        kwargs = kwargs or {}
        if func in self._MAKERS and not any(isinstance(a, torch.Tensor) for a in args):
            kwargs = {**kwargs, "device": "cpu"}
        elif func in self._INDEXING:
            args = (args[0], _index_lists_to_tensors(args[1]), *args[2:])
        return func(*args, **kwargs)


def _index_lists_to_tensors(index: Any) -> Any:
    if isinstance(index, list):
        return torch.tensor(index) if index and not any(isinstance(i, torch.Tensor | slice) for i in index) else index
    if isinstance(index, tuple):
        return tuple(_index_lists_to_tensors(item) for item in index)
    return index


@contextlib.contextmanager
def clean_dispatch_state() -> Iterator[None]:
    """Default dispatcher state below autograd, without the user's dispatch modes, function modes, transforms, autocast,
    default device or grad mode."""
    set_aside = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C._DisableFuncTorch())
        stack.enter_context(
            torch._C._ForceDispatchKeyGuard(
                torch._C.DispatchKeySet(_Key.BackendSelect) | torch._C.DispatchKeySet(_Key.ADInplaceOrView),
                _AUTOCAST_KEYS,
            )
        )
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(torch.no_grad())
        while torch._C._len_torch_function_stack():
            set_aside.append(torch._C._pop_torch_function_stack())
        try:
            yield
        finally:
            for mode in reversed(set_aside):
                torch._C._push_on_torch_function_stack(mode)


def _autocast_keys() -> torch._C.DispatchKeySet:
    keys = torch._C.DispatchKeySet(_Key.Undefined)
    for name in _Key.__members__:
        if name.startswith("Autocast") and name != "AutocastFunctionality":
            keys = keys | torch._C.DispatchKeySet(_Key.__members__[name])
    return keys


_AUTOCAST_KEYS = _autocast_keys()
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
        if any(_is_number(v) and str(a.type) in ("Tensor", "Optional[Tensor]") for a, v in _arguments(func, by_position)):
            # A wrapped number in a tensor's place: overload resolution finds the form that takes a number.
            func = getattr(getattr(torch.ops, func.namespace), func._schema.name.split("::")[1])
        with recorder:
            results = func(*positional, **keywords)
        outputs = []
        if isinstance(func, torch._ops.OpOverload):
            written = functional_forms.written_arguments(func)
            targets = [t for position in written for t in _flatten(by_position[position]) if t is not None]
            outputs = [recorder.result(tensor) for tensor in targets]
            if written:
                fresh = functional_forms.fresh_returns(func)
                returned = results if isinstance(results, tuple) else (results,)
                results = [returned[position] for position in fresh]
        for item in _flatten(results) if results is not None else []:
            if item is not None and not isinstance(item, torch.Tensor):
                raise Untraceable(f"{op} answers on the host (data dependent)")
            outputs.append(None if item is None else recorder.result(item))
    return _without_dead_nodes(recorder.inputs, recorder.nodes, outputs)


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


def _without_dead_nodes(inputs: list, nodes: list, outputs: list) -> tuple:
    """Nodes that no output needs go, and the constants that only they used; inputs of the call stay in their order."""
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
    except (Exception, RecursionError) as error:  # noqa: BLE001 - a decomposition may raise anything
        return None, [], f"PyTorch's decomposition of {op} failed: {type(error).__name__}: {error}"
