"""Operators that read from the device while they run, because a size or a Python number depends on the data.

An operator that is not listed and reads is wrong, whatever its values: it may have computed them on the host.
"""

_NUMBER = "its result is a Python number"
_SIZE = "the size of its result depends on the data"

READS: dict[str, str] = {
    "allclose": _NUMBER,
    "equal": _NUMBER,
    "item": _NUMBER,
    "corrcoef": "checks its weights' sign with `torch.equal`-like reads",
    "cov": "PyTorch checks on the host that no weight is negative",
    "masked_select": _SIZE,
}
# Operators that the host computes by design.
KERNELS: dict[str, str] = {}
