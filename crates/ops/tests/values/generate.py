"""Writes `*.txt` beside this file: calls of operators and what torch on the CPU answers.

Run with the Python that the project pins, and look at the difference before you commit it.
"""

from pathlib import Path

import elementwise
import functions
import indexing
import torch

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64


def data(*sizes, dtype=F32):
    """Quarters in a small range: short to print, and exact in every float type."""
    if dtype.is_floating_point:
        return (torch.randint(-8, 9, sizes) / 4).to(dtype)
    return torch.randint(-5, 6, sizes).to(dtype)


def number(value):
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if not isinstance(value, float) or any(c in text for c in ".en") else text + ".0"


def tensor(value):
    elements = value.double() if value.dtype.is_floating_point else value.long()
    elements = ",".join(f"{e:.9g}" if isinstance(e, float) else str(e) for e in elements.flatten().tolist())
    return f"{str(value.dtype)[6:]}[{','.join(map(str, value.shape))}]:{elements}"


def argument(value, kind):
    if value is None:
        return "none"
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, torch.dtype):
        return str(DTYPES[value])
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return "{" + ";".join(argument(v, "") for v in value) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ",".join(number(v) for v in value) + ")"
    return ("@" if kind == "number" else "") + number(value)


DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.bool: 11,
    torch.bfloat16: 15,
}  # fmt: skip


class File:
    """One file of recorded calls."""

    def __init__(self, name):
        self.path = Path(__file__).with_name(name + ".txt")
        self.lines = ["# Written by generate.py."]
        torch.manual_seed(0)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.path.write_text("\n".join(self.lines) + "\n")

    def call(self, op, *args, results=None, **kwargs):
        words = [op._schema.name + ("." + op._overloadname if op._overloadname != "default" else "")]
        for position, spec in enumerate(op._schema.arguments):
            if spec.name in kwargs:
                value = kwargs[spec.name]
            elif position < len(args):
                value = args[position]
            else:
                value = spec.default_value
            words.append(argument(value, str(spec.type)))
        if results is None:
            results = op(*args, **kwargs)
        if isinstance(results, str):
            words += ["->", "error", results]
        else:
            results = [results] if isinstance(results, torch.Tensor) else results
            words += ["->"] + [argument(r, "") for r in results]
        self.lines.append(" ".join(words))
        return results


def matmul():
    with File("matmul") as f:
        for dtype in (F32, BF16, I64, torch.int8):
            f.call(aten.mm.default, data(2, 3, dtype=dtype), data(3, 2, dtype=dtype))
        f.call(aten.bmm.default, data(2, 2, 3), data(2, 3, 1))
        f.call(aten.mv.default, data(2, 3), data(3))
        f.call(aten.dot.default, data(4), data(4))
        f.call(aten.vdot.default, data(4), data(4))
        f.call(aten.mm.default, data(2, 0), data(0, 2))
        for beta, alpha in ((1, 1), (2, 0.5), (0, 1)):
            nan = torch.tensor([NAN, INF]) if beta == 0 else data(2)
            f.call(aten.addmm.default, nan, data(2, 3), data(3, 2), beta=beta, alpha=alpha)
            f.call(aten.addmv.default, nan, data(2, 3), data(3), beta=beta, alpha=alpha)
            f.call(
                aten.baddbmm.default,
                nan.expand(2, 1, 2),
                data(2, 1, 3),
                data(2, 3, 2),
                beta=beta,
                alpha=alpha,
            )
            f.call(
                aten.addbmm.default, nan.expand(1, 2), data(2, 1, 3), data(2, 3, 2), beta=beta, alpha=alpha
            )
        f.call(
            aten.addmm.default,
            data(2, dtype=I64),
            data(2, 3, dtype=I64),
            data(3, 2, dtype=I64),
            beta=3,
            alpha=2,
        )
        f.call(aten._addmm_activation.default, data(2), data(2, 3), data(3, 2))
        f.call(aten._addmm_activation.default, data(2), data(2, 3), data(3, 2), use_gelu=True)
        int8 = [torch.randint(-128, 128, s, dtype=torch.int8) for s in ((2, 8), (8, 2))]
        f.call(aten._int_mm.default, *int8, results=int8[0].int() @ int8[1].int())


