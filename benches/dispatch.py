"""What one operator costs from Python: a chain of 2,000 operators on [16, 16], device against CPU.

Both run interleaved in one process, so that a busy machine slows both; medians of five rounds are compared.
The chain ends with a wait for the device: what is measured is dispatch and execution, not submission alone.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from report import close

OPS = 2_000
ROUNDS = 5
LIMIT = 4.0


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """2,000 operators whose values stay finite: x -> (x + y) * 0.5, a thousand times."""
    for _ in range(OPS // 2):
        x = (x + y) * 0.5
    return x


def seconds(run: Callable[[], torch.Tensor], wait: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def main() -> int:
    torch.manual_seed(0)
    x, y = torch.randn(16, 16), torch.randn(16, 16)
    x_tpu, y_tpu = x.to("tpu"), y.to("tpu")

    # The first run compiles, and shows that both compute the same.
    torch.testing.assert_close(chain(x_tpu, y_tpu).cpu(), chain(x, y))
    compiles = torch.tpu.stats()["compiles"]

    cpu, tpu = [], []
    for _ in range(ROUNDS):
        cpu.append(seconds(lambda: chain(x, y), lambda: None))
        tpu.append(seconds(lambda: chain(x_tpu, y_tpu), torch.tpu.synchronize))
    microseconds = {
        "cpu": statistics.median(cpu) / OPS * 1e6,
        "tpu": statistics.median(tpu) / OPS * 1e6,
    }
    ratio = microseconds["tpu"] / microseconds["cpu"]
    for device, cost in microseconds.items():
        print(f"{device}: {cost:.2f} us per operator")
    line = {
        "dispatch_ratio": f"{ratio:.2f}",
        "cpu_us": f"{microseconds['cpu']:.2f}",
        "tpu_us": f"{microseconds['tpu']:.2f}",
    }
    recompiles = torch.tpu.stats()["compiles"] - compiles
    close("bench", line, {"cpu_seconds": cpu, "tpu_seconds": tpu, "compiles_while_measuring": recompiles})
    return 0 if ratio <= LIMIT and recompiles == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
