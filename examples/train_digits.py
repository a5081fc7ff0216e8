"""Train a small ResNet to read handwritten digits, on the CPU and on the device, and compare the two.

    python examples/train_digits.py                    # CPU and tpu one after the other
    python examples/train_digits.py --device tpu       # the device alone
    python examples/train_digits.py --device tpu --bf16 --epochs 20

The images are real: the 1,797 digits of 8 x 8 pixels that come with scikit-learn; nothing is downloaded. Both
runs start from the same weights and see the same batches, so that their losses can be compared step by step.
"""

import argparse
import json
import math
import sys
import time
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

REPORTS = Path(__file__).resolve().parent.parent / "target" / "reports"
COMPARED_STEPS = 20


class Block(nn.Module):
    """Two convolutions and a shortcut; the shortcut is a convolution where the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet(width: int = 16) -> nn.Sequential:
    """Images [n, 1, 8, 8] to logits [n, 10]; 78,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


class Digits(Dataset):
    """Images [1, 8, 8] with values in -1..1 and their digits, slightly rotated and shifted when `augment` is set."""

    def __init__(self, images: torch.Tensor, digits: torch.Tensor, augment: bool) -> None:
        self.images, self.digits, self.augment = images, digits, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.augment:
            turn, right, down = (2 * torch.rand(3) - 1).tolist()
            cosine, sine = math.cos(turn * math.pi / 18), math.sin(turn * math.pi / 18)
            # A shift of 1/4 is one pixel of eight.
            affine = torch.tensor([[[cosine, -sine, right / 4], [sine, cosine, down / 4]]])
            grid = F.affine_grid(affine, [1, 1, 8, 8], align_corners=False)
            image = F.grid_sample(image[None], grid, padding_mode="border", align_corners=False)[0]
        return image, self.digits[index]


def split(seed: int) -> tuple[Digits, Digits]:
    """1,437 images to train with, 360 to test with, in equal shares of every digit."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    digits = torch.tensor(data.target)
    train, test = train_test_split(range(len(images)), test_size=0.2, random_state=seed, stratify=data.target)
    return Digits(images[train], digits[train], True), Digits(images[test], digits[test], False)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    correct = [(model(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in loader]
    model.train()
    return torch.stack(correct).sum().item() / len(loader.dataset)


def train(device: str, arguments: argparse.Namespace) -> dict:
    """Train on one device. Returns the loss of every step, the accuracy after every epoch, and what it took."""
    # Weights and batches come from the seed alone: every device gets the same.
    torch.manual_seed(arguments.seed)
    model = resnet().to(device)  # The one line that changes.
    train_set, test_set = split(arguments.seed)
    options = {"num_workers": arguments.workers, "pin_memory": device != "cpu"}
    loader = DataLoader(
        train_set,
        batch_size=arguments.batch_size,
        shuffle=True,
        drop_last=True,  # one shape, one set of programs
        generator=torch.Generator().manual_seed(arguments.seed),
        persistent_workers=arguments.workers > 0,
        **options,
    )
    test_loader = DataLoader(test_set, batch_size=120)
    planned = arguments.epochs * len(loader)
    steps = min(arguments.steps or planned, planned)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.lr, total_steps=planned)

    losses: list[float] = []
    accuracies: list[float] = []
    start = time.perf_counter()
    # disable=None: a bar on terminals alone.
    with tqdm(total=steps, desc=device, unit="step", disable=None) as bar:
        while len(losses) < steps:
            # Losses stay on the device until the end of the epoch: reading each would wait for it.
            epoch: list[torch.Tensor] = []
            for images, digits in islice(loader, steps - len(losses)):
                images = images.to(device, non_blocking=True)
                digits = digits.to(device, non_blocking=True)
                with torch.autocast(device, torch.bfloat16, enabled=arguments.bf16):
                    loss = F.cross_entropy(model(images), digits, label_smoothing=0.05)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                epoch.append(loss.detach())
                bar.update()
            losses += torch.stack(epoch).tolist()
            accuracies.append(accuracy(model, test_loader, device))
            bar.set_postfix(loss=f"{losses[-1]:.3f}", accuracy=f"{accuracies[-1]:.1%}")
    return {
        "losses": losses,
        "accuracies": accuracies,
        "accuracy": accuracies[-1],
        "seconds": time.perf_counter() - start,
    }


def plot(devices: dict[str, dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    # Drawn last and dashed, the second curve leaves the first one visible where they coincide.
    for style, (device, result) in zip(["-", "--"], devices.items(), strict=False):
        steps = len(result["losses"])
        left.plot(range(1, steps + 1), result["losses"], style, label=device, linewidth=1)
        epochs = range(1, len(result["accuracies"]) + 1)
        right.plot(epochs, [100 * a for a in result["accuracies"]], style, label=device, marker=".")
    left.set(xlabel="step", ylabel="training loss", yscale="log")
    right.set(xlabel="epoch", ylabel="test accuracy (%)")
    left.legend()
    right.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["both", "cpu", "tpu"], default="both")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the data (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="stop after so many batches")
    parser.add_argument("--batch-size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, split and batches (default: 0)")
    parser.add_argument("--workers", type=int, default=2, help="processes that load (default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="forward pass under bfloat16 autocast")
    parser.add_argument("--plot", type=Path, default=REPORTS / "train_digits.png", help="the curves, as PNG")
    parser.add_argument(
        "--report", type=Path, default=REPORTS / "train_digits.json", help="what was measured, as JSON"
    )
    arguments = parser.parse_args()
    for name in ("epochs", "steps", "batch_size"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return arguments


def main() -> int:
    arguments = parse()
    devices: dict[str, dict] = {}
    for device in ["cpu", "tpu"] if arguments.device == "both" else [arguments.device]:
        result = devices[device] = train(device, arguments)
        text = f"[{device}] {len(result['losses'])} steps in {result['seconds']:.1f} s"
        text += f", accuracy {result['accuracy']:.2%}"
        if device == "tpu":
            stats = torch.tpu.stats()
            names = ("compiles", "disk_hits", "executions", "fallbacks", "host_kernels")
            result |= {name: stats[name] for name in names}
            text += f"; {result['compiles']} programs compiled"
        print(text, flush=True)

    line = {"accuracy": f"{result['accuracy']:.4f}", "loss": f"{result['losses'][-1]:.4f}"}
    good = True
    if device == "tpu":
        line |= {name: result[name] for name in ("fallbacks", "host_kernels")}
        good = not (result["fallbacks"] or result["host_kernels"])
    report = {"devices": devices}
    if len(devices) == 2:
        pairs = list(zip(devices["cpu"]["losses"], devices["tpu"]["losses"], strict=True))[:COMPARED_STEPS]
        difference = max(abs(cpu - tpu) for cpu, tpu in pairs)
        print(f"the first {len(pairs)} losses differ from the CPU's by at most {difference:.1e}")
        report["max_difference"] = difference
        # Later steps diverge as any two summation orders do; bfloat16 has 8 bits from the start.
        good &= difference <= (1e-2 if arguments.bf16 else 1e-3)
    plot(devices, arguments.plot)
    print(f"the curves are in {arguments.plot}")
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    arguments.report.write_text(json.dumps(line | report, indent=2) + "\n")
    print("train_digits: " + " ".join(f"{key}={value}" for key, value in line.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
