"""Nested tensors, strided and jagged, with their gradients."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F
from both_devices import check, grid

pytestmark = [pytest.mark.usefixtures("no_fallback"), pytest.mark.filterwarnings("ignore")]

LENGTHS = (2, 3, 1)


def jagged(d: str, features: int = 4, requires_grad: bool = False) -> torch.Tensor:
    parts = [grid("cpu", length, features) for length in LENGTHS]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=d, requires_grad=requires_grad)


def strided(d: str, features: int = 4) -> torch.Tensor:
    return torch.nested.nested_tensor([grid("cpu", length, features) for length in LENGTHS], device=d)


def heads(x: torch.Tensor) -> torch.Tensor:
    """[batch, length, features] as [batch, heads, length, features per head]."""
    return x.unflatten(-1, [2, -1]).transpose(1, 2)


def layer(d: str, inputs: int = 4, outputs: int = 3) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(inputs, outputs).to(d)


def narrowed(d: str) -> torch.Tensor:
    starts, lengths = torch.tensor([0, 1, 2], device=d), torch.tensor([2, 3, 1], device=d)
    return torch.nested.narrow(grid(d, 3, 5, 2), 1, starts, lengths, layout=torch.jagged).contiguous()


def doubled_and_added(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x


def positive(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, -x)


JAGGED = {
    "creation": jagged,
    "from tensors": lambda d: torch.nested.as_nested_tensor(
        [grid(d, 2, 4), grid(d, 3, 4)], layout=torch.jagged
    ),
    "from values": lambda d: torch.nested.nested_tensor_from_jagged(
        grid(d, 6, 4), torch.tensor([0, 2, 6], device=d)
    ),
    "narrow": narrowed,
    "moved": lambda d: jagged("cpu").to(d),
    "product": lambda d: doubled_and_added(jagged(d)),
    "gelu": lambda d: F.gelu(jagged(d)),
    "dtype": lambda d: jagged(d).to(torch.float64),
    "linear": lambda d: layer(d)(jagged(d)),
    "layer_norm": lambda d: F.layer_norm(jagged(d), (4,)),
    "softmax": lambda d: F.softmax(jagged(d), -1),
    "matmul": lambda d: jagged(d) @ grid(d, 4, 5),
    "cat": lambda d: torch.cat([jagged(d), jagged(d)], -1),
    "chunk": lambda d: jagged(d).chunk(2, -1)[1],
    "where": lambda d: positive(jagged(d)),
    "like": lambda d: torch.full_like(jagged(d), 3.0),
    "attention": lambda d: F.scaled_dot_product_attention(*[heads(jagged(d, 8))] * 3).transpose(1, 2),
}


TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("name", JAGGED)
def test_jagged(name: str) -> None:
    check(lambda d: [part.detach() for part in JAGGED[name](d).unbind()], **TOLERANCE)


DENSE = {
    "padded": lambda x: x.to_padded_tensor(0.0),
    "padded to a size": lambda x: torch.nested.to_padded_tensor(x, -1.0, (3, 5, 4)),
    "sum of the jagged dimension": lambda x: x.sum(1),
    "mean of the jagged dimension": lambda x: x.mean(1),
    "sum": lambda x: x.sum(),
    "offsets": lambda x: x.offsets(),
}


@pytest.mark.parametrize("name", DENSE)
def test_jagged_to_dense(name: str) -> None:
    check(lambda d: DENSE[name](jagged(d)), **TOLERANCE)


LOSSES = {
    "linear": lambda x: layer(x.device.type, 8)(x).values().pow(2).sum(),
    "padded": lambda x: x.to_padded_tensor(0.0).pow(2).sum(),
    "attention": lambda x: (
        F.scaled_dot_product_attention(*[heads(x)] * 3).transpose(1, 2).values().pow(2).sum()
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_jagged_gradients(name: str) -> None:
    def gradient(d: str):
        x = jagged(d, 8, requires_grad=True)
        LOSSES[name](x).backward()
        return x.grad.values()

    check(gradient, **TOLERANCE)


def test_jagged_tensors_are_saved() -> None:
    file = io.BytesIO()
    torch.save(jagged("tpu"), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.device.type == "tpu"
    torch.testing.assert_close(loaded.values().cpu(), jagged("cpu").values())


def square(x: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, x.transpose(1, 2))


STRIDED = {
    "creation": strided,
    "moved": lambda d: strided("cpu").to(d),
    "dtype": lambda d: strided(d).double(),
    "number": lambda d: strided(d) * 2 / 3 - strided(d) + strided(d),
    "in place": lambda d: strided(d).mul_(2),
    "relu": lambda d: F.relu(strided(d)),
    "gelu": lambda d: F.gelu(strided(d)),
    "silu": lambda d: F.silu(-strided(d)),
    "root": lambda d: strided(d).abs().sqrt(),
    "mask": lambda d: strided(d).masked_fill(strided(d) > 0, 1.0),
    "linear": lambda d: layer(d)(strided(d)),
    "embedding": lambda d: F.embedding(
        torch.nested.nested_tensor([torch.tensor([0, 1]), torch.tensor([2])], device=d), grid(d, 3, 4)
    ),
    "softmax": lambda d: F.softmax(strided(d), -1),
    "dropout": lambda d: F.dropout(strided(d), 0.0),
    "matmul": lambda d: square(strided(d)),
    "transposed": lambda d: strided(d).transpose(1, 2).contiguous(),
    "view": lambda d: strided(d).view(3, -1, 2, 2),
    "narrow": lambda d: strided(d).narrow(0, 0, 2),
    "cat": lambda d: torch.cat([strided(d), strided(d)]),
    "zeros": lambda d: torch.zeros_like(strided(d)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strided(name: str) -> None:
    check(lambda d: [part.detach() for part in STRIDED[name](d).unbind()], **TOLERANCE)


STRIDED_LOSSES = {
    "padded": lambda x: x.to_padded_tensor(0.0).pow(2).sum(),
    "linear": lambda x: layer(x.device.type)(x).to_padded_tensor(0.0).pow(2).sum(),
    "softmax": lambda x: F.gelu(F.softmax(x, -1) * x).to_padded_tensor(0.0).sum(),
}


@pytest.mark.parametrize("name", STRIDED_LOSSES)
def test_strided_gradients(name: str) -> None:
    def gradients(d: str):
        parts = [grid(d, length, 4).requires_grad_() for length in LENGTHS]
        STRIDED_LOSSES[name](torch.nested.as_nested_tensor(parts)).backward()
        return [part.grad for part in parts]

    check(gradients, **TOLERANCE)


def test_what_nested_tensors_lack_is_named() -> None:
    with pytest.raises(NotImplementedError, match="native_layer_norm"):
        torch.nn.LayerNorm(4).to("tpu")(strided("tpu"))
