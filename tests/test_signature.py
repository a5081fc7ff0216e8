"""Every item of a call's signature is part of its plan's key: changing one never runs a stale program.

The variants of a test differ in one item. Each runs twice, the others in between, and gives the CPU's answer.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.usefixtures("no_fallback")


def numbers(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(sizes).numel()
    if dtype.is_complex:
        return torch.complex(*(((torch.arange(count) * k) % 7 - 2.0).view(sizes) for k in (3, 5))).to(dtype)
    return ((torch.arange(count) * 5) % 11 - 3).to(dtype).view(sizes)


def assert_same(actual, expected) -> None:
    if isinstance(expected, torch.Tensor):
        assert actual.device.type == "tpu"
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-6)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e)
    else:
        assert actual == expected


def assert_variants(*variants: Callable[[str], object]) -> None:
    """Each variant is a function of the device; what it returns must be what it returns on the CPU."""
    expected = [variant("cpu") for variant in variants]
    for _ in range(2):
        for variant, value in zip(variants, expected, strict=True):
            assert_same(variant("tpu"), value)


def over(function: Callable, *argument_lists: tuple) -> list[Callable[[str], object]]:
    """Variants of one function over different arguments, tensors moved to the device."""

    def moved(value, device: str):
        if isinstance(value, torch.Tensor):
            return value.to(device)
        return [moved(v, device) for v in value] if isinstance(value, list) else value

    return [
        lambda device, arguments=arguments: function(*(moved(a, device) for a in arguments))
        for arguments in argument_lists
    ]


# Operands ---------------------------------------------------------------------------------------------


def test_operator() -> None:
    x, y = numbers(3, 4), numbers(3, 4) + 4
    functions = (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.atan2)
    assert_variants(*(over(f, (x, y))[0] for f in functions))


def test_overload_and_form() -> None:
    x, y = numbers(3, 4), numbers(3, 4) + 1
    assert_variants(
        *over(torch.add, (x, y)),
        *over(lambda a, b: a.clone().add_(b), (x, y)),
        *over(lambda a, b: torch.add(a, b, out=torch.empty_like(a)), (x, y)),
        *over(lambda a, _: torch.add(a, 2), (x, y)),
    )


def test_dtype() -> None:
    dtypes = (torch.float32, torch.int32, torch.int64, torch.bfloat16, torch.uint8, torch.complex64)
    assert_variants(*over(lambda x: x * x + x, *((numbers(3, 4, dtype=d),) for d in dtypes)))


def test_dtype_of_the_second_operand() -> None:
    dtypes = (torch.float32, torch.int32, torch.bool, torch.float64)
    x = numbers(3, 4)
    assert_variants(*over(torch.add, *((x, numbers(3, 4).to(d)) for d in dtypes)))


def test_sizes() -> None:
    x = numbers(12)
    assert_variants(
        *over(lambda x: x.sum(0), *((x.view(s),) for s in ((3, 4), (4, 3), (12,), (1, 12), (2, 6))))
    )


def test_strides() -> None:
    def views(device: str) -> list[torch.Tensor]:
        x = numbers(4, 4).to(device)
        return [
            x,
            x.t(),
            x[:, 0].expand(4, 4),
            x.as_strided((4, 4), (4, 1), 0),
            x.flatten()[1:5].expand(4, 4),
        ]

    assert_variants(*(lambda device, i=i: views(device)[i] * 2 for i in range(5)))


def test_stepped_strides() -> None:
    x = numbers(8, 8)
    assert_variants(*over(lambda x, s: x[::s, :4][:2] + 1, *((x, s) for s in (1, 2, 3, 4))))


def test_wrapped_number() -> None:
    x = numbers(5, dtype=torch.int64)
    half = numbers(5, dtype=torch.bfloat16)
    assert_variants(
        *over(lambda x: x * 2.5, (x,)),
        *over(lambda x: x * torch.tensor(2.5, dtype=torch.float64), (x,)),
        *over(lambda x: x * torch.tensor([2.5], dtype=torch.float64, device=x.device), (x,)),
        *over(lambda h: h + 1.0, (half,)),
        *over(lambda h: h + torch.tensor(1.0), (half,)),
        *over(lambda h: h + torch.ones(1, device=h.device), (half,)),
    )


def test_conjugate_bit() -> None:
    z = numbers(4, dtype=torch.complex64)
    assert_variants(
        *over(lambda z: z + 1, (z,)),
        *over(lambda z: z.conj() + 1, (z,)),
        *over(lambda z: z.conj().clone().mul_(z), (z,)),
        *over(lambda z: z.clone().conj().mul_(z), (z,)),
    )


def test_negative_bit() -> None:
    z = numbers(4, dtype=torch.complex64)
    assert_variants(*over(lambda z: z.imag + 1, (z,)), *over(lambda z: z.conj().imag + 1, (z,)))


def test_layout_of_the_buffer() -> None:
    """The same sizes, strides and offset over buffers of different shapes."""

    def over_base(shape: tuple[int, ...], order: tuple[int, ...], at: int):
        def variant(device: str) -> list[torch.Tensor]:
            base = numbers(*shape).to(device)
            base = base.permute(order).contiguous().permute(*torch.argsort(torch.tensor(order)).tolist())
            view = base.as_strided((2, 3), (3, 1), at)
            read = view * 2
            view.add_(1)
            return [read, base]

        return variant

    bases = [
        ((24,), (0,)),
        ((4, 6), (0, 1)),
        ((4, 6), (1, 0)),
        ((2, 3, 4), (0, 1, 2)),
        ((1, 3, 2, 4), (0, 2, 3, 1)),
        ((8, 3), (0, 1)),
    ]
    assert_variants(*(over_base(shape, order, at) for shape, order in bases for at in (0, 1, 3, 6, 18)))


def test_dtype_of_the_buffer() -> None:
    def bits(dtype: torch.dtype):
        return lambda device: numbers(4, 6, dtype=dtype).to(device).view(torch.uint8)[1:3, 2:6] + 1

    assert_variants(*map(bits, (torch.float32, torch.int32, torch.bfloat16, torch.int64, torch.uint8)))


def test_offsets() -> None:
    x = numbers(6, 7)
    assert_variants(
        *over(lambda x, i, j: x[i : i + 2, j] * 2, *((x, i, j) for i in range(5) for j in range(7)))
    )


def test_empty_or_initialised_storage() -> None:
    def written(make: Callable[[str], torch.Tensor]):
        def variant(device: str) -> torch.Tensor:
            x = make(device)
            x[1:3] = 5
            x[:1] = 6
            x[3:].copy_(numbers(1, 4).to(device))
            return x

        return variant

    def shrunk(device: str) -> torch.Tensor:
        x = torch.ones(4, 4, device=device)
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(64)
        return x

    assert_variants(
        written(lambda device: torch.empty(4, 4, device=device)),
        written(lambda device: torch.ones(4, 4, device=device)),
        written(lambda device: torch.empty(16, device=device).view(4, 4)),
        written(lambda device: torch.empty(0, device=device).resize_(4, 4)),
        written(shrunk),
    )


# Aliasing ---------------------------------------------------------------------------------------------


def test_shared_or_separate_operands() -> None:
    x = numbers(6)
    assert_variants(
        *over(lambda x: x.clone().addcmul_(x, x), (x,)),
        *over(lambda x: x.clone().addcmul_(x, x.clone()), (x,)),
        lambda device: (lambda a: a.addcmul_(a, a))(numbers(6).to(device)),
        lambda device: (lambda a, b: a.addcmul_(a, b))(numbers(6).to(device), numbers(6).to(device) + 1),
        lambda device: (lambda a, b: a.addcmul_(b, b))(numbers(6).to(device), numbers(6).to(device) + 1),
    )


def test_disjoint_views_of_one_storage() -> None:
    def add(to: int, source: int):
        def variant(device: str) -> torch.Tensor:
            x = numbers(6, 4).to(device)
            x[to : to + 2].add_(x[source : source + 2])
            return x

        return variant

    assert_variants(*(add(to, source) for to in range(5) for source in range(5) if abs(to - source) != 1))


def test_overlap_raises_after_a_disjoint_call() -> None:
    x = numbers(6, 4).to("tpu")
    x[0:2].add_(x[2:4])
    with pytest.raises(RuntimeError, match="single memory location"):
        x[0:2].add_(x[1:3])
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(x[1:3], 1.0, out=x[0:2])
    torch.add(x[0:2], 1.0, out=x[0:2])
    with pytest.raises(RuntimeError, match="more than one element"):
        x[0].expand(4, 4).add_(1)


def test_outputs_that_alias_operands() -> None:
    def out(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]):
        def variant(device: str) -> list[torch.Tensor]:
            x, y = numbers(2, 3).to(device), numbers(2, 3).to(device) + 1
            return [function(x, y), x, y]

        return variant

    assert_variants(
        out(lambda x, y: torch.sub(x, y, out=x)),
        out(lambda x, y: torch.sub(x, y, out=y)),
        out(lambda x, y: torch.sub(x, y, out=torch.empty_like(x))),
        out(lambda x, y: torch.sub(x, x, out=x)),
    )


def test_one_tensor_twice_in_a_list() -> None:
    def lists(same: bool):
        def variant(device: str) -> list[torch.Tensor]:
            x, y = numbers(4).to(device), numbers(4).to(device) + 1
            torch._foreach_mul_([x, x if same else y], 3.0)
            torch._foreach_add_([x, x if same else y], [y, y])
            return [x, y]

        return variant

    assert_variants(lists(True), lists(False))


def test_overlapping_tensors_in_a_list() -> None:
    def lists(start: int):
        def variant(device: str) -> torch.Tensor:
            x = numbers(8).to(device)
            torch._foreach_mul_([x[0:4], x[start : start + 4]], 3.0)
            return x

        return variant

    assert_variants(*map(lists, range(5)))


# Attributes and scalars -------------------------------------------------------------------------------


def test_integer_attributes() -> None:
    x = numbers(3, 3, 3)
    assert_variants(
        *over(
            lambda x, d, k: x.sum(d, keepdim=k),
            *((x, d, k) for d in (0, 1, (0, 2), -1) for k in (False, True)),
        ),
        *over(lambda x, d: x.softmax(d), *((x, d) for d in (0, 1, 2))),
        *over(lambda x, d: x.cumsum(d), *((x, d) for d in (0, 1, 2))),
    )


def test_string_attributes() -> None:
    x, y = numbers(8), torch.tensor(2.0)
    assert_variants(
        *over(
            lambda x, y, mode: torch.div(x, y, rounding_mode=mode),
            *((x, y, m) for m in (None, "floor", "trunc")),
        ),
        *over(lambda x, mode: F.gelu(x, approximate=mode), *((x, m) for m in ("none", "tanh"))),
    )


def test_dtype_attribute() -> None:
    x = numbers(6, dtype=torch.int32)
    dtypes = (None, torch.int64, torch.float32, torch.float64)
    assert_variants(*over(lambda x, d: x.sum(dtype=d), *((x, d) for d in dtypes)))


def test_optional_scalars() -> None:
    x = numbers(9)
    bounds = ((0, None), (None, 0), (0, 2), (2, 0), (1, 3))
    assert_variants(*over(lambda x, low, high: x.clamp(low, high), *((x, low, high) for low, high in bounds)))


def test_float_attributes() -> None:
    x = numbers(9)
    assert_variants(
        *over(lambda x, s: F.leaky_relu(x, s), *((x, s) for s in (0.1, 0.5, 2.0))),
        *over(lambda x, s: F.softplus(x, s, 20.0 * s), *((x, s) for s in (0.5, 1.0, 2.0))),
        *over(lambda x, e: F.layer_norm(x, (9,), eps=e), *((x, e) for e in (1e-5, 1.0))),
        *over(lambda x, q: x.lerp(x * 2, q), *((x, q) for q in (0.25, 0.75))),
    )


def test_types_of_scalars() -> None:
    x = numbers(5, dtype=torch.int64)
    assert_variants(*over(torch.mul, *((x, s) for s in (2, 2.0, True, 2 + 0j, 3, 3.5, False, 1j))))


def test_values_of_scalars() -> None:
    x = numbers(5)
    assert_variants(*over(torch.mul, *((x, s) for s in (1.5, 2.5, -1.0, 0.0, float("inf"), 1e30))))
    assert_variants(*over(lambda x, a: torch.add(x, x, alpha=a), *((x, a) for a in (1, 2, 0.5, -1))))


def test_undefined_optional_tensors() -> None:
    x, w, b = numbers(2, 4), numbers(4) + 1, numbers(4)
    weights = ((None, None), (w, None), (w, b), (None, b))
    assert_variants(*over(lambda x, w, b: F.layer_norm(x, (4,), w, b), *((x, w, b) for w, b in weights)))
    matrix = numbers(3, 4)
    assert_variants(*over(F.linear, (x, matrix), (x, matrix, numbers(3)), (x, matrix, numbers(3) + 1)))


def test_optional_indices() -> None:
    x, i = numbers(4, 4), torch.tensor([0, 2])
    assert_variants(
        *over(lambda x, i: x[i], (x, i)),
        *over(lambda x, i: x[:, i], (x, i)),
        *over(lambda x, i: x[i, i], (x, i)),
        *over(lambda x, i: x[i, :, None], (x, i)),
    )


# Global modes -----------------------------------------------------------------------------------------


def plans_made(tpu, function: Callable[[], object]) -> int:
    before = tpu.stats()["meta_runs"]
    function()
    return tpu.stats()["meta_runs"] - before


@contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def test_matmul_precision(tpu) -> None:
    """The CPU plugin computes every precision alike; the programs differ."""
    x = numbers(5, 5).to("tpu")
    compiles = []
    for precision in ("highest", "high", "medium", "highest"):
        with matmul_precision(precision):
            before = tpu.stats()["compiles"] + tpu.stats()["disk_hits"]
            torch.testing.assert_close((x @ x).cpu(), x.cpu() @ x.cpu())
            compiles.append(tpu.stats()["compiles"] + tpu.stats()["disk_hits"] - before)
    assert compiles[1:] == [1, 1, 0]


def test_determinism(tpu) -> None:
    x = numbers(3, 5).to("tpu")
    x.cumsum(0)
    assert plans_or_disk_hits(tpu, lambda: x.cumsum(0)) == 0
    torch.use_deterministic_algorithms(True)
    try:
        assert plans_or_disk_hits(tpu, lambda: x.cumsum(0)) == 1
        assert_same(x.cumsum(0), numbers(3, 5).cumsum(0))
    finally:
        torch.use_deterministic_algorithms(False)
    assert plans_or_disk_hits(tpu, lambda: x.cumsum(0)) == 0


def plans_or_disk_hits(tpu, function: Callable[[], object]) -> int:
    """Calls that the tables in memory did not answer. Another mode may still need the same executable."""
    before = tpu.stats()
    function()
    after = tpu.stats()
    hits = after["cache_hits"] - before["cache_hits"]
    from_disk = after["disk_hits"] - before["disk_hits"]
    return max(after["meta_runs"] - before["meta_runs"], from_disk) if not hits or from_disk else 0


def test_default_dtype() -> None:
    def in_dtype(dtype: torch.dtype):
        def variant(device: str) -> list[torch.Tensor]:
            torch.set_default_dtype(dtype)
            try:
                x = torch.arange(1, 5, device=device)
                return [x / 2, x * 1.5, x.sqrt(), torch.full((2,), 1.5, device=device)]
            finally:
                torch.set_default_dtype(torch.float32)

        return variant

    assert_variants(*map(in_dtype, (torch.float32, torch.float64, torch.bfloat16)))


DEVICES = """
import torch
torch.tpu.set_fallback("error")
assert torch.tpu.device_count() == 2
xs = [torch.arange(6.0).view(2, 3).to(f"tpu:{i}") * (i + 1) for i in (0, 1)]
for _ in range(2):
    for i, x in enumerate(xs):
        y = x[1] * 2 + 1
        assert y.device == torch.device("tpu", i), y.device
        assert y.tolist() == [v * 2 * (i + 1) + 1 for v in (3.0, 4.0, 5.0)], y.tolist()
        assert torch.ones(2, device=f"tpu:{i}").add_(1).device.index == i
