"""PyTorch on any PJRT accelerator, as the native device `tpu`.

`import torch` is enough: the entry point in the group `torch.backends` registers the device. With
`TORCH_DEVICE_BACKEND_AUTOLOAD=0`, `import torch_pjrt` does it.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["compile_for_topology", "enable", "export_program"]


# Defined before torch is imported: importing torch calls it, while this module is still being executed.
def _autoload() -> None:
    """Entry point of the group `torch.backends`."""
    from . import _registration

    if not (_registration.state.registered or _registration.state.error):
        _registration.autoload()


def enable() -> None:
    """Register the device `tpu` now and make it PyTorch's accelerator.

    Needed only where the automatic start stood back: a machine with a CUDA, XPU or MPS device and no TPU, and
    no TORCH_PJRT_PLUGIN. Raises RuntimeError naming the cause and the fix when the device cannot be
    registered.
    """
    from . import _registration

    _registration.register()


def __getattr__(name: str):
    if name in ("export_program", "compile_for_topology"):
        from . import _export

        return getattr(_export, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _import_torch() -> None:
    import torch

    # While torch is still importing, it calls the entry point itself when it is ready.
    if not getattr(torch.__spec__, "_initializing", False):
        _autoload()


_import_torch()
