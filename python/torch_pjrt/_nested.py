"""Nested tensors of the strided layout: what PyTorch composes of operators on their buffer holds for every device.

Jagged tensors need nothing of this: they are Python over dense tensors. Operators that are not here raise
NotImplementedError; among PyTorch's kernels for the CPU are some that read the buffer's memory, which is none here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ._cpu_kernels import kernel_of_the_cpu

_KEY = "NestedTensorPrivateUse1"
_NAMES = (
    "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets", "is_same_size", "values",
    "detach", "alias", "clone", "copy_", "_to_copy", "empty_like", "ones_like", "unbind.int", "select.int",
    "_nested_select_backward", "split_with_sizes", "chunk", "narrow", "squeeze", "squeeze.dim", "unsqueeze",
    "transpose.int", "view", "cat", "to_padded_tensor", "abs", "neg", "sgn", "sin", "cos", "sqrt", "tanh", "relu",
    "relu_", "gelu", "gelu_", "gelu_backward", "silu", "silu_", "silu_backward", "threshold_backward",
    "logical_not", "isnan", "isinf", "isposinf", "isneginf", "all.dim", "mul.Scalar", "mul_.Scalar", "div.Scalar",
    "eq.Scalar", "eq.Tensor", "ge.Scalar", "gt.Scalar", "where.self", "where.self_out", "masked_fill.Scalar",
    "fill_.Scalar", "zero_", "native_dropout", "native_dropout_backward", "embedding", "linear", "linear_backward",
    "bmm", "matmul", "matmul_backward", "_softmax", "_softmax_backward_data", "_safe_softmax",
)  # fmt: skip
_WITH_NUMBERS = ("add.Tensor", "add_.Tensor", "sub.Tensor", "mul.Tensor", "mul_.Tensor", "div.Tensor")


def _with_tensors(name: str) -> Callable[..., Tensor]:
    """Numbers, which kernels in Python receive as such, become tensors again."""
    kernel = kernel_of_the_cpu(name, _KEY)

    def with_tensors(self: Tensor, other: Tensor | float, **options: object) -> Tensor:
        return kernel(self, other if isinstance(other, Tensor) else torch.tensor(other), **options)

    return with_tensors


def from_padded(padded: Tensor, sizes: Tensor, fuse_transform_0213: bool = False) -> Tensor:
    """The first elements of each entry along all its dimensions. sizes: on the host."""
    if fuse_transform_0213:
        raise NotImplementedError("tpu: _nested_from_padded with fuse_transform_0213")
    parts = [padded[entry][tuple(map(slice, size))] for entry, size in enumerate(sizes.tolist())]
    return torch.ops.aten._nested_tensor_from_tensor_list(parts)


KERNELS = [
    *((name, kernel_of_the_cpu(name, _KEY), _KEY) for name in _NAMES),
    *((name, _with_tensors(name), _KEY) for name in _WITH_NUMBERS),
    ("_nested_from_padded", from_padded, "PrivateUse1"),
    ("_nested_view_from_buffer", kernel_of_the_cpu("_nested_view_from_buffer", "PrivateUse1"), "PrivateUse1"),
]
