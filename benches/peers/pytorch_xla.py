"""PyTorch/XLA in its lazy mode, on the plugin that TORCH_PJRT_PLUGIN names."""

import os
import sys

os.environ["PJRT_DEVICE"] = "PLUGIN"

import torch
import torch_xla
from cases import Case, Run
from compare import main
from torch_xla.experimental import plugins


class Plugin(plugins.DevicePlugin):
    def library_path(self) -> str:
        return os.environ["TORCH_PJRT_PLUGIN"]


def make(case: Case) -> Run:
    run = case.make("xla")

    def step() -> torch.Tensor:
        result = run()
        torch_xla.sync()
        return result

    return step


if __name__ == "__main__":
    plugins.use_dynamic_plugins()
    plugins.register_plugin("PLUGIN", Plugin())
    sys.exit(
        main(
            __doc__,
            f"torch_xla {torch_xla.__version__}, torch {torch.__version__}",
            make,
            finish=lambda: torch_xla.sync(wait=True),
        )
    )