def grouped_matmul():
    """Groups that are empty, that end within a tile, and rows of none, which the device gives as zeros."""
    with File("grouped_matmul") as f:
        op = aten._grouped_mm.default
        for dtype in (F32, BF16):
            for ends in ([3, 3, 9], [2, 5, 10], [12, 12, 12]):
                offsets = torch.tensor(ends, dtype=torch.int32)
                used = torch.arange(12) < ends[-1]
                x, y = data(12, 8, dtype=dtype), data(3, 8, 8, dtype=dtype)
                results = torch.where(used[:, None], op(x, y, offsets), 0)
                f.call(op, x, y, offsets, results=results)
                x, y = data(3, 4, 8, dtype=dtype), data(8, 12, dtype=dtype)[:, : ends[-1]]
                x, y = x[:, :, :8], torch.nn.functional.pad(y, (0, 16 - y.shape[1]))
                results = torch.where(torch.arange(16) < ends[-1], op(x, y, offsets), 0)
                f.call(op, x, y, offsets, results=results)
                f.call(op, data(8, 16, dtype=dtype), data(16, 8, dtype=dtype), offsets)
            f.call(op, data(2, 3, 8, dtype=dtype), data(2, 8, 8, dtype=dtype))
        # More rows than one tile has; an infinite weight stays in its group.
        x, y = data(140, 4), data(3, 4, 4)
        y[1, 0, 0] = INF
        f.call(op, x, y, torch.tensor([50, 130, 140], dtype=torch.int32))
        f.call(op, data(4, 140), data(140, 4), torch.tensor([50, 135, 140], dtype=torch.int32))


def histogram():
    with File("histogram") as f:
        op = aten.histc.default
        x = torch.tensor([NAN, -1.0, 0.0, 0.7, 1.0, 2.9999, 3.0, 3.5, INF])
        f.call(op, x, 4, 0, 3)
        f.call(op, x[1:8], 5)
        f.call(op, torch.tensor([2.0, 2.0]), 4)
        f.call(op, torch.tensor([2.0, 3.0]), 4, 2.5, 2.5)
        f.call(op, torch.empty(0), 3)
        for dtype in (BF16, torch.float16, torch.float64):
            f.call(op, (torch.arange(40) / 7).to(dtype), 9, 0.5, 5)
        for dtype in (torch.int32, I64, torch.uint8):
            ids = torch.tensor([0, 3, 1, 1, 2, 7, 3, 0], dtype=dtype)
            f.call(op, ids, 4, 0, 3, results=torch.tensor([2, 2, 1, 2], dtype=dtype))


def softmax():
    with File("softmax") as f:
        rows = torch.tensor([[-INF, -INF, -INF], [1, -INF, 2], [INF, 1, 0], [NAN, 1, 0], [1000, 999, 0]])
        for op, backward in (
            (aten._softmax, aten._softmax_backward_data),
            (aten._log_softmax, aten._log_softmax_backward_data),
        ):
            f.call(op.default, rows, 1, False)
            f.call(op.default, data(2, 3, 2, dtype=BF16), -2, False)
            f.call(op.default, torch.tensor(2.0), 0, False)
            (y,) = f.call(op.default, data(2, 3), 1, False)
            f.call(backward.default, data(2, 3), y, 1, F32)
        f.call(aten._safe_softmax.default, rows, 1)


