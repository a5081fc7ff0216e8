"""Calls of the elementwise, reduction, scan, creation and foreach operators for `generate.py`."""

import torch

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
I64, I8, U8 = torch.int64, torch.int8, torch.uint8

SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 100.0])


def words(text):
    return text.split()


def pairs(values):
    """Every pair of the values, in two tensors."""
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def whole(dtype):
    """Small integers and the ends of the range."""
    info = torch.iinfo(dtype)
    return torch.tensor([info.min, max(info.min, -3), 0, 1, 2, 7, info.max], dtype=dtype)


def unary(File):
    with File("unary") as f:
        for name in words(
            "abs acos angle asinh atan ceil cos erf erfinv exp exp2 expm1 floor frac isinf isnan "
            "isposinf lgamma log log10 log1p log2 logical_not neg reciprocal round rsqrt sigmoid sign "
            "signbit sin sinc sqrt tan tanh trunc i0 special_i1 special_ndtri special_erfcx "
            "special_log_ndtr special_entr"
        ):
            op = getattr(aten, name).default
            f.call(op, SPECIAL)
            f.call(op, torch.tensor([0.25, 0.5, 2.0], dtype=BF16 if "special" not in name else F32))
        for name in words("abs neg sign signbit bitwise_not logical_not isnan"):
            for dtype in (I64, I8, U8):
                f.call(getattr(aten, name).default, whole(dtype))
        f.call(aten.exp.default, torch.tensor([True, False]))
        f.call(aten.bitwise_not.default, torch.tensor([True, False]))
        for decimals in (2, 0, -1):
            f.call(aten.round.decimals, torch.tensor([12.345, -15.0, 25.0]), decimals=decimals)
        f.call(aten.nan_to_num.default, SPECIAL.half(), None, None, None)
        f.call(aten.nan_to_num.default, SPECIAL, 1.0, 2.0, -3.0)
        f.call(aten.logit.default, torch.tensor([-0.5, 0.1, 0.9, NAN]), 0.2)
        for n in range(4):
            f.call(aten.polygamma.default, n, torch.tensor([0.5, 1.0, 3.25, -0.5, -2.25, 20.0]))


def special(File):
    with File("special") as f:
        x = torch.tensor([-9.0, -2.5, -0.25, 0.0, 0.25, 1.5, 4.0, 7.0, 20.0, INF, NAN])
        for name in words(
            "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 "
            "modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 "
            "spherical_bessel_j0"
        ):
            f.call(getattr(aten, "special_" + name).default, x)
        x = torch.tensor([-2.5, -1.0, -0.3, 0.0, 0.7, 1.0]).repeat_interleave(5)
        n = torch.tensor([-1.0, 0.0, 1.0, 5.0, 12.7]).repeat(6)
        for name in words(
            "chebyshev_t chebyshev_u chebyshev_v chebyshev_w hermite_h hermite_he laguerre_l legendre_p"
        ):
            family, _, kind = name.partition("_")
            f.call(getattr(aten, f"special_{family}_polynomial_{kind}").default, x, n)
            if family == "chebyshev":
                f.call(getattr(aten, f"special_shifted_chebyshev_polynomial_{kind}").default, x, n)


def binary(File):
    with File("binary") as f:
        for name in words(
            "atan2 copysign.Tensor fmax fmin maximum minimum heaviside hypot logaddexp logaddexp2 "
            "pow.Tensor_Tensor xlogy.Tensor special_xlog1py nextafter eq.Tensor ne.Tensor lt.Tensor "
            "le.Tensor gt.Tensor ge.Tensor logical_and logical_xor"
        ):
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            # Vectorised hypot on CPU answers NaN for (inf, NaN).
            f.call(op, *pairs(SPECIAL[3:] if name == "hypot" else SPECIAL))
        for name in words(
            "add.Tensor sub.Tensor mul.Tensor div.Tensor maximum bitwise_and.Tensor bitwise_or.Tensor "
            "bitwise_xor.Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor "
            "pow.Tensor_Tensor lt.Tensor gcd lcm"
        ):
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            for dtype in (torch.int32, I8, U8):
                values = whole(dtype)
                if name in ("gcd", "lcm"):
                    values = torch.tensor([0, 1, 4, 6, 10, 12], dtype=dtype)
                f.call(op, *pairs(values))
        yes = torch.tensor([True, False])
        for op in (aten.add.Tensor, aten.mul.Tensor, aten.lt.Tensor):
            f.call(op, *pairs(yes))
        # Promotion, broadcasting, run-time scalars.
        x = torch.tensor([[1.0], [2.5]])
        for other in (
            torch.tensor([1, 2]),
            torch.tensor(2.0, dtype=torch.float64),
            torch.tensor([True, False]),
        ):
            f.call(aten.add.Tensor, x, other)
            f.call(aten.gt.Tensor, x, other)
        for x in (torch.tensor([250, 3], dtype=U8), torch.tensor([256.0, -3.0], dtype=BF16), yes):
            for alpha in (1, 3):
                f.call(aten.add.Scalar, x, 10, alpha)
                f.call(aten.rsub.Scalar, x.float(), 0.5, alpha)
            f.call(aten.mul.Scalar, x, 1.006)
            f.call(aten.lt.Scalar, x, 2.5)
        for exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, -3):
            f.call(aten.pow.Tensor_Scalar, SPECIAL, exponent)
        f.call(aten.pow.Tensor_Scalar, whole(I8), 5)
        f.call(aten.pow.Scalar, 3, torch.tensor([0, 2, 40]))


