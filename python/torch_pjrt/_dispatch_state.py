"""The state of PyTorch's dispatcher while a program is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

_Key = torch._C.DispatchKey


class KeepConstants(TorchFunctionMode):
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
        return (
            torch.tensor(index)
            if index and not any(isinstance(i, torch.Tensor | slice) for i in index)
            else index
        )
    if isinstance(index, tuple):
        return tuple(_index_lists_to_tensors(item) for item in index)
    return index


@contextlib.contextmanager
def clean_dispatch_state() -> Iterator[None]:
    """Default dispatcher state below autograd, without the user's dispatch modes, function modes, transforms,
    autocast, default device or grad mode.
    """
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