def normalization():
    with File("normalization") as f:
        x, w, b = data(2, 2, 3) + 100, data(2, 3), data(2, 3)
        _, mean, rstd = f.call(aten.native_layer_norm.default, x, [2, 3], w, b, 1e-5)
        f.call(aten.native_layer_norm.default, data(2, 2, 3, dtype=BF16), [3], None, None, 1e-12)
        f.call(
            aten.native_layer_norm_backward.default,
            data(2, 2, 3),
            x,
            [2, 3],
            mean,
            rstd,
            w,
            b,
            [True, True, True],
        )
        f.call(
            aten.native_layer_norm_backward.default,
            data(2, 2, 3),
            x,
            [2, 3],
            mean,
            rstd,
            w,
            b,
            [True, False, False],
        )
        x, w, b = data(2, 4, 3), data(4), data(4)
        _, mean, rstd = f.call(aten.native_group_norm.default, x, w, b, 2, 4, 3, 2, 1e-5)
        f.call(
            aten.native_group_norm_backward.default,
            data(2, 4, 3),
            x,
            mean,
            rstd,
            w,
            2,
            4,
            3,
            2,
            [True, True, True],
        )
        for v, dim in ((data(3, 2, 2), 0), (data(2, 3), 1), (data(3, 2).bfloat16(), 0)):
            g = data(*(size if k == dim else 1 for k, size in enumerate(v.shape))).to(v.dtype)
            _, norms = aten._weight_norm_interface(v, g, dim)
            f.call(aten._weight_norm_interface_backward.default, torch.ones_like(v), v, g, norms, dim)


def batch_norm():
    with File("batch_norm") as f:
        x, w, b = data(3, 2, 2), data(2), data(2)
        mean, var = data(2), data(2).abs() + 1
        for training in (True, False):
            f.call(aten._native_batch_norm_legit_functional.default, x, w, b, mean, var, training, 0.1, 1e-5)
            results = f.call(aten.native_batch_norm.default, x, w, b, None, None, True, 0.1, 1e-5)
            f.call(
                aten.native_batch_norm_backward.default,
                data(3, 2, 2), x, w, mean, var, results[1], results[2], training, 1e-5, [True, True, True],
            )  # fmt: skip
        f.call(aten._native_batch_norm_legit_no_training.default, x.bfloat16(), w, b, mean, var, 0.1, 1e-5)
        f.call(aten._batch_norm_with_update_functional.default, x, w, b, mean, var, 0.1, 1e-5)


