"""PyTorch/XLA in its lazy mode, on the XLA CPU of its own: plugins of today refuse its older PJRT structures."""

import os
import sys

os.environ["PJRT_DEVICE"] = "CPU"

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from compare import Case, Run, main


def make(case: Case) -> Run:
    run = case.make("xla")

    def step() -> torch.Tensor:
        result = run()
        torch_xla.sync()
        return result

    return step


if __name__ == "__main__":
    sys.exit(
        main(
            __doc__,
            f"torch_xla {torch_xla.__version__}, torch {torch.__version__}",
            make,
            finish=xm.wait_device_ops,
        )
    )
