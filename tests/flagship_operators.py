"""The operators whose TPU programs are looked at instruction by instruction.

Each runs eagerly, so that its program is the one that users get: with the buffers as they lie, the reads of
views and the writes through them. The rule for that program, compiled for a TPU:

- Nothing may rearrange or duplicate data; `tpu_programs.movements` says what does.
- Except where the compiler does so for the one StableHLO operation over the same buffers, compiled alone: its
  own algorithm then wants another order than the one in which arguments and results cross a program's
  boundary. That operation is `bare`, with the reason, and ours must not move anything beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

HLO = {torch.bfloat16: "bf16", torch.float32: "f32"}


@dataclass(frozen=True)
class Flagship:
    """prepare(dtype): operands on the CPU. run(*operands): the operator; its result must be the CPU's.
    operators: those that run on the device, one program each.
    """

    prepare: Callable[[torch.dtype], list[torch.Tensor]]
    run: Callable[..., Any]
    operators: tuple[str, ...]
    bare: Callable[[str], str] | None = None


def _normal(*sizes: int) -> Callable[[torch.dtype], torch.Tensor]:
    return lambda dtype: torch.randn(*sizes).to(dtype)


def _indices(below: int, *sizes: int) -> Callable[[torch.dtype], torch.Tensor]:
    return lambda dtype: torch.randint(0, below, sizes)


def _channels_last(*sizes: int) -> Callable[[torch.dtype], torch.Tensor]:
    return lambda dtype: torch.randn(*sizes).to(dtype, memory_format=torch.channels_last)


def _each(*makers: Callable[[torch.dtype], torch.Tensor]) -> Callable[[torch.dtype], list[torch.Tensor]]:
    return lambda dtype: [make(dtype) for make in makers]


def _attend_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[batch, length, heads, width], as projections give them."""
    heads = [x.transpose(1, 2) for x in (query, key, value)]
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)