def convolution():
    with File("convolution") as f:
        calls = [
            ((1, 2, 5), (2, 2, 3), [1], [0], [1], False, [0], 1),
            ((1, 4, 5), (4, 2, 3), [2], [2], [2], False, [0], 2),
            ((2, 2, 4, 3), (2, 1, 2, 2), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
            ((1, 2, 3, 3), (2, 2, 2, 2), [2, 1], [1, 0], [1, 2], True, [1, 0], 1),
            ((1, 4, 3), (4, 1, 3), [2], [1], [1], True, [1], 2),
            ((1, 2, 3), (2, 1, 2), [1], [0], [4], True, [3], 1),
            ((1, 1, 3, 3, 2), (2, 1, 2, 2, 2), [1, 1, 1], [0, 1, 0], [1, 1, 1], False, [0, 0, 0], 1),
        ]
        for x, w, *geometry in calls:
            x, w = data(*x), data(*w)
            bias = data(w.shape[1] * geometry[5] if geometry[3] else w.shape[0])
            (y,) = f.call(aten.convolution.default, x, w, bias, *geometry)
            f.call(
                aten.convolution_backward.default,
                data(*y.shape),
                x,
                w,
                list(bias.shape),
                *geometry,
                [True] * 3,
            )
        f.call(
            aten.convolution.default,
            data(1, 2, 5, dtype=BF16),
            data(1, 2, 3, dtype=BF16),
            None,
            *calls[0][2:],
        )


def max_pooling():
    with File("max_pooling") as f:
        special = torch.tensor([[[1, NAN, 2], [NAN, NAN, 0], [3, 4, 5]], [[-INF] * 3] * 3, [[1, 1, 1]] * 3])
        calls = [
            (special, [2, 2], [1, 1], [0, 0], [1, 1], False),
            (data(1, 1, 5, 4), [3, 2], [2, 2], [1, 1], [1, 1], True),
            (data(1, 1, 5, 4), [2, 2], [2, 1], [0, 0], [2, 1], False),
        ]
        for x, *window in calls:
            y, indices = f.call(aten.max_pool2d_with_indices.default, x, *window)
            f.call(aten.max_pool2d_with_indices_backward.default, data(*y.shape), x, *window, indices)
        f.call(aten.max_pool2d_with_indices.default, data(1, 3, 3, dtype=I64), [2, 2])
        f.call(aten.max_pool3d_with_indices.default, data(1, 2, 3, 3), [2, 2, 2], [1, 1, 1])
        for x, sizes in ((special, [2, 2]), (data(1, 5, 4), [3, 2])):
            y, indices = f.call(aten.adaptive_max_pool2d.default, x, sizes)
            f.call(aten.adaptive_max_pool2d_backward.default, data(*y.shape), x, indices)


def avg_pooling():
    with File("avg_pooling") as f:
        calls = [
            ([2, 2], [2, 2], [0, 0], False, True, None),
            ([3, 2], [2, 2], [1, 1], True, True, None),
            ([3, 2], [2, 2], [1, 1], True, False, None),
            ([2, 2], [1, 2], [1, 0], False, True, 3),
        ]
        for call in calls:
            x = data(1, 5, 4)
            (y,) = f.call(aten.avg_pool2d.default, x, *call)
            f.call(aten.avg_pool2d_backward.default, data(*y.shape), x, *call)
        f.call(aten.avg_pool2d.default, data(1, 4, 4, dtype=I64), [2, 2])
        f.call(aten.avg_pool3d.default, data(1, 2, 3, 3), [2, 2, 2], [1, 1, 1])
        special = torch.tensor([[[1, INF, 2], [NAN, 1, 0], [3, 4, 5]]])
        for x, sizes in ((special, [2, 2]), (data(1, 4, 6), [2, 3]), (data(1, 3, 2), [4, 3])):
            (y,) = f.call(aten._adaptive_avg_pool2d.default, x, sizes)
            f.call(aten._adaptive_avg_pool2d_backward.default, data(*y.shape), x)


def losses():
    with File("losses") as f:
        x, t = data(2, 3), data(2, 3)
        for reduction in range(3):
            grad = data(2, 3) if reduction == 0 else torch.tensor(0.5)
            f.call(aten.mse_loss.default, x, t, reduction)
            f.call(aten.mse_loss_backward.default, grad, x, t, reduction)
            for op, backward in (
                (aten.smooth_l1_loss, aten.smooth_l1_loss_backward),
                (aten.huber_loss, aten.huber_loss_backward),
            ):
                f.call(op.default, x, t, reduction, 0.5)
                f.call(backward.default, grad, x, t, reduction, 0.5)
            p, weight = x.abs() / 4, t.abs()
            p[0, 0], p[0, 1] = 0, 1
            f.call(aten.binary_cross_entropy.default, p, t.abs() / 4, weight, reduction)
            f.call(aten.binary_cross_entropy_backward.default, grad, p, t.abs() / 4, weight, reduction)
            f.call(
                aten.binary_cross_entropy_with_logits.default,
                x,
                t.abs() / 4,
                weight,
                data(3).abs(),
                reduction,
            )
            target = torch.tensor([2, 1])
            for weight, ignore in ((None, -100), (torch.tensor([0.5, 2, 4]), 1)):
                loss, total = f.call(aten.nll_loss_forward.default, x, target, weight, reduction, ignore)
                grad = data(*loss.shape)
                f.call(aten.nll_loss_backward.default, grad, x, target, weight, reduction, ignore, total)
        f.call(aten.nll_loss_forward.default, x[0], target[0], torch.tensor([0.5, 2, 4]), 0, -100)
        f.call(aten.nll_loss_forward.default, x, torch.tensor([1, 1]), None, 1, 1)
        f.call(aten.nll_loss2d_forward.default, data(1, 3, 2, 2), torch.randint(0, 3, (1, 2, 2)), None, 1, 0)
        f.call(
            aten.nll_loss_forward.default, x, torch.tensor([1, 3]), None, 1, -100,
            results="Index Target is out of bounds.",
        )  # fmt: skip
        f.call(
            aten.binary_cross_entropy.default, torch.tensor([0.5, NAN]), torch.ones(2), None, 1,
            results="Runtime all elements of input should be between 0 and 1",
        )  # fmt: skip


def resampling():
    with File("resampling") as f:
        for name in (
            "upsample_nearest2d",
            "_upsample_nearest_exact2d",
            "upsample_bilinear2d",
            "upsample_bicubic2d",
        ):
            op, backward = getattr(aten, name).default, getattr(aten, name + "_backward").default
            for sizes, scales in (((6, 4), [None, None]), ((2, 5), [None, None]), ((4, 3), [1.5, 1.6])):
                for align_corners in [[]] if "nearest" in name else [[False], [True]]:
                    x = data(1, 1, 3, 2)
                    (y,) = f.call(op, x, sizes, *align_corners, *scales)
                    f.call(backward, data(*y.shape), sizes, x.shape, *align_corners, *scales)
        f.call(aten.upsample_linear1d.default, data(1, 1, 3), [5], False)
        f.call(aten.upsample_trilinear3d.default, data(1, 1, 2, 2, 2), [3, 2, 4], True)


def attention():
    with File("attention") as f:
        op = aten._scaled_dot_product_flash_attention_for_cpu
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        hidden = torch.tensor([[0.0, -INF, 0.0], [-INF, -INF, -INF]])
        for causal, mask, scale in ((False, None, None), (True, None, 0.5), (False, hidden, None)):
            q, k, v = data(1, 2, 2, 2), data(1, 2, 3, 2), data(1, 2, 3, 2)
            out, log = f.call(op.default, q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
            grad = data(*out.shape)
            f.call(backward, grad, q, k, v, out, log, 0.0, causal, attn_mask=mask, scale=scale)
        q, k, v = data(1, 2, 2, 2), data(1, 1, 3, 2), data(1, 1, 3, 2)
        results = op.default(q, k.expand(1, 2, 3, 2), v.expand(1, 2, 3, 2))
        f.call(op.default, q, k, v, results=results)


def recurrent():
    """The fused cells have no CPU kernel: their formulas in ordinary operators, and autograd."""
    with File("recurrent") as f:
        parameters = [data(2, 8), data(2, 8), data(2, 2), data(8), data(8)]
        inputs, hidden, cell, b1, b2 = [p.requires_grad_() for p in parameters]
        gates = (inputs + hidden + b1 + b2).chunk(4, 1)
        i, forget, g, o = gates[0].sigmoid(), gates[1].sigmoid(), gates[2].tanh(), gates[3].sigmoid()
        new_cell = forget * cell + i * g
        new = o * new_cell.tanh()
        workspace = torch.cat([i, forget, g, o], 1)
        f.call(aten._thnn_fused_lstm_cell.default, *parameters, results=[new, new_cell, workspace])
        grads = [data(2, 2), data(2, 2)]
        results = torch.autograd.grad([new, new_cell], [inputs, cell, b1], grads)
        call = aten._thnn_fused_lstm_cell_backward_impl.default
        f.call(call, *grads, cell, new_cell, workspace, True, results=results)

        parameters = [data(2, 6), data(2, 6), data(2, 2), data(6), data(6)]
        inputs, hidden, old, b1, b2 = [p.requires_grad_() for p in parameters]
        (ir, iz, ig), (hr, hz, hn) = (inputs + b1).chunk(3, 1), (hidden + b2).chunk(3, 1)
        r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
        n = (ig + r * hn).tanh()
        new = n + z * (old - n)
        workspace = torch.cat([r, z, n, old, hn], 1)
        f.call(aten._thnn_fused_gru_cell.default, *parameters, results=[new, workspace])
        grad = data(2, 2)
        results = torch.autograd.grad(new, [inputs, hidden, old, b1, b2], grad)
        f.call(aten._thnn_fused_gru_cell_backward.default, grad, workspace, True, results=results)


def grad_scaling():
    with File("grad_scaling") as f:
        op = aten._amp_foreach_non_finite_check_and_unscale.default
        scale = torch.tensor(0.3)
        for found in (torch.zeros(1), torch.ones(1)):
            for grads in (
                [data(3), data(2, 2), torch.tensor(0.5)],
                [data(3), torch.tensor([0.0, -INF])],
                [torch.tensor([1.0, NAN]), data(2)],
                [torch.tensor([-0.0, 3e38, -3e38, 1e-45])],
                [torch.empty(0), data(2)],
            ):
                results = op(grads, found, scale)
                f.call(op, grads, found, scale, results=[*results[0], results[1]])
        # A half type's largest number is finite, and so is what the scale makes of it.
        grads = [
            torch.tensor([65504.0, -6e-8], dtype=torch.float16),
            torch.tensor([INF], dtype=torch.float16),
        ]
        results = op(grads, torch.zeros(1), scale)
        f.call(op, grads, torch.zeros(1), scale, results=[*results[0], results[1]])

        op = aten._amp_update_scale.default
        for scale, tracker, found, growth, backoff, interval in (
            (1024.0, 0, 0.0, 2.0, 0.5, 3),
            (1024.0, 2, 0.0, 2.0, 0.5, 3),
            (1024.0, 2, 1.0, 2.0, 0.5, 3),
            (1024.0, 2, 2.0, 2.0, 0.5, 3),
            (3e38, 2, 0.0, 2.0, 0.5, 3),
            (1234.567, 0, 0.0, 1.001, 0.7, 1),
            (1234.567, 0, 1.0, 1.001, 0.7, 1),
            (1e-45, 0, 1.0, 2.0, 0.5, 1),
        ):
            tensors = torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32), torch.tensor(found)
            f.call(op, *tensors, growth, backoff, interval)


def optimizers():
    """Lists of tensors are flattened in the results."""
    with File("optimizers") as f:

        def call(op, *args, **kwargs):
            results = op.default(*args, **kwargs)
            f.call(op.default, *args, results=[tensor for list_ in results for tensor in list_], **kwargs)

        def lists(n):
            return [[data(2, 2), data(3)] for _ in range(n)]

        steps = [torch.tensor(1.0), torch.tensor(7.0)]
        scaling = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)}
        numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.25, "eps": 1e-8}
        for op in (aten._fused_adam, aten._fused_adamw):
            for amsgrad, maximize, extra in ((False, False, {}), (True, True, scaling)):
                params, grads, averages, squares, largest = lists(5)
                squares, largest = ([t.abs() for t in list_] for list_ in (squares, largest))
                flags = {"amsgrad": amsgrad, "maximize": maximize}
                most = largest if amsgrad else []
                call(op, params, grads, averages, squares, most, steps, **numbers, **flags, **extra)
        skipped = {**scaling, "found_inf": torch.tensor(1.0)}
        for nesterov, first, extra in ((False, True, {}), (True, False, scaling), (True, False, skipped)):
            numbers = {
                "weight_decay": 0.25,
                "momentum": 0.5,
                "lr": 0.1,
                "dampening": 0.0 if nesterov else 0.25,
            }
            flags = {"nesterov": nesterov, "maximize": first, "is_first_step": first}
            call(aten._fused_sgd, *lists(3), **numbers, **flags, **extra)


if __name__ == "__main__":
    grad_scaling()
    matmul()
    grouped_matmul()
    histogram()
    softmax()
    normalization()
    batch_norm()
    convolution()
    max_pooling()
    avg_pooling()
    losses()
    resampling()
    attention()
    recurrent()
    optimizers()
    elementwise.write(File)
    functions.write(File)
    indexing.write(File)
