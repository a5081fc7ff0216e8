"""Integers exact over their range, 8-bit floats bit by bit, matrices of both."""

from __future__ import annotations

import operator

import pytest
import torch
from both_devices import check, check_refused, grid

pytestmark = pytest.mark.usefixtures("no_fallback")

LOWEST, LARGEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
EDGES = torch.tensor([0, 1, -1, 7, -7, 2**31, -(2**31) - 1, 2**32 + 1, 2**53 + 1, LARGEST - 1, LARGEST])
OTHERS = torch.tensor([3, -3, 1, 2**40 + 3, -7, LARGEST, LOWEST])
MATRIX = torch.tensor([[2**40 + 1, 3], [-5, 2**33]])


def pairs(d: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns and rows that broadcast to all pairs."""
    lowest = torch.tensor([LOWEST, LOWEST + 1])
    return torch.cat([EDGES, lowest])[:, None].to(d), OTHERS[None].to(d)


BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "scaled add": lambda x, y: torch.add(x, y, alpha=3),
    "floor_divide": torch.floor_divide,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "true division": torch.true_divide,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "less": torch.lt,
    "equal": torch.eq,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp": lambda x, y: x.clamp(min=y),
    "gcd": lambda x, y: torch.gcd(x.clamp(min=LOWEST + 1), y.clamp(min=LOWEST + 1)),
}


@pytest.mark.parametrize("name", BINARY)
def test_pairs_of_int64(name: str) -> None:
    check(lambda d: BINARY[name](*pairs(d)))


UNARY = {
    "numbers": lambda x: (x + 2**62, 3 - x, x * 5, x // 7, x % -7, x & 255, x == 2**53 + 1, x > 2**53),
    "powers": lambda x: (x**2, x**3, x.square(), -x, ~x, x.sign()),
    "abs": torch.abs,
    "sum": torch.sum,
    "narrow sum": lambda x: x.sum(dtype=torch.int32),
    "cumsum": lambda x: x.cumsum(0),
    "prod": torch.prod,
    "cumprod": lambda x: x.cumprod(0),
    "max": lambda x: (x.max(), x.min(), x.argmax(), x.median(), x.amax()),
    "sort": lambda x: tuple(x.sort(descending=True)),
    "topk": lambda x: tuple(x.topk(3)),
    "kthvalue": lambda x: tuple(x.kthvalue(3)),
    "floats": lambda x: (x.double(), x.float(), x * 1.0, x == 2.0**53),
    "casts": lambda x: [
        x.to(dtype) for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    ],
    "fill": lambda x: (torch.full_like(x, 2**53 + 1), x.clone().fill_(LARGEST), x.clone().mul_(2**53 + 1)),
    "index_add": lambda x: torch.zeros_like(x).index_add_(0, torch.zeros_like(x), x),
    "searchsorted": lambda x: torch.searchsorted(x.sort().values, x),
}


@pytest.mark.parametrize("name", UNARY)
def test_int64(name: str) -> None:
    check(lambda d: UNARY[name](EDGES.to(d)))


PRODUCTS = {
    "mm": lambda x: x @ x,
    "mv": lambda x: x @ x[0],
    "dot": lambda x: torch.dot(x[0], x[1]),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "addmm": lambda x: torch.addmm(x, x, x, beta=2, alpha=3),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "outer": lambda x: torch.outer(x[0], x[1]),
    "narrow": lambda x: (x % 200).to(torch.uint8) @ (x % 200).to(torch.uint8),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_int64(name: str) -> None:
    check(lambda d: PRODUCTS[name](MATRIX.to(d)))


@pytest.mark.parametrize("shift", [operator.lshift, operator.rshift])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_shifts(dtype: torch.dtype, shift) -> None:
    """By more than the width, too, and by negative numbers, which PyTorch defines."""
    width = torch.iinfo(dtype).bits
    by = torch.tensor([0, 1, width - 2, width - 1, width, width + 1] + ([-1] if dtype.is_signed else []))
    check(lambda d: shift(EDGES.to(dtype)[:, None].to(d), by.to(dtype)[None].to(d)))


def test_division_by_zero() -> None:
    for divide in (operator.floordiv, operator.mod):
        check_refused(lambda d, by=divide: by(EDGES.to(d), torch.zeros_like(EDGES).to(d)).cpu(), RuntimeError)


def test_ranges_of_int64() -> None:
    check(lambda d: torch.arange(2**53, 2**53 + 4, device=d))
    check(lambda d: torch.arange(LARGEST - 3, LARGEST, device=d))
    check(lambda d: torch.arange(LOWEST, LOWEST + 3, device=d))
    assert torch.tensor(LOWEST, device="tpu").item() == LOWEST


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_wide_unsigned_types(dtype: torch.dtype) -> None:
    largest = torch.iinfo(dtype).max
    x = torch.tensor([0, 1, largest // 2 + 1, largest], dtype=dtype)
    check(lambda d: (x.to(d), x.to(d)[1:].clone(), x.to(d) == x.to(d), torch.cat([x.to(d), x.to(d)])))
    assert x.to("tpu").tolist() == [0, 1, largest // 2 + 1, largest]


def test_casts_out_of_range() -> None:
    """What C leaves undefined: int32 and int64 saturate and NaN is 0, as on CUDA; narrower types keep the low bits of
    the saturated number.
    """
    x = torch.tensor(
        [300.0, -300.0, 1e10, -1e10, 1e20, -1e20, torch.inf, -torch.inf, torch.nan], device="tpu"
    )
    assert x[4:].to(torch.int64).tolist() == [LARGEST, LOWEST, LARGEST, LOWEST, 0]
    assert x[2:].to(torch.int32).tolist() == [2**31 - 1, -(2**31)] * 3 + [0]
    assert x[:2].to(torch.int8).tolist() == [44, -44]
    assert x[:2].to(torch.uint8).tolist() == [44, 212]


FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
# Ties, the largest numbers and what lies above them, subnormals.
FLOATS = torch.tensor(
    [
        *(
            0.0,
            -0.0,
            1.0,
            0.1,
            3.1,
            240.0,
            248.0,
            250.0,
            448.0,
            449.0,
            464.0,
            465.0,
            480.0,
            -500.0,
            57344.0,
            61440.0,
        ),
        *(2.0**-9, 2.0**-10, 2.0**-11, 3 * 2.0**-11, 1e-8, -1e-8, torch.inf, -torch.inf),
    ]
)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_bit_by_bit(dtype: torch.dtype) -> None:
    patterns = torch.arange(256).to(torch.uint8)
    for wide in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        check(lambda d, wide=wide: patterns.to(d).view(dtype).to(wide))
        check(lambda d, wide=wide: FLOATS.to(wide).to(d).to(dtype).view(torch.uint8))
    check(lambda d: EDGES.to(d).to(dtype).view(torch.uint8))
    # Between each number and its neighbour, too: close to the middle, where rounding twice goes wrong.
    numbers = patterns.view(dtype).float()
    numbers = numbers[numbers.isfinite()].sort().values
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = torch.cat([middles, middles.nextafter(numbers[1:]), middles.nextafter(numbers[:-1])])
    check(lambda d: near.to(d).to(dtype).float())
    assert FLOATS.new_full((1,), torch.nan).to("tpu").to(dtype).float().isnan().item()


def test_float8_tensors() -> None:
    def moved(d: str):
        x = grid(d, 2, 4).to(torch.float8_e4m3fn)
        made = (x.t(), torch.cat([x, x]), x[1:], x.clone(), x.expand(3, 2, 4), torch.zeros_like(x), x @ x.t())
        return [y.float() for y in made]

    check(moved)


ROWS = {"scale_a": (16, 1), "scale_b": (1, 16)}
SCALED = {
    "whole": {},
    "rows": ROWS,
    "bias": {"bias": (16,)},
    "float32": {"out_dtype": torch.float32},
    "float16": {"out_dtype": torch.float16},
    "float8": {"out_dtype": torch.float8_e4m3fn},
}


@pytest.mark.parametrize("dtype", FLOAT8[:2])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_products(name: str, dtype: torch.dtype) -> None:
    def product(d: str):
        options = {"out_dtype": torch.bfloat16, "scale_a": (), "scale_b": ()} | SCALED[name]
        for key, sizes in options.items():
            if isinstance(sizes, tuple):
                # Powers of two: exact in whatever order they are multiplied.
                options[key] = 2.0 ** (grid(d, *sizes) * 2).round()
        if "bias" in options:
            options["bias"] = options["bias"].bfloat16()
        x = grid(d, 16, 32).to(dtype)
        return torch._scaled_mm(x, x.to(torch.float8_e4m3fn).t(), **options).float()

    check(product)


def test_products_with_int8_weights() -> None:
    weight = (torch.arange(32 * 32) % 255 - 127).to(torch.int8).view(32, 32)
    check(
        lambda d: torch._weight_int8pack_mm(
            grid(d, 4, 32).bfloat16(), weight.to(d), grid(d, 32).abs().bfloat16()
        )
    )


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_matmul_precision(precision: str) -> None:
    """What the plugin makes of it is its own; within bfloat16's precision all are right."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        x = grid("tpu", 16, 16)
        torch.testing.assert_close(
            (x @ x).cpu(), grid("cpu", 16, 16) @ grid("cpu", 16, 16), rtol=2**-7, atol=2**-7
        )
    finally:
        torch.set_float32_matmul_precision(before)


FAKE_QUANTIZED = {
    "numbers": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 15),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(0.1, device=x.device), torch.tensor(3, dtype=torch.int32, device=x.device), 0, 15
    ),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(
        x,
        torch.tensor([0.1, 0.2, 0.3], device=x.device),
        torch.tensor([0, 3, 5], dtype=torch.int32, device=x.device),
        0,
        0,
        15,
    ),
}