def _write_rows(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    table[3:7] = rows
    return table


def _scale_columns(table: torch.Tensor) -> torch.Tensor:
    table[:, 128:256].mul_(2)
    return table


def _append_to_cache(cache: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    cache[:, :, 5:6] = key
    return cache


def _bare_convolution(element: str) -> str:
    """The matrix unit wants batch and features as the fastest dimensions, NHWC has width and features: one
    copy in, inside the convolution, and one out.
    """
    lhs, kernel = f"tensor<8x32x32x64x{element}>", f"tensor<128x3x3x64x{element}>"
    result = f"tensor<8x32x32x128x{element}>"
    wide = "tensor<8x32x32x128xf32>"
    precision = "DEFAULT" if element == "bf16" else "HIGHEST"
    return f"""
    func.func public @main(%x: {lhs}, %k: {kernel}) -> {result} {{
      %0 = "stablehlo.convolution"(%x, %k) {{
        window_strides = array<i64: 1, 1>, padding = dense<[[1, 1], [1, 1]]> : tensor<2x2xi64>,
        lhs_dilation = array<i64: 1, 1>, rhs_dilation = array<i64: 1, 1>,
        window_reversal = array<i1: false, false>,
        dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[o, 0, 1, i]->[b, 0, 1, f]>,
        feature_group_count = 1 : i64, batch_group_count = 1 : i64,
        precision_config = [#stablehlo<precision {precision}>, #stablehlo<precision {precision}>]
      }} : ({lhs}, {kernel}) -> {wide}
      %1 = stablehlo.convert %0 : ({wide}) -> {result}
      return %1 : {result}
    }}"""


def _bare_gather(element: str) -> str:
    """A gather reads its indices as a vector; two-dimensional ones lie in tiles of rows. 512 bytes here."""
    table, rows = f"tensor<1000x256x{element}>", f"tensor<4x32x256x{element}>"
    return f"""
    func.func public @main(%table: {table}, %index: tensor<4x32xi32>) -> {rows} {{
      %0 = "stablehlo.gather"(%table, %index) {{
        dimension_numbers = #stablehlo.gather<
          offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>,
        slice_sizes = array<i64: 1, 256>, indices_are_sorted = false
      }} : ({table}, tensor<4x32xi32>) -> {rows}
      return %0 : {rows}
    }}"""


def _bare_update(element: str) -> str:
    """A cache whose rows are narrower than a tile lies transposed, and what is written must, too: 2 KB."""
    cache, key = f"tensor<2x8x128x64x{element}>", f"tensor<2x8x1x64x{element}>"
    return f"""
    func.func public @main(%cache: {cache} {{tf.aliasing_output = 0 : i32}}, %key: {key}, %at: tensor<i32>)
        -> {cache} {{
      %0 = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.dynamic_update_slice %cache, %key, %0, %0, %at, %0 :
        ({cache}, {key}, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> {cache}
      return %1 : {cache}
    }}"""


_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu",)

FLAGSHIPS = {
    "matmul": Flagship(_each(_normal(128, 256), _normal(256, 512)), torch.matmul, ("aten::mm",)),
    "matmul of a transposed view": Flagship(
        _each(_normal(256, 128), _normal(256, 512)), lambda x, y: x.t() @ y, ("aten::mm",)
    ),
    "linear": Flagship(_each(_normal(4, 32, 256), _normal(512, 256)), F.linear, ("aten::mm",)),
    "linear with bias": Flagship(
        _each(_normal(4, 32, 256), _normal(512, 256), _normal(512)), F.linear, ("aten::addmm",)
    ),
    "conv2d channels_last": Flagship(
        _each(_channels_last(8, 64, 32, 32), _channels_last(128, 64, 3, 3), _normal(128)),
        lambda x, weight, bias: F.conv2d(x, weight, bias, padding=1),
        ("aten::convolution",),
        bare=_bare_convolution,
    ),
    "layer norm": Flagship(
        _each(_normal(4, 128, 512), _normal(512), _normal(512)),
        lambda x, weight, bias: F.layer_norm(x, (512,), weight, bias),
        ("aten::native_layer_norm",),
    ),
    "attention": Flagship(
        _each(*[_normal(2, 8, 128, 64)] * 3),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        _ATTENTION,
    ),
    "attention over projected heads": Flagship(
        _each(*[_normal(2, 128, 8, 64)] * 3), _attend_heads, _ATTENTION
    ),
    "attention with shared key heads": Flagship(
        _each(_normal(2, 8, 128, 64), _normal(2, 2, 128, 64), _normal(2, 2, 128, 64)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        _ATTENTION,
    ),
    "embedding": Flagship(
        _each(_indices(1000, 4, 32), _normal(1000, 256)),
        F.embedding,
        ("aten::embedding",),
        bare=_bare_gather,
    ),
    "row sum": Flagship(_each(_normal(512, 1024)), lambda x: x.sum(1), ("aten::sum.dim_IntList",)),
    "column sum": Flagship(_each(_normal(512, 1024)), lambda x: x.sum(0), ("aten::sum.dim_IntList",)),
    "row maximum": Flagship(_each(_normal(512, 1024)), lambda x: x.amax(1), ("aten::amax",)),
    "column mean": Flagship(_each(_normal(512, 1024)), lambda x: x.mean(0), ("aten::mean.dim",)),
    "softmax": Flagship(_each(_normal(512, 1024)), lambda x: x.softmax(-1), ("aten::_softmax",)),
    "row read": Flagship(_each(_normal(512, 1024)), lambda x: x[5] * 2, ("aten::mul.Tensor",)),
    "row write": Flagship(_each(_normal(512, 1024), _normal(4, 1024)), _write_rows, ("aten::copy_",)),
    "column update": Flagship(_each(_normal(512, 1024)), _scale_columns, ("aten::mul_.Tensor",)),
    "cache write": Flagship(
        _each(_normal(2, 8, 128, 64), _normal(2, 8, 1, 64)),
        _append_to_cache,
        ("aten::copy_",),
        bare=_bare_update,
    ),
}