def division(File):
    with File("division") as f:
        for name in ("fmod.Tensor", "remainder.Tensor", "floor_divide.default", "div.Tensor"):
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload)
            f.call(op, *pairs(SPECIAL))
            for dtype in (I64, I8, U8):
                x, y = pairs(whole(dtype))
                # The least integer by -1 traps on x86.
                keep = (y != 0) & (y != -1)
                f.call(op, x[keep], y[keep])
        for mode in ("trunc", "floor"):
            x, y = pairs(SPECIAL)
            f.call(aten.div.Tensor_mode, x, y, rounding_mode=mode)
            f.call(
                aten.div.Tensor_mode, torch.tensor([-7, 7, 8]), torch.tensor([2, -2, 2]), rounding_mode=mode
            )
            x, y = torch.tensor([-7.0, 3.0], dtype=BF16), torch.tensor([0.7, 0.1], dtype=BF16)
            f.call(aten.div.Tensor_mode, x, y, rounding_mode=mode)
        f.call(aten.remainder.Scalar, torch.tensor([-7, 7]), 3)
        for op in (aten.fmod.Tensor, aten.remainder.Tensor, aten.floor_divide.default):
            zero = torch.tensor([1.0, 0.0]).to(I8)
            f.call(
                op, torch.tensor([1, 2], dtype=I8), zero, results="int8[2]: ZeroDivision ZeroDivisionError"
            )


def ternary(File):
    with File("ternary") as f:
        x, y, z = SPECIAL[:8], SPECIAL[3:], torch.linspace(-1, 2, 8)
        for value in (1, 2, 0.5):
            f.call(aten.addcmul.default, x, y, z, value=value)
            f.call(aten.addcdiv.default, x, y, z, value=value)
            f.call(aten.lerp.Scalar, y, z, value)
        f.call(aten.lerp.Tensor, y, z, torch.linspace(0, 1, 8))
        for low, high in ((None, 1), (-1, None), (-1, 2), (2, -1), (NAN, 1.0)):
            f.call(aten.clamp.default, x, low, high)
        f.call(aten.clamp.default, whole(U8), -1, 100)
        f.call(aten.clamp.Tensor, x, y, z)
        mask = torch.tensor([True, False] * 4)
        f.call(aten.masked_fill.Scalar, x, mask, 7)
        f.call(aten.where.self, mask, x, torch.tensor(2))
        f.call(aten.where.self, mask, torch.arange(8), torch.tensor(2))


def activations(File):
    with File("activations") as f:
        x, grad = torch.tensor([-30.0, -3.0, -0.5, 0.0, 0.5, 3.0, 30.0, NAN]), torch.linspace(-1, 2, 8)
        for name in words("gelu relu silu mish hardsigmoid hardswish softplus elu hardtanh leaky_relu"):
            f.call(getattr(aten, name).default, x)
            f.call(getattr(aten, name).default, x[:7].bfloat16())
        f.call(aten.gelu.default, x, approximate="tanh")
        # Where a gradient meets NaN, CPU's vectorised and scalar loops disagree.
        x, grad = x[:7], grad[:7]
        for name in words("gelu silu mish sigmoid tanh hardsigmoid hardswish"):
            f.call(getattr(aten, name + "_backward").default, grad, x)
        f.call(aten.gelu_backward.default, grad, x, approximate="tanh")
        for value in (0.5, 2):
            f.call(aten.threshold_backward.default, grad, x, value)
            f.call(aten.leaky_relu_backward.default, grad, x, value, False)
            f.call(aten.softplus_backward.default, grad, x, value, 20)
            f.call(aten.elu_backward.default, grad, 1.5, value, 1, False, x)
            f.call(aten.elu_backward.default, grad, 1.5, value, 1, True, x)
            f.call(aten.hardshrink.default, x, value)
            f.call(aten.softshrink.default, x, value)
        f.call(aten._prelu_kernel.default, x, grad)
        f.call(aten._prelu_kernel_backward.default, grad, x, grad)
        x, grad = torch.randn(2, 4), torch.randn(2, 2)
        f.call(aten.glu.default, x, 1)
        f.call(aten.glu_backward.default, grad, x, 1)
        dx, dgrad = torch.randn(2, 4), torch.randn(2, 2)
        f.call(aten.glu_jvp.default, aten.glu(x, 1), x, dx, 1)
        f.call(aten.glu_backward_jvp.default, aten.glu_backward(grad, x, 1), grad, x, dgrad, dx, 1)


