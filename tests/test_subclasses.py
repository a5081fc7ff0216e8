"""Tensor subclasses, modes and tensors that stand for others: what PyTorch promises of them holds on the device."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F
from both_devices import check, grid
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map

pytestmark = pytest.mark.usefixtures("no_fallback")


class Logged(torch.Tensor):
    """A wrapper around a tensor that notes the operators called on it."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, log: list[str]):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=inner.device
        )
        made.inner, made.log = inner, log
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        log = next(
            leaf.log for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, cls)
        )
        log.append(str(func))
        inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, cls) else x, (args, kwargs))
        out = func(*inner_args, **inner_kwargs)
        out = tree_map(lambda x: cls(x, log) if isinstance(x, torch.Tensor) else x, out)
        return return_and_correct_aliasing(func, args, kwargs, out)


def logged(function):
    """What a function of a wrapper gives, unwrapped, and the operators that it called."""

    def on(device: str):
        log: list[str] = []
        wrapper = Logged(grid(device, 3, 4), log)
        assert wrapper.device == wrapper.inner.device
        return tree_map(lambda x: x.inner if isinstance(x, Logged) else x, function(wrapper)), log

    return on


def gradient(x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    (x * x).sum().backward()
    return x.grad


def of_a_layer(x: torch.Tensor) -> tuple:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3).to(x.device)
    layer.weight = torch.nn.Parameter(x)
    out = layer(Logged(grid(x.device.type, 2, 4), x.log))
    out.sum().backward()
    return out.detach(), layer.weight.grad


WRAPPED = {
    "forward": lambda x: (x @ x.t()).relu().sum(0),
    "gradient": gradient,
    "layer": of_a_layer,
    "in place": lambda x: x.add_(1)[1],
    "copies": lambda x: x.detach().clone().to(torch.float64),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers(name: str) -> None:
    check(logged(WRAPPED[name]))


class Marked(torch.Tensor):
    """Nothing but a type."""


def test_the_type_is_kept() -> None:
    def results(d: str):
        x = grid(d, 3, 4).as_subclass(Marked)
        made = (x @ x.t(), torch.cat([x, x]), x[1:], x.to(torch.float64), x.add_(1))
        assert all(type(y) is Marked for y in made)
        return [y.as_subclass(torch.Tensor) for y in made]

    check(results)


def test_two_tensors_in_one() -> None:
    def gradients(d: str):
        x = TwoTensor(grid(d, 3, 4), grid(d, 3, 4) + 1).requires_grad_()
        (x.sin() @ x.t()).sum().backward()
        return x.grad.a, x.grad.b

    check(gradients)


class Quantized(torch.Tensor):
    """An int8 weight with scales per row, as quantization libraries make it."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.elements, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["elements", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, _context, _size, _stride):
        return cls(inner["elements"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight, bias = args
            return F.linear(x, weight.elements.to(weight.scale.dtype) * weight.scale, bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            raise NotImplementedError(func)
        device = (kwargs or {}).get("device", args[0].device)
        return cls(args[0].elements.to(device), args[0].scale.to(device))


def test_quantized_weights_move_with_their_module() -> None:
    def outputs(d: str):
        weight = grid("cpu", 3, 4)
        scale = weight.abs().amax(1, keepdim=True) / 127
        layer = torch.nn.Linear(4, 3, bias=False)
        quantized = Quantized((weight / scale).round().to(torch.int8), scale)
        layer.weight = torch.nn.Parameter(quantized, requires_grad=False)
        layer.to(d)
        assert layer.weight.elements.device.type == layer.weight.device.type == d
        return layer(grid(d, 2, 4))

    check(outputs)


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class FunctionNames(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Names, FunctionNames])
def test_modes_see_the_same_calls(mode) -> None:
    def calls(d: str):
        x = grid(d, 3, 4).requires_grad_()
        with mode() as entered:
            (x @ x.t()).softmax(-1).sum().backward()
        return entered.seen, x.grad

    check(calls)


def test_fake_tensors_have_the_device() -> None:
    with FakeTensorMode() as mode:
        layer = torch.nn.Linear(4, 5, device="tpu")
        out = layer(torch.empty(3, 4, device="tpu"))
        out.sum().backward()
        assert out.device == layer.weight.grad.device == torch.device("tpu:0")
        assert out.shape == (3, 5)
    real = torch.ones(3, device="tpu")
    assert mode.from_tensor(real).device == real.device


@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
def test_traced_graphs(tracing: str) -> None:
    def outputs(d: str):
        return make_fx(lambda x: (x @ x.t()).relu().sum(), tracing_mode=tracing)(grid(d, 3, 4))(grid(d, 5, 4))

    if tracing == "symbolic":
        check(outputs)
    else:
        check(
            lambda d: make_fx(lambda x: (x @ x.t()).relu().sum(), tracing_mode=tracing)(grid(d, 3, 4))(
                grid(d, 3, 4)
            )
        )


def test_swapped_tensors() -> None:
    def swapped(d: str):
        x, y = grid(d, 3).requires_grad_(), torch.nn.Parameter(grid(d, 4))
        torch.utils.swap_tensors(x, y)
        assert type(x) is torch.nn.Parameter
        return x, y

    check(swapped)


@pytest.fixture
def swap_on_conversion():
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def test_modules_move_by_swapping(swap_on_conversion) -> None:
    def trained(d: str):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3))
        model.tied = model[0]
        weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        model.to(d)
        assert model[0].weight is weight
        assert model.tied.weight is weight
        assert weight.device.type == d
        model(grid(d, 2, 3)).sum().backward()
        optimizer.step()
        return model.double().state_dict()

    check(trained)


def test_subclasses_are_saved_and_loaded() -> None:
    file = io.BytesIO()
    torch.save(TwoTensor(grid("tpu", 3), grid("tpu", 3) + 1), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is TwoTensor
    assert loaded.a.device.type == "tpu"
    torch.testing.assert_close(loaded.b.cpu(), grid("cpu", 3) + 1)
