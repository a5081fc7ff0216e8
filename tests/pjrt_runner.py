"""Runs StableHLO text on the CPU plugin through `pypjrt`: a client that shares no code with ours."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pypjrt
import torch
from pypjrt import typing as dtypes
from torch_pjrt import _plugins

_DTYPES = {
    torch.bool: dtypes.PRED,
    torch.int32: dtypes.S32,
    torch.int64: dtypes.S64,
    torch.float32: dtypes.F32,
    torch.bfloat16: dtypes.BF16,
}


@functools.cache
def _client() -> pypjrt.Client:
    return pypjrt.Client.create(pypjrt.Plugin(_plugins.cpu_libraries()[0]))


def run(text: str, arguments: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results of the program on CPU tensors. `results` say their sizes and dtypes; the program may have more
    of them, which are dropped.
    """
    client = _client()
    executable = client.compile(text)
    with client.device(0) as device:
        buffers = [
            client.buffer_from_host(_bytes(tensor), _DTYPES[tensor.dtype].code, list(tensor.shape), device)
            for tensor in arguments
        ]
        outputs = executable(*buffers)
        return [_from_bytes(out.to_host(), like) for out, like in zip(outputs, results, strict=False)]


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def _from_bytes(data: bytearray, like: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(data, dtype=like.dtype).reshape(like.shape)
