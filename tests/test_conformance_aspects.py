"""Every way to ask an operator notices what is wrong: the entries here go wrong on the device in a known way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from conformance import pairs, worker
from conformance.aspects import ASPECTS, gradient
from conformance.rules import tolerances

X = torch.Tensor


def _samples(
    _: Any, device: str, dtype: torch.dtype, requires_grad: bool, **__: Any
) -> Iterator[SampleInput]:
    yield SampleInput(make_tensor((3, 4), device=device, dtype=dtype, requires_grad=requires_grad))


def _error_inputs(_: Any, device: str, **__: Any) -> Iterator[ErrorInput]:
    yield ErrorInput(
        SampleInput(torch.ones(2, device=device)), error_type=ValueError, error_regex="two is too few"
    )


def _either(device: Callable, cpu: Callable) -> Callable:
    def op(x: X, **options: Any) -> Any:
        return (device if x.device.type == "tpu" else cpu)(x, **options)

    return op


def verdict(
    aspect: str,
    device: Callable,
    cpu: Callable,
    inplace: Callable | None = None,
    inplace_cpu: Callable = lambda x: x.add_(1),
) -> tuple[str, str]:
    """The status of an entry, and what was said first of what is not green."""
    entry = OpInfo(
        "sample",
        op=_either(device, cpu),
        inplace_variant=inplace and _either(inplace, inplace_cpu),
        dtypes={torch.float32},
        sample_inputs_func=_samples,
        error_inputs_func=_error_inputs,
        supports_out=True,
        supports_autograd=True,
        supports_forward_ad=True,
    )
    pair = pairs.Pair("sample", "float32")
    record = worker.run(pair, entry, ASPECTS[aspect], 6, lambda _: None)
    return record["status"], record["failures"][0]["message"] if record["failures"] else ""


class _Off(torch.autograd.Function):
    """x * 2 with a gradient of 2.001."""

    @staticmethod
    def forward(ctx: Any, x: X) -> X:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: X) -> X:
        return gradient * 2.001


def test_a_wrong_gradient(tpu) -> None:
    assert verdict("gradient", lambda x: x * 2, lambda x: x * 2) == ("green", "")
    status, said = verdict("gradient", _Off.apply, lambda x: x * 2)
    assert status == "wrong"
    assert "value of output 0" in said
    # A result that does not depend on the input has no gradient, where the CPU's has.
    assert verdict("gradient", lambda x: x.detach() * 2, lambda x: x * 2)[0] == "wrong"


def test_a_wrong_gradient_that_is_judged_by_a_float64_run(tpu, monkeypatch) -> None:
    monkeypatch.setitem(tolerances.GRADIENTS_AGAINST_FLOAT64, "sample", "a reason")
    status, said = verdict("gradient", _Off.apply, lambda x: x * 2)
    assert status == "wrong"
    assert "largest error 0.00" in said


def test_weights_are_the_same_in_every_dtype() -> None:
    narrow = gradient.weights(torch.empty(50))
    torch.set_default_dtype(torch.float64)
    try:
        assert (gradient.weights(torch.empty(50)) == narrow).all()
        assert (gradient.weights(torch.empty(50, dtype=torch.complex64)).real == narrow).all()
    finally:
        torch.set_default_dtype(torch.float32)


class _OffTwice(torch.autograd.Function):
    """x * x * x with the right gradient, 3 * x * x, whose own gradient is not 6 * x."""

    @staticmethod
    def forward(ctx: Any, x: X) -> X:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, gradient: X) -> X:
        (x,) = ctx.saved_tensors
        return gradient * 1.5 * x * _Off.apply(x)


def test_a_wrong_gradient_of_the_gradient(tpu) -> None:
    def cube(x: X) -> X:
        return x * x * x

    assert verdict("double_backward", cube, cube) == ("green", "")
    assert verdict("gradient", _OffTwice.apply, cube)[0] == "green"
    status, said = verdict("double_backward", _OffTwice.apply, cube)
    assert status == "wrong"
    assert "value of output 0" in said
    # Linear: the gradient depends on the weights alone, and is off.
    status, said = verdict("double_backward", _Off.apply, lambda x: x * 2)
    assert status == "wrong"
    assert "value of output 1" in said


class _OffForward(torch.autograd.Function):
    """x * 2 with a tangent of 2.001."""

    @staticmethod
    def forward(x: X) -> X:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[X], output: X) -> None:
        pass

    @staticmethod
    def jvp(ctx: Any, tangent: X) -> X:
        return tangent * 2.001


def test_a_wrong_tangent(tpu) -> None:
    assert verdict("forward_mode", lambda x: x * 2, lambda x: x * 2) == ("green", "")
    status, said = verdict("forward_mode", _OffForward.apply, lambda x: x * 2)
    assert status == "wrong"
    assert "value of output 0" in said
    assert verdict("forward_mode", lambda x: x.detach() * 2, lambda x: x * 2)[0] == "wrong"


def _square(x: X, out: X | None = None) -> X:
    return torch.mul(x, x, out=out)


def _returns_another(x: X, out: X | None = None) -> X:
    return _square(x, out=out).clone()


def _writes_between(x: X, out: X | None = None) -> X:
    if out is not None and not out.is_contiguous():
        elements = out.untyped_storage().nbytes() // out.itemsize
        out.as_strided((elements,), (1,), 0).zero_()
    return _square(x, out=out)


def _takes_any_dtype(x: X, out: X | None = None) -> X:
    return _square(x) if out is None else out.resize_(x.shape).copy_(_square(x))


def _loses_strides(x: X, out: X | None = None) -> X:
    if out is not None and out.shape == x.shape:
        out.set_(torch.empty_like(x, dtype=out.dtype))
    return _square(x, out=out)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (_returns_another, "value of output 1: False instead of True"),
        (_writes_between, "value of output 3"),
        (_takes_any_dtype, "refusal: the CPU raises RuntimeError: result type Float can't be cast"),
        (_loses_strides, "strides [4, 1]' instead of"),
        (lambda x, out=None: _square(x), "value of output 1: False instead of True"),
    ],
)
def test_a_wrong_out(tpu, device, said: str) -> None:
    assert verdict("out", _square, _square) == ("green", "")
    status, message = verdict("out", device, _square)
    assert status == "wrong"
    assert said in message


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (lambda x: x.add_(1).view_as(x), "aliasing of output 0: at 0 of input 0 instead of is"),
        (lambda x: x.add_(2), "value of output 0"),
        (lambda x: x + 1, "value of output 1: False instead of True"),
    ],
)
def test_a_wrong_in_place_form(tpu, device, said: str) -> None:
    assert verdict("inplace", torch.sin, torch.sin, inplace=lambda x: x.add_(1)) == ("green", "")
    status, message = verdict("inplace", torch.sin, torch.sin, inplace=device)
    assert status == "wrong"
    assert said in message


def _too_few(x: X) -> X:
    raise RuntimeError("two is too few")


@pytest.mark.parametrize(
    ("device", "status"),
    [(_too_few, "green"), (lambda x: _too_few(x.add_(1)), "wrong")],
    ids=["before", "after"],
)
def test_a_refused_operator_that_has_written(tpu, device: Callable, status: str) -> None:
    got, message = verdict("inplace", torch.sin, torch.sin, inplace=device, inplace_cpu=_too_few)
    assert got == status, message
    assert "the arguments have changed" in message or status == "green"


def test_an_operator_that_reads_memory_as_it_lies(tpu) -> None:
    def contiguous_only(x: X) -> X:
        return x.as_strided(x.shape, torch.empty(x.shape).stride()) * 1

    assert verdict("forward", contiguous_only, torch.clone)[0] == "green"
    status, message = verdict("noncontiguous", contiguous_only, lambda x: x.contiguous().clone())
    assert status == "wrong"
    assert "value of output 0" in message


def _refuse(kind: type[Exception], words: str) -> Callable:
    def function(x: X, **_: Any) -> X:
        if x.numel() > 2:
            return x + 1
        raise kind(words)

    return function


@pytest.mark.parametrize(
    ("device", "expected", "said"),
    [
        (_refuse(ValueError, "on tpu: two is too few"), "green", ""),
        (_refuse(ValueError, "cpu said no"), "green", ""),
        (_refuse(ValueError, "something else"), "wrong", "the device says something else"),
        (_refuse(IndexError, "two is too few"), "wrong", "the device IndexError: two is too few"),
        (_refuse(NotImplementedError, "not yet"), "notimpl", "not yet"),
        (lambda x, **_: x + 1, "wrong", "the device answers"),
    ],
)
def test_an_error_that_is_not_raised_alike(tpu, device, expected: str, said: str) -> None:
    status, message = verdict("errors", device, _refuse(ValueError, "tpu said no"))
    assert status == expected
    assert said in message