try:
    xs[0] + xs[1]
except RuntimeError as error:
    assert "same device" in str(error), error
else:
    raise AssertionError("operands on two devices")
assert xs[0].to("tpu:1").add_(xs[1]).tolist() == [[0.0, 3.0, 6.0], [9.0, 12.0, 15.0]]
print("fine")
"""


def test_device(tmp_path: Path) -> None:
    environment = os.environ | {"TORCH_PJRT_NUM_DEVICES": "2", "TORCH_PJRT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", DEVICES], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("fine"), done.stderr[-3000:]


# What is not in the key: compiles stay few ------------------------------------------------------------


def rows(i: int, x: torch.Tensor) -> torch.Tensor:
    return x[i] * 2


def windows(i: int, x: torch.Tensor) -> torch.Tensor:
    return x[i : i + 3].add_(1)


def columns(i: int, x: torch.Tensor) -> torch.Tensor:
    return x.select(1, i)


def scalars(i: int, x: torch.Tensor) -> torch.Tensor:
    return x * (i + 0.5)


MANY = {  # function: (sizes of x, compiles allowed)
    rows: ((1000, 8), 2),
    windows: ((1002, 4), 2),
    columns: ((3, 1000), 2),
    scalars: ((7, 5), 1),
}


@pytest.mark.parametrize("function", MANY, ids=lambda f: f.__name__)
def test_a_thousand_offsets(tpu, function) -> None:
    """Counted by the device itself; the counting plugin below does not trust it."""
    sizes, allowed = MANY[function]
    expected, x = numbers(*sizes), numbers(*sizes).to("tpu")
    before = tpu.stats()["compiles"]
    for i in range(1000):
        want, got = function(i, expected), function(i, x)
        if function is not windows:  # reading a window is a program of its own
            assert torch.equal(got.cpu(), want), i
    assert tpu.stats()["compiles"] - before <= allowed
    assert torch.equal(x.cpu(), expected)


def counting_plugin() -> Path:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = Path(os.environ.get("TORCH_PJRT_COUNTER", target / "release" / "libpjrt_count.so"))
    if not path.exists():
        pytest.skip(f"{path} is not built; `make test` builds it")
    return path


def count_compiles() -> None:
    """The body of a process whose plugin is the counting one."""
    counter = ctypes.CDLL(os.environ["TORCH_PJRT_PLUGIN"])

    def compiles() -> int:
        counts = (ctypes.c_uint64 * 8)()
        counter.pjrt_count_read(counts)
        return counts[0]

    torch.tpu.set_fallback("error")
    for function, (sizes, allowed) in MANY.items():
        x = numbers(*sizes).to("tpu")
        before = compiles()
        for i in range(1000):
            result = function(i, x)
            if function is not windows:
                result.cpu()
        made = compiles() - before
        assert 1 <= made <= allowed, f"{function.__name__}: {made} compiles"
    print("fine")


def test_a_thousand_offsets_at_the_plugin(tmp_path: Path) -> None:
    package = pytest.importorskip("fastatomstruct_xla_cpu")
    environment = os.environ | {
        "TORCH_PJRT_PLUGIN": str(counting_plugin()),
        "PJRT_COUNT_PLUGIN": str(Path(package.__path__[0]) / "libpjrt_cpu.so"),
        "TORCH_PJRT_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("fine"), done.stderr[-3000:]


if __name__ == "__main__":
    count_compiles()