def reductions(File):
    with File("reductions") as f:
        special = torch.tensor([[1, 5, 5, 2], [NAN, 3, NAN, 1], [INF, -INF, 0, 1]])
        inputs = [special, torch.randn(3, 4), torch.randn(3, 4).bfloat16(), torch.randint(-3, 4, (3, 4))]
        inputs += [torch.rand(3, 4) > 0.5, torch.tensor(2.5)]
        for x in inputs:
            for dim in (0, -1):
                for name in (
                    "max.dim",
                    "min.dim",
                    "argmax.default",
                    "argmin.default",
                    "any.dim",
                    "prod.dim_int",
                ):
                    packet, _, overload = name.partition(".")
                    if not (packet.startswith("arg") and x.dtype == torch.bool):
                        f.call(getattr(getattr(aten, packet), overload), x, dim, False)
                f.call(aten.sum.dim_IntList, x, [dim], True)
                f.call(aten.amax.default, x, [dim])
                f.call(aten.count_nonzero.dim_IntList, x, [dim])
            for op in (aten.sum, aten.prod, aten.all, aten.max):
                f.call(op.default, x)
            if x.is_floating_point():
                f.call(aten.mean.default, x)
                f.call(aten.logsumexp.default, x, [0])
                f.call(aten.nansum.default, x, [0])
        x = inputs[1]
        for correction in (None, 0, 2, 3):
            f.call(aten.var_mean.correction, x, [0], correction=correction)
            f.call(aten.std.correction, x, [1], correction=correction, keepdim=True)
        for order in (2, 1, 0, INF, -INF, 3):
            f.call(aten.linalg_vector_norm.default, x, order, [0])
        f.call(aten.sum.dim_IntList, x, [0], dtype=I64)
        f.call(aten.any.dims, x, [])
        for op in (aten.sum, aten.prod, aten.mean, aten.all):
            f.call(op.default, torch.zeros(0, 2))


def scans(File):
    with File("scans") as f:
        for x in (
            torch.tensor([3.0, 1.0, NAN, 2.0, 5.0]),
            torch.tensor([3, 1, 3, 2, 5]),
            torch.tensor([True, False, True]),
        ):
            for op in (aten.cumsum, aten.cumprod, aten.cummax, aten.cummin):
                f.call(op.default, x, 0)
        f.call(aten.cumsum.default, torch.randn(3, 7), 1)
        f.call(aten.cumprod.default, torch.randn(3, 8), -1)
        f.call(aten.cummax.default, torch.randint(0, 3, (2, 9)), 1)
        f.call(aten.logcumsumexp.default, torch.tensor([-INF, -INF, 0.0, 1.0, INF]), 0)
        f.call(aten.cumsum.default, torch.tensor(2.5), 0)


def creation(File):
    with File("creation") as f:
        for dtype in (I64, F32, BF16):
            f.call(aten.arange.start_step, 7, 1, -2, dtype=dtype)
            f.call(aten.arange.start_step, 0.5, 3, 0.3, dtype=dtype)
            f.call(aten.linspace.default, -3, 4, 6, dtype=dtype)
            f.call(aten.full.default, [2, 2], 2.5, dtype=dtype)
        f.call(aten.eye.m, 2, 3)
        for diagonal in (-1, 0, 1, 100):
            f.call(aten.tril.default, torch.arange(6).reshape(2, 3), diagonal)
            f.call(aten.triu.default, torch.arange(6.0).reshape(2, 3), diagonal)
        f.call(aten.tril_indices.default, 3, 2, 0)
        f.call(aten.triu_indices.default, 2, 3, -1)
        for dtype in (I64, torch.int32, I8, U8, torch.bool, BF16, F16):
            f.call(aten._to_copy.default, torch.tensor([-3.7, 2.9, 0.0, 100.5]), dtype=dtype)
            f.call(aten._to_copy.default, torch.tensor([-5, 300, 0]), dtype=dtype)


def write(File):
    for family in (unary, special, binary, division, ternary, activations, reductions, scans, creation):
        family(File)
