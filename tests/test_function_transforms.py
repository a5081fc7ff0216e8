"""torch.func on the device: vmap with its randomness modes, gradients, Jacobians, functional modules."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from both_devices import check, check_refused, grid
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

pytestmark = pytest.mark.usefixtures("no_fallback")

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def places(device: str) -> torch.Tensor:
    return torch.tensor([[0, 1], [2, 3], [4, 0]], device=device)


def symmetric(d: str) -> torch.Tensor:
    x = grid(d, 3, 4, 4)
    return x + x.mT + 3 * torch.eye(4, device=d)


def written(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.add_(1)
    x[0] = 3
    return x


VMAPS = {
    "sum": lambda d: vmap(lambda x: x.sin().sum())(grid(d, 3, 4)),
    "dot": lambda d: vmap(torch.dot)(grid(d, 3, 4), grid(d, 3, 4)),
    "one argument is shared": lambda d: vmap(torch.mv, in_dims=(None, 0))(grid(d, 4, 4), grid(d, 3, 4)),
    "dimensions": lambda d: vmap(lambda x: x * 2, in_dims=1, out_dims=1)(grid(d, 3, 4)),
    "chunks": lambda d: vmap(lambda x: x @ x.T, chunk_size=2)(grid(d, 5, 3, 3)),
    "nested": lambda d: vmap(vmap(torch.mul, in_dims=(None, 0)), in_dims=(0, None))(grid(d, 3), grid(d, 4)),
    "index": lambda d: vmap(lambda x, i: x[i])(grid(d, 3, 5), places(d)),
    "index_put": lambda d: vmap(lambda x, i, v: x.index_put((i,), v))(
        grid(d, 3, 5), places(d), grid(d, 3, 2)
    ),
    "scatter_add": lambda d: vmap(lambda x, i: torch.zeros(5, device=d).scatter_add(0, i, x))(
        grid(d, 3, 2), places(d)
    ),
    "in place": lambda d: vmap(written)(grid(d, 3, 5)),
    "inverse": lambda d: vmap(torch.linalg.inv)(symmetric(d)),
    "determinant": lambda d: vmap(torch.linalg.det)(symmetric(d)),
    "solve": lambda d: vmap(torch.linalg.solve)(symmetric(d), grid(d, 3, 4)),
    "attention": lambda d: vmap(F.scaled_dot_product_attention)(*[grid(d, 3, 2, 4, 8)] * 3),
    "convolution": lambda d: vmap(F.conv2d)(grid(d, 3, 1, 2, 6, 6), grid(d, 3, 2, 2, 3, 3)),
    "pooling": lambda d: vmap(lambda x: F.max_pool2d(x, 2))(grid(d, 3, 2, 6, 6)),
    "layer_norm": lambda d: vmap(lambda x: F.layer_norm(x, (6,)))(grid(d, 3, 2, 6)),
    "group_norm": lambda d: vmap(lambda x: F.group_norm(x, 2))(grid(d, 3, 2, 4, 6)),
    "sort": lambda d: tuple(vmap(torch.sort)(grid(d, 3, 6).flip(1))),
    "topk": lambda d: tuple(vmap(lambda x: x.topk(2))(grid(d, 3, 6))),
    "argmax": lambda d: vmap(torch.argmax)(grid(d, 3, 6)),
    "cumsum": lambda d: vmap(lambda x: x.cumsum(0))(grid(d, 3, 6)),
    "cdist": lambda d: vmap(torch.cdist)(grid(d, 3, 4, 2), grid(d, 3, 5, 2)),
    "fft": lambda d: vmap(torch.fft.fft)(grid(d, 3, 8)),
    "embedding": lambda d: vmap(F.embedding, in_dims=(0, None))(places(d), grid(d, 5, 4)),
    "interpolation": lambda d: vmap(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"))(
        grid(d, 2, 1, 2, 4, 4)
    ),
    "reflection": lambda d: vmap(lambda x: F.pad(x, (1, 1), mode="reflect"))(grid(d, 2, 1, 2, 4)),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap(name: str) -> None:
    check(VMAPS[name], **TOLERANCE)


def test_vmap_reads_no_value() -> None:
    check_refused(lambda d: vmap(torch.Tensor.item)(grid(d, 3)), RuntimeError)


DRAWS = {
    "randn": lambda x: torch.randn(64, device=x.device),
    "rand_like": lambda x: torch.rand_like(x.expand(64)),
    "randint": lambda x: torch.randint(0, 1000, (64,), device=x.device),
    "randperm": lambda x: torch.randperm(64, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(torch.full((64,), 0.5, device=x.device)),
    "dropout": lambda x: F.dropout(torch.ones(64, device=x.device)),
    "normal": lambda x: torch.normal(0.0, 1.0, (64,), device=x.device),
    "multinomial": lambda x: torch.multinomial(torch.ones(64, device=x.device), 32),
}
FILLS = {
    "uniform_": torch.Tensor.uniform_,
    "normal_": torch.Tensor.normal_,
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "exponential_": torch.Tensor.exponential_,
    "random_": torch.Tensor.random_,
}


@pytest.mark.parametrize("name", DRAWS)
def test_randomness(name: str) -> None:
    def draw(mode: str) -> torch.Tensor:
        torch.manual_seed(0)
        return vmap(lambda x: DRAWS[name](x) + 0 * x, randomness=mode)(grid("tpu", 3)).cpu()

    same, different = draw("same"), draw("different")
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    assert not torch.equal(different[0], different[1])
    assert torch.equal(different, draw("different"))
    with pytest.raises(RuntimeError, match="randomness"):
        draw("error")


@pytest.mark.parametrize("name", FILLS)
def test_random_fills_differ(name: str) -> None:
    drawn = vmap(lambda x: FILLS[name](x.expand(64).clone()), randomness="different")(grid("tpu", 3)).cpu()
    assert not torch.equal(drawn[0], drawn[1])


def cube(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() + x.prod()


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 * ctx.saved_tensors[0] ** 2


def a_vjp(d: str):
    out, pull = vjp(lambda x, y: (x * y, x.sum()), grid(d, 3), grid(d, 3) + 1)
    return out, pull((grid(d, 3), torch.tensor(1.0, device=d)))


def a_linearization(d: str):
    out, push = linearize(lambda x: x.sin() * x, grid(d, 3))
    return out, push(grid(d, 3) + 1)


TRANSFORMS = {
    "grad": lambda d: grad(lambda x: (x.sin() * x).sum())(grid(d, 3, 4)),
    "auxiliary": lambda d: grad(lambda x: ((x**3).sum(), x * 2), has_aux=True)(grid(d, 3)),
    "second": lambda d: grad(grad(lambda x: x**4))(torch.tensor(1.5, device=d)),
    "jvp": lambda d: jvp(lambda x: (x.sin(), x.exp().sum()), (grid(d, 3),), (grid(d, 3) + 1,)),
    "vjp": a_vjp,
    "jacrev": lambda d: jacrev(lambda x: torch.stack([x.sum(), x.prod()]))(grid(d, 3) + 2),
    "jacrev in chunks": lambda d: jacrev(lambda x: torch.stack([x.sum(), x.prod()]), chunk_size=1)(
        grid(d, 3)
    ),
    "jacfwd": lambda d: jacfwd(lambda x: torch.stack([x.sum(), x.prod()]))(grid(d, 3) + 2),
    "hessian": lambda d: hessian(cube)(grid(d, 4) + 2),
    "hessian of a layer": lambda d: hessian(
        lambda w: F.softmax(torch.tanh(grid(d, 2, 3) @ w), -1).pow(2).sum()
    )(grid(d, 3, 4)),
    "attention": lambda d: grad(
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True).pow(2).sum()
    )(grid(d, 1, 2, 4, 8)),
    "of a function": lambda d: vmap(grad(Cube.apply))(grid(d, 3)),
    "linearize": a_linearization,
    "functionalize": lambda d: functionalize(written)(grid(d, 3, 2)),
    "per embedding": lambda d: vmap(grad(lambda w, i: F.embedding(i, w).pow(2).sum()), in_dims=(None, 0))(
        grid(d, 5, 4), places(d)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name: str) -> None:
    check(TRANSFORMS[name], **TOLERANCE)


def network(d: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 3))
    return torch.nn.Sequential(*layers).to(d)


def test_gradients_per_sample() -> None:
    def gradients(d: str):
        model = network(d)

        def loss(parameters, image, label):
            return F.cross_entropy(functional_call(model, parameters, (image[None],)), label[None])

        labels = torch.tensor([0, 1, 2, 0, 1], device=d)
        parameters = dict(model.named_parameters())
        return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, grid(d, 5, 1, 6, 6), labels)

    check(gradients, **TOLERANCE)


def test_ensembles() -> None:
    def outputs(d: str):
        torch.manual_seed(0)
        models = [torch.nn.Linear(3, 2).to(d) for _ in range(3)]
        parameters, buffers = stack_module_state(models)
        skeleton = copy.deepcopy(models[0]).to("meta")

        def call(parameters, buffers, x):
            return functional_call(skeleton, (parameters, buffers), (x,))

        return vmap(call, in_dims=(0, 0, None))(parameters, buffers, grid(d, 5, 3))

    check(outputs)


def test_gradcheck() -> None:
    x = grid("tpu", 3).double().requires_grad_()
    assert torch.autograd.gradcheck(torch.exp, (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: x.sin() * x, (x,))
