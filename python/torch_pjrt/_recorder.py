"""Records operators that run on meta tensors as a graph of operators that have a lowering.

Each operator that the recorder sees is, in this order: kept as a node when it has a lowering; a write turned
into its functional form; PyTorch's C++ composite; PyTorch's Python decomposition; a C++ composite with an
autograd formula. What remains is missing.

Writes are followed through views: a storage has a version, a view knows how it was made, a write becomes a
new value of the base (`select_scatter` and so on), and a stale view is made again when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from . import _attention
from . import _functional_forms as functional_forms
from ._decomposition_table import decomposition
from ._dispatch_state import KeepConstants
from ._graph_encoding import Untraceable, bind, encode_call, meta_of, operator_name

_aten = torch.ops.aten
_META = torch.device("meta")
_Key = torch._C.DispatchKey

_LARGEST_CONSTANT = 1024

# How deep an operator may contain itself. Some composites call the operator on smaller inputs; a cycle
# (index_put and index_put_) would recurse until Python dies.
_MAX_NESTING = 4


def _overloads(packet: str) -> list[torch._ops.OpOverload]:
    found = getattr(_aten, packet)
    return [getattr(found, name) for name in found.overloads()]


_ALLOCATES = {
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    _aten.empty_permuted.default,
}
# Operators that give every element of their first argument a new value, whatever it was: memory that nothing
# wrote will do. Only its form counts for the `*_like` ones.
_OVERWRITES = frozenset(
    overload
    for packet in (
        *(
            "copy",
            "fill",
            "zero",
            "uniform",
            "normal_functional",
            "bernoulli",
            "exponential",
            "random",
            "cauchy",
        ),
        *("geometric", "log_normal", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
        *(
            "randint_like",
            "empty_like",
            "new_empty",
            "new_empty_strided",
            "new_zeros",
            "new_ones",
            "new_full",
        ),
    )
    for overload in _overloads(packet)
    if not overload._schema.is_mutable
)
# The noise is an output, too.
_OVERWRITES_SECOND = frozenset({_aten.rrelu_with_noise.default, _aten.rrelu_with_noise_functional.default})
# The Meta kernel announces another dtype than the operator gives (float instead of bool); aten's is right.
_MISDECLARED = {torch.ops.prims.signbit.default}
_SAME_VIEWS = {_aten.detach.default, _aten.alias.default}
# The value does not change.
_IDENTITIES = {
    _aten.lift_fresh.default,
    _aten.lift_fresh_copy.default,
    _aten.resolve_conj.default,
    _aten.resolve_neg.default,
}


@dataclass
class _Storage:
    """State of the memory that some tensors share. written: a value has been given to it."""

    version: int = 0
    written: bool = True


@dataclass
class _Value:
    """What is known of one tensor: where its value is in the graph, as of a version of its storage, and how
    it was made from another one when it is a view.
    """

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

    native: names of the operators that may be nodes. A CPU tensor from outside is a constant, whose data goes
    into the graph; with `captured`, one of more than `_LARGEST_CONSTANT` elements is an input like the call's
    own, and `captured` lists them in the order of their slots (a whole model: its parameters).
    """

    def __init__(self, native: frozenset[str] | set[str], captured: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self.native = native
        self.captured = captured
        self._slots = 0
        self._given: set[int] = set()  # ids of the call's own tensors
        self.inputs: list[tuple] = []
        self.nodes: list[tuple] = []
        self._values: dict[int, _Value] = {}
        self._storages: dict[int, _Storage] = {}
        self._nesting: dict[torch._ops.OpOverload, int] = {}
        self._stand_ins: dict[int, torch.Tensor] = {}  # by id of the tensor with data
        self._constants: dict[int, torch.Tensor] = {}  # by id of the stand-in
        self._kept: list[torch.Tensor] = []  # so that no id is used again

    # Values
    # ------------------------------------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, slot: int) -> None:
        """Make `tensor` an input of the graph: tensor number `slot` of the call."""
        self.inputs.append(("slot", slot, meta_of(tensor)))
        self._slots = max(self._slots, slot + 1)
        self._given.add(id(tensor))
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
            if self.captured is not None and (
                tensor.device.type != "cpu"
                or tensor.numel() > _LARGEST_CONSTANT
                or isinstance(tensor, torch.nn.Parameter)
            ):
                return self._capture(tensor)
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

    def _capture(self, tensor: torch.Tensor) -> torch.Tensor:
        stand_in = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
        self.add_input(stand_in, self._slots)
        self.captured.append(tensor)
        self._stand_ins[id(tensor)] = stand_in
        return stand_in

    def read(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Where the current value of `tensor` is in the graph."""
        value = self._lookup(tensor)
        if value.version == value.storage.version and value.ref is not None:
            return value.ref
        if not value.storage.written and tensor.numel() == 0:
            self._allocate(value)
            return self.read(tensor)
        if not value.storage.written:
            raise Untraceable("memory was read that the decomposition had not written")
        if value.parent is None:
            raise Untraceable("a tensor lost its value while its storage was written")
        # A view of something that was written after it was made: make it again.
        fresh = self._call(value.op, (self._snapshot(value.parent), *value.arguments[0]), value.arguments[1])
        value.ref = self.read(flatten(fresh)[value.output])
        value.version = value.storage.version
        return value.ref

    def result(self, tensor: torch.Tensor) -> tuple[int, int]:
        """`read`, for what the traced function returned: constants and unwritten memory may be among it."""
        tensor = self._on_meta(tensor)
        value = self._lookup(tensor)
        if not value.storage.written:
            self._allocate(value)
        return self.read(tensor)

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
        """Memory that is about to be written in part begins as zeros: whatever is left unwritten has no
        meaning.
        """
        tensor = base.tensor
        while base.parent is not None:
            base = self._lookup(base.parent)
            tensor = base.tensor
        with self:
            zeros = _aten.full.default(list(tensor.shape), 0, dtype=tensor.dtype, device=_META)
        base.ref = self.read(zeros)
        base.storage.written = True
        base.version = base.storage.version

    # Operators
    # ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Record or take apart one operator."""
        args, kwargs = tree_map(self._on_meta, (args, kwargs or {}))
        return self._run(func, args, kwargs)

    def _on_meta(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor) and id(item) not in self._values:
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
            # The result is a view with a bit set; its value is computed at once, a write through it is
            # refused.
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
        if operator_name(func) in self.native and func not in _MISDECLARED:
            return self._record(func, args, kwargs)
        if (
            func is _aten.scaled_dot_product_attention.default
            and operator_name(_attention.OPERATOR) in self.native
            and (fused := _attention.fused_arguments(*args, **kwargs)) is not None
        ):
            return self._call(_attention.OPERATOR, *fused)[0]
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
        """`as_strided` addresses memory, not the logical tensor: it is recorded on the tensor that owns the
        memory.
        """
        explicit_offset = offset is not None
        offset = offset if explicit_offset else tensor.storage_offset()
        value = self._lookup(tensor)
        while value.parent is not None:
            value = self._lookup(value.parent)
        base = value.tensor
        if not base.is_contiguous() or base.storage_offset() or base.dtype != tensor.dtype:
            raise Untraceable("as_strided on memory that is not row-major", ["aten::as_strided.default"])
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if (explicit_offset and id(base) in self._given) or (0 not in sizes and last >= base.numel()):
            # An argument may begin anywhere in a larger storage; only its own window is known here.
            raise Untraceable("as_strided leaves the tensor that it is given", ["aten::as_strided.default"])
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
                    overwritten = 0 if func in _OVERWRITES else 1 if func in _OVERWRITES_SECOND else -1
                    if position != overwritten:
                        self.read(item)  # raises, unless it has no elements
                    self._allocate(value)
        result = self._evaluate(func, args, kwargs)
        outputs = flatten(result)
        if any(not isinstance(item, torch.Tensor) and item is not None for item in outputs):
            raise Untraceable(
                f"{operator_name(func)} answers on the host (data dependent)", [operator_name(func)]
            )
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
                f"{operator_name(func)} writes to its arguments and has no functional form",
                [operator_name(func)],
            )
        values = bind(func, args, kwargs)
        written = functional_forms.written_arguments(func)
        targets = [
            tensor for position in written for tensor in flatten(values[position]) if tensor is not None
        ]
        for position in sorted(written, reverse=True):
            if func._schema.arguments[position].kwarg_only:
                del values[position]  # out=
        positional, keywords = [], {}
        for argument, value in zip(functional._schema.arguments, values, strict=True):
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
        results = [item for item in flatten(self._call(functional, positional, keywords)) if item is not None]
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
            next(
                written if declared.alias_info is not None and declared.alias_info.is_write else fresh_results
            )
            for declared in func._schema.returns
        ]
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def _change_view_in_place(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        """`transpose_` and the like change what the tensor shows, not its memory: it becomes a view of what
        it was.
        """
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
                with self, KeepConstants():
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
        raise Untraceable(
            f"{operator_name(func)} has neither a lowering nor a decomposition", [operator_name(func)]
        )


def _has_kernel(func: torch._ops.OpOverload, key: torch._C.DispatchKey) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def flatten(value: Any) -> list[Any]:
    """Results of an operator in order, through lists; an undefined tensor is None."""
    if value is None or isinstance(value, torch.Tensor) or not isinstance(value, list | tuple):
        return [value]
    return [item for part in value for item in flatten(part)]
