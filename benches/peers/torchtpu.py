"""TorchTPU in its eager mode, on the plugin that TORCH_PJRT_PLUGIN names."""

import os
import sys
from importlib.metadata import version

# Where libtpu's own package would point to.
os.environ["TPU_LIBRARY_PATH"] = os.environ["TORCH_PJRT_PLUGIN"]

import torch
from compare import main
from torch_tpu import _loader

if __name__ == "__main__":
    # What its own load() calls where there is a TPU.
    _loader._init_device("tpu")
    sys.exit(
        main(
            __doc__,
            f"torch_tpu {version('torch_tpu')}, torch {torch.__version__}",
            make=lambda case: case.make("tpu"),
            finish=torch.accelerator.synchronize,
        )
    )
