"""torch.compile with inductor on the CPU."""

import sys

import torch
from compare import main

if __name__ == "__main__":
    sys.exit(
        main(
            __doc__,
            f"torch {torch.__version__}",
            make=lambda case: torch.compile(case.make("cpu")),
            finish=lambda: None,
        )
    )
