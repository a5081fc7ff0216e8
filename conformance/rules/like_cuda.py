"""Where CUDA's kernels differ from the CPU's in a dtype, a shape, strides or a refusal, the device follows CUDA."""

from __future__ import annotations

from typing import NamedTuple

from ..compare import Mismatch


class Difference(NamedTuple):
    """Which kinds of mismatch of which outputs are CUDA's, and why."""

    kinds: frozenset[str]
    outputs: frozenset[str]
    reason: str


_STATISTICS = frozenset({"output 1", "output 2"})
_OF_HALF = "mean and deviation of half-precision data are float32"

OPERATORS: dict[str, Difference] = {
    **dict.fromkeys(
        ("nn.functional.max_unpool2d", "nn.functional.max_unpool2d.grad"),
        Difference(
            frozenset({"strides"}), frozenset({"output 0"}), "the result is contiguous for every input"
        ),
    ),
    **dict.fromkeys(
        ("fft.rfft2", "fft.rfftn"),
        Difference(
            frozenset({"strides"}),
            frozenset({"output 0"}),
            "some shapes are transformed in steps, and the result has the strides of the last",
        ),
    ),
    **dict.fromkeys(
        ("nonzero_static", "combinations"),
        Difference(
            frozenset({"strides"}), frozenset({"output 0"}), "positions are laid out column by column"
        ),
    ),
    "native_layer_norm": Difference(frozenset({"dtype"}), _STATISTICS, _OF_HALF),
    "_batch_norm_with_update": Difference(frozenset({"dtype"}), _STATISTICS, _OF_HALF),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit"),
        Difference(
            frozenset({"dtype", "shape"}),
            _STATISTICS,
            f"{_OF_HALF}; evaluation returns those it used, where the CPU returns empty tensors",
        ),
    ),
}

# PyTorch's error inputs expect another exception of every device but the CPU.
REFUSALS: dict[str, str] = {
    "narrow_copy": "the CPU has a kernel of its own, which checks its arguments in its own way"
}


def excuses(name: str, mismatch: Mismatch) -> bool:
    found = OPERATORS.get(name)
    return bool(found and mismatch.kind in found.kinds and mismatch.where in found.outputs)
