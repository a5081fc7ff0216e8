"""Making `tpu` a PyTorch device: everything that happens at `import torch`, and nothing that needs the
device.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from . import _hardware, _plugins

_PACKAGE = Path(__file__).parent


class RegistrationError(RuntimeError):
    """The device `tpu` cannot be registered; the message names the cause and the fix."""


@dataclass
class State:
    """How far registration got. registered: torch.tpu exists. dormant: the accelerator to which we left the
    place. library: the kernels in Python, to keep.
    """

    registered: bool = False
    dormant: str | None = None
    error: str | None = None
    plugin: _plugins.Choice | None = None
    library: object = None


state = State()


def shims(folder: Path = _PACKAGE) -> dict[tuple[int, int], Path]:
    """Torch minor -> shim library in the package."""
    found = {}
    for path in folder.glob("_shim_*"):
        if match := re.fullmatch(r"_shim_(\d+)_(\d+)\.(so|dylib|pyd)", path.name):
            found[int(match[1]), int(match[2])] = path
    return dict(sorted(found.items()))


def torch_minor() -> tuple[int, int]:
    import torch

    major, minor = re.match(r"(\d+)\.(\d+)", torch.__version__).groups()
    return int(major), int(minor)


def shim_for_torch() -> Path:
    """The shim built for the installed torch; RegistrationError names the versions there are."""
    import torch

    available = shims()
    shim = available.get(torch_minor())
    if shim is None:
        versions = ", ".join(f"{a}.{b}" for a, b in available) or "none (the package is incomplete)"
        raise RegistrationError(
            f"torch {torch.__version__} is not supported: torch-pjrt has shims for torch {versions}. "
            "Fix: install one of these torch versions, or a torch-pjrt built for this one"
        )
    return shim


def competing_distribution() -> str | None:
    """Version of Google's `torch-tpu`, when it is installed beside us."""
    from importlib import metadata

    try:
        return metadata.version("torch-tpu")
    except metadata.PackageNotFoundError:
        return None


def _check_conflicts() -> None:
    import torch

    if (version := competing_distribution()) is not None:
        raise RegistrationError(
            f"torch-tpu {version} and torch-pjrt are both installed; each provides the device "
            "`tpu` and the package `torch_tpu`. Fix: keep one. For torch-pjrt: pip uninstall torch-tpu, then "
            "pip install --force-reinstall --no-deps torch-pjrt"
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "tpu"):
        raise RegistrationError(
            f"another package has already registered the PyTorch device `{taken}`, and PyTorch has "
            "room for one. Fix: uninstall one of the two packages"
        )


def cache_dir() -> str | None:
    """Root of the on-disk cache: TORCH_PJRT_CACHE_DIR ("" or "0" turns it off), else ~/.cache/torch_pjrt."""
    configured = os.environ.get("TORCH_PJRT_CACHE_DIR")
    if configured is not None:
        return None if configured in ("", "0") else str(Path(configured).expanduser())
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # "~" stays when the user has no home directory (some containers): no cache then.
    return os.path.join(root, "torch_pjrt") if os.path.isabs(root) else None


def register() -> None:
    """Register the device, whatever other accelerator the machine has. Idempotent; RegistrationError when it
    cannot.
    """
    if state.registered:
        return
    import torch

    _check_conflicts()
    shim = shim_for_torch()
    choice = _plugins.choose()
    try:
        from . import _core
    except ImportError as error:
        raise RegistrationError(
            f"the compiled part of torch-pjrt does not load ({error}). Fix: reinstall torch-pjrt for "
            f"this Python ({sys.version_info.major}.{sys.version_info.minor}) and platform"
        ) from error

    # Before the shim loads: its kernels and hooks register under this name.
    torch.utils.rename_privateuse1_backend("tpu")
    from . import _autograd_threads, _kernels

    atexit.register(_autograd_threads.end)
    # Before the shim, too: it leaves alone what has a kernel.
    library = _kernels.register()
    try:
        _core.initialize(
            str(shim),
            plugin_candidates=choice.candidates,
            num_devices=choice.num_devices,
            no_plugin_message=f"torch-pjrt has no device: {choice.problem}",
            # Without a plugin, too: PyTorch fails inside where a named device has none.
            register_hooks=True,
            cache_dir=cache_dir(),
            max_programs=_plugins.MAX_PROGRAMS.read(os.environ)[0],
        )
    except ImportError as error:
        raise RegistrationError(
            f"the shim {shim.name} does not load into torch {torch.__version__} ({error}). "
            "Fix: reinstall torch-pjrt for this torch version"
        ) from error
    state.library = library
    _publish_module(torch)
    os.register_at_fork(after_in_child=_core.after_fork_in_child)
    _core.set_tracer(_trace, _meta_tensor, _refuse)
    # PyTorch's default for an out-of-tree device is float16; every TPU is made for bfloat16.
    torch.set_autocast_dtype("tpu", torch.bfloat16)
    if choice.candidates:
        # accelerate has no branch for `tpu`; this is its documented way to name the device (without an
        # index).
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "tpu")
    state.registered, state.plugin, state.error, state.dormant = True, choice, None, None


def _publish_module(torch) -> None:
    from . import tpu

    if not hasattr(torch, "tpu"):
        torch._register_device_module("tpu", tpu)
    # `import torch.tpu.memory` must find this module, not load a second copy of it.
    for name in tpu.SUBMODULES:
        sys.modules[f"torch.tpu.{name}"] = sys.modules[f"{tpu.__name__}.{name}"]
    if not hasattr(torch.Tensor, "is_tpu"):
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )


# A plan miss is the first thing that needs the tracer, so its imports wait until then.
def _trace(op, args):
    from . import _decompose

    return _decompose.trace(op, args)


def _meta_tensor(sizes, strides, dtype):
    from . import _decompose

    return _decompose.meta_tensor(sizes, strides, dtype)


def _refuse(op, args):
    from . import _refusals

    _refusals.refuse(op, args)


def warn(message: str) -> None:
    """One warning that cannot become an exception: `python -W error` must not break `import torch`."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        sys.stderr.write(f"torch-pjrt: {message}\n")


def autoload() -> None:
    """What `import torch` runs: never raises, loads no plugin, and leaves a machine with another accelerator
    alone.
    """
    try:
        wanted = os.environ.get("TORCH_PJRT_PLUGIN", "").strip()
        if not wanted and not _hardware.tpu_chips():
            other = _hardware.other_accelerator()
            if other is not None:
                state.dormant = other
                return
        register()
        if state.plugin is not None and state.plugin.explicit and state.plugin.problem:
            warn(f"torch-pjrt: the device `tpu` is not available: {state.plugin.problem.rstrip('.')}.")
        else:
            for problem, _ in _plugins.environment_problems():
                warn(f"torch-pjrt: {problem}")
    except Exception as error:
        state.error = str(error) or repr(error)
        if not isinstance(error, RegistrationError):
            state.error = f"{type(error).__name__}: {state.error}. Fix: run `torch-pjrt doctor`"
        warn(f"torch-pjrt: the device `tpu` is not available: {state.error}.")
