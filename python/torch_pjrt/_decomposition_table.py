"""Which Python decompositions PyTorch has, chosen so that a traced program means what the eager operator
does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

Overload = torch._ops.OpOverload

# Decompositions that read a value on the host although the operator has a static program, or that are wrong:
# the flash attention one returns a logsumexp of another shape and dtype.
_REFUSED = {
    "aten::take.default",
    "aten::bucketize.Tensor",
    "aten::bucketize.Scalar",
    "aten::_scaled_dot_product_flash_attention_for_cpu.default",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward.default",
}

# Entries that only inductor has. Its others for the same operators specialise on its own code generator.
_FROM_INDUCTOR = {
    "aten::full_like.default",
    "aten::masked_scatter.default",
    "aten::put.default",
    "aten::index_reduce.default",
    "aten::searchsorted.Scalar",
    "aten::repeat_interleave.Tensor",
    "aten::_foreach_lerp.Scalar",
    "aten::_foreach_lerp.ScalarList",
    "aten::angle.default",
    "aten::randint.default",
    "aten::empty_permuted.default",
}


@functools.cache
def _tables() -> tuple[dict, dict]:
    import torch._decomp
    import torch._refs

    return torch._decomp.decomposition_table, torch._decomp.core_aten_decompositions()


@functools.cache
def decomposition(op: Overload) -> Callable | None:
    """PyTorch's decomposition of a functional operator, None when there is none that fits."""
    from ._graph_encoding import operator_name

    name = operator_name(op)
    if name in _REFUSED:
        return None
    for table in _tables():
        if op in table:
            return table[op]
    if name in _FROM_INDUCTOR:
        # Imported only for these few: it is a heavy import.
        from torch._inductor.decomposition import decompositions

        return decompositions.get(op)
    return None
