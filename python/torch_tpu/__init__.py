"""Compatibility package: libraries look for `torch_tpu` to know that the device `tpu` can be had.

The device itself is torch-pjrt's; importing this registers it, as `import torch` does.
"""

from __future__ import annotations

import torch_pjrt

__version__ = torch_pjrt.__version__
