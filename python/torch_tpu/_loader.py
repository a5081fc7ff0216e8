"""What Ray calls in a worker before it uses the device."""

from __future__ import annotations


def load() -> None:
    """Register the device `tpu`. Idempotent; starts no client. RuntimeError naming the fix when it cannot."""
    import torch_pjrt

    torch_pjrt.enable()