@pytest.mark.parametrize("name", FAKE_QUANTIZED)
def test_fake_quantization(name: str) -> None:
    def results(d: str):
        x = (grid(d, 3, 8) * 2).requires_grad_()
        out = FAKE_QUANTIZED[name](x)
        out.sum().backward()
        return out, x.grad

    check(results)


def test_layers_for_quantization_aware_training() -> None:
    def results(d: str):
        module = torch.ao.quantization.FakeQuantize().to(d)
        return module(grid(d, 5)), module.scale, module.zero_point

    check(results)


@pytest.mark.parametrize(
    "name", ["float4_e2m1fn_x2", "float8_e8m0fnu", "uint4", "int4", "uint1", "bits8", "bits16"]
)
def test_types_that_are_only_kept(name: str) -> None:
    """They are made, viewed and moved; computing with them is refused by name."""
    dtype = getattr(torch, name)
    x = torch.arange(16).to(torch.uint8)
    check(lambda d: x.view(dtype).to(d).view(torch.uint8))
    check(lambda d: x.to(d).view(dtype)[2:].view(torch.uint8))
    assert torch.equal(x.to("tpu").view(dtype).cpu().view(torch.uint8), x)
    assert torch.empty(4, dtype=dtype, device="tpu").dtype == dtype
    with pytest.raises(NotImplementedError, match="c10 scalar type"):
        x.to("tpu").view(dtype) * 2
