"""What is measured: each case makes a function that runs its work once on a device.

A case prepares the same parameters and inputs on every device; the function it returns gives one number or tensor, so
that the results of two devices can be compared before their times are.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

Run = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A measured case.

    Attributes:
        name: as in the table.
        make: from a device to the function that is timed.
        repeat: how many calls one timing covers: short ones are too small to time alone.
        limit: the ratio to CPU eager that strict mode must not exceed with two threads; None where none is set.
        tolerance: how far the device's result may be from the CPU's, relative and absolute.
    """

    name: str
    make: Callable[[str], Run]
    repeat: int = 1
    limit: float | None = None
    tolerance: float = 1e-4


DISPATCH_OPS = 2_000


def dispatch(device: str) -> Run:
    """2,000 operators on [16, 16] whose values stay finite: x -> (x + y) * 0.5."""
    torch.manual_seed(0)
    start, y = torch.randn(16, 16).to(device), torch.randn(16, 16).to(device)

    def run() -> torch.Tensor:
        x = start
        for _ in range(DISPATCH_OPS // 2):
            x = (x + y) * 0.5
        return x

    return run


def training_step(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Run:
    """Forward, backward and AdamW as PyTorch runs it by default on each device. `loss` runs the forward pass."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach()

    return run


def mlp(device: str) -> Run:
    """784-1024-1024-10, batch 64."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    ).to(device)
    x, y = torch.randn(64, 784).to(device), torch.randint(0, 10, (64,)).to(device)
    return training_step(model, lambda: nn.functional.cross_entropy(model(x), y))


def gpt2(device: str) -> Run:
    """GPT-2 with 4 layers, 256 wide, batch 4 x 128."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4, n_embd=256, n_head=4, vocab_size=1024, n_positions=128,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device).train()
    ids = torch.randint(0, 1024, (4, 128)).to(device)
    return training_step(model, lambda: model(input_ids=ids, labels=ids).loss)


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 as in He et al. 2016, 224 x 224 images, 1,000 classes."""
    widths = [
        (64, 64, 1),
        (64, 64, 1),
        (64, 128, 2),
        (128, 128, 1),
        (128, 256, 2),
        (256, 256, 1),
        (256, 512, 2),
        (512, 512, 1),
    ]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*stem, *(Block(*width) for width in widths), *head)


def resnet18_inference(device: str) -> Run:
    """ResNet-18, batch 8."""
    torch.manual_seed(0)
    model = resnet18().to(device).eval()
    x = torch.randn(8, 3, 224, 224).to(device)

    @torch.no_grad()
    def run() -> torch.Tensor:
        return model(x)

    return run


def resnet18_step(device: str) -> Run:
    """ResNet-18, batch 8."""
    torch.manual_seed(0)
    model = resnet18().to(device).train()
    x, y = torch.randn(8, 3, 224, 224).to(device), torch.randint(0, 1000, (8,)).to(device)
    return training_step(model, lambda: nn.functional.cross_entropy(model(x), y))


def digits_step(device: str) -> Run:
    """The small ResNet of examples/train_digits.py, batch 64."""
    from train_digits import resnet

    torch.manual_seed(0)
    model = resnet().to(device).train()
    x, y = torch.randn(64, 1, 8, 8).to(device), torch.randint(0, 10, (64,)).to(device)
    return training_step(model, lambda: nn.functional.cross_entropy(model(x), y))


def llama_decode(device: str) -> Run:
    """Llama with 4 layers, 512 wide: 32 tokens, one at a time, after a prompt of 16, with a growing cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=1376, vocab_size=2048, max_position_embeddings=256,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device).eval()
    prompt = torch.randint(0, 2048, (1, 16)).to(device)

    @torch.no_grad()
    def run() -> torch.Tensor:
        out = model(input_ids=prompt, use_cache=True)
        tokens = []
        for _ in range(32):
            token = out.logits[:, -1:].argmax(-1)
            tokens.append(token)
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
        return torch.cat(tokens, 1)

    return run


def matmul(device: str) -> Run:
    """[2048, 2048] times [2048, 2048]."""
    torch.manual_seed(0)
    a, b = torch.randn(2048, 2048).to(device), torch.randn(2048, 2048).to(device)
    return lambda: a @ b


CASES = [
    Case("dispatch", dispatch, limit=3.0),
    Case("mlp step", mlp, repeat=8, limit=1.8),
    Case("gpt2 step", gpt2, limit=1.8),
    Case("resnet18 inference", resnet18_inference, limit=1.7, tolerance=1e-3),
    Case("resnet18 step", resnet18_step, tolerance=1e-3),
    Case("digits step", digits_step, repeat=2, tolerance=1e-3),
    Case("llama decode", llama_decode, limit=2.5),
    Case("matmul 2048", matmul, repeat=4, tolerance=1e-3),
]

BY_NAME = {case.name: case for case in CASES}
