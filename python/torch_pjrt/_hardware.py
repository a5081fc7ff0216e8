"""What accelerators this machine has, found without loading a driver: `import torch` must stay quick and
fork-safe.
"""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path

_GOOGLE_PCI_VENDOR = "0x1ae0"
# PCI device ids of TPU chips. The vendor alone is not enough: Google Cloud's network card carries it too.
_TPU_PCI_DEVICES = {
    "0x0027": "v3",
    "0x0056": "plc",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}


def tpu_chips(pci_root: str = "/sys/bus/pci/devices") -> list[str]:
    """Generations of the TPU chips on the PCI bus, one entry a chip, for example ["v5e", "v5e"]."""
    chips = []
    for vendor_file in sorted(glob.glob(f"{pci_root}/*/vendor")):
        try:
            if Path(vendor_file).read_text().strip() != _GOOGLE_PCI_VENDOR:
                continue
            device_id = Path(vendor_file).with_name("device").read_text().strip()
        except OSError:
            continue
        if device_id in _TPU_PCI_DEVICES:
            chips.append(_TPU_PCI_DEVICES[device_id])
    return chips


def tpu_present() -> bool:
    """Whether this machine has a TPU: a chip on the PCI bus, or the driver's node /dev/accel0."""
    return bool(tpu_chips() or glob.glob("/dev/accel[0-9]*"))


def _visible(variable: str) -> bool:
    """Whether an environment variable such as CUDA_VISIBLE_DEVICES leaves any device."""
    value = os.environ.get(variable)
    return value is None or value.strip() not in ("", "-1", "NoDevFiles")


def other_accelerator() -> str | None:
    """Name it: "CUDA", "ROCm", "XPU" or "MPS" when torch was built for it and the machine has one, else None.

    Device files are looked at instead of asking the driver: `torch.cuda.is_available()` initialises CUDA,
    which would break a later fork and cost start-up time.
    """
    import torch

    if torch.version.hip is not None:
        if os.path.exists("/dev/kfd") and _visible("HIP_VISIBLE_DEVICES"):
            return "ROCm"
    elif torch.version.cuda is not None and _visible("CUDA_VISIBLE_DEVICES"):
        # /dev/dxg is the GPU under WSL; on Windows the driver's library is the only sign.
        if glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg"):
            return "CUDA"
        if sys.platform == "win32" and torch.cuda.is_available():
            return "CUDA"
    if torch.xpu._is_compiled() and glob.glob("/dev/dri/renderD*"):
        return "XPU"
    if sys.platform == "darwin" and torch.backends.mps.is_available():
        return "MPS"
    return None
