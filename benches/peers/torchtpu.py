"""TorchTPU in its eager mode, on the plugin that TORCH_PJRT_PLUGIN names."""

import os
import sys
from importlib.metadata import version

# Where libtpu's own package would point to.
os.environ["TPU_LIBRARY_PATH"] = os.environ["TORCH_PJRT_PLUGIN"]

import torch
import torch_tpu  # noqa: F401  (registers the device)
from compare import main

if __name__ == "__main__":
    sys.exit(
        main(
            __doc__,
            f"torch_tpu {version('torch_tpu')}, torch {torch.__version__}",
            make=lambda case: case.make("tpu"),
            finish=torch.accelerator.synchronize,
        )
    )
