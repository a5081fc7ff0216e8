"""Calls of the view, movement, indexing, sorting and random operators for `generate.py`."""

import torch

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64

CUBE = torch.arange(24.0).reshape(2, 3, 4)


def ints(*values):
    return torch.tensor(values)


def views(File):
    with File("views") as f:
        f.call(aten.view.default, CUBE, [6, 4])
        f.call(aten.expand.default, ints(1, 2).reshape(2, 1), [2, 2, 3])
        f.call(aten.permute.default, CUBE, [2, 0, -2])
        f.call(aten.transpose.int, CUBE, -1, 0)
        f.call(aten.t.default, torch.eye(2, 3))
        f.call(aten.squeeze.dims, CUBE[:1], [0, 1])
        for start, end, step in ((None, None, 1), (-2, 9223372036854775807, 1), (1, 3, 2), (3, 1, 1)):
            f.call(aten.slice.Tensor, CUBE, 1, start, end, step)
        f.call(aten.select.int, CUBE, 1, -1)
        f.call(aten.split.Tensor, CUBE, 2, 1)
        f.call(aten.split_with_sizes.default, CUBE, [1, 3], -1)
        f.call(aten.unbind.int, CUBE, 1)
        f.call(aten.movedim.intlist, CUBE, [0, 2], [1, 0])
        for offset in (-3, -1, 0, 1, 5):
            f.call(aten.diagonal.default, CUBE, offset, 1, 2)
        f.call(aten.diagonal.default, CUBE, 1, 2, 0)
        f.call(aten.unfold.default, CUBE, 2, 2, 1)
        f.call(aten.unfold.default, CUBE, 2, 2, 2)
        f.call(aten.as_strided.default, CUBE, [2, 3], [1, 2], 5)
        f.call(aten.as_strided.default, CUBE, [3, 4, 2], [4, 1, 12], 0)
        f.call(aten.as_strided.default, CUBE, [2, 3], [0, 1], 1)
        f.call(aten.view.dtype, torch.tensor([1.0, -2.5]), torch.int32)
        f.call(aten.view.dtype, torch.arange(8, dtype=torch.int8), torch.int32)
        f.call(aten.view.dtype, ints(1, -1), torch.int8)
        f.lines.append("prims::constant (1,-2,3) -> bfloat16[3]:1,-2,3")
        f.lines.append("prims::constant (0.5,nan) -> float64[1,2]:0.5,nan")


def movement(File):
    with File("movement") as f:
        f.call(aten.cat.default, [CUBE, CUBE[:, :1]], 1)
        f.call(aten.cat.default, [torch.empty(0), CUBE], -2)
        f.call(aten.cat.default, [ints(1, 2), torch.tensor([0.5])], 0)
        f.call(aten.stack.default, [ints(1, 2), ints(3, 4)], 1)
        f.call(aten.flip.default, CUBE, [0, -1])
        f.call(aten.roll.default, CUBE, [1], [])
        f.call(aten.roll.default, CUBE, [1, -5], [0, 2])
        f.call(aten.repeat.default, ints(1, 2).reshape(2, 1), [2, 1, 3])
        f.call(aten.repeat_interleave.self_int, ints(1, 2, 3), 2, 0)
        f.call(aten.constant_pad_nd.default, CUBE[0], [1, -1, 0, 2], 2.5)
        f.call(aten.pixel_shuffle.default, torch.arange(16.0).reshape(1, 8, 1, 2), 2)
        f.call(aten.pixel_unshuffle.default, torch.arange(16.0).reshape(1, 1, 4, 4), 2)
        f.call(aten.channel_shuffle.default, torch.arange(8.0).reshape(1, 4, 1, 2), 2)
        for amounts in ([1, 2], [-1, 2]):
            x = CUBE[:, 0]
            for forward, backward in (
                (aten.reflection_pad1d, aten.reflection_pad1d_backward),
                (aten.replication_pad1d, aten.replication_pad1d_backward),
            ):
                (y,) = f.call(forward.default, x, amounts)
                f.call(backward.default, torch.arange(float(y.numel())).reshape(y.shape), x, amounts)
        f.call(aten.reflection_pad2d.default, CUBE, [2, 1, 1, -1])
        f.call(aten.slice_scatter.default, CUBE[0], torch.ones(3, 2), 1, 0, 4, 2)
        f.call(aten.slice_scatter.default, CUBE[0], torch.ones(2, 4), 0, -2)
        f.call(aten.select_scatter.default, CUBE[0], torch.ones(3), 1, -1)
        for offset in (-2, 0, 1):
            diagonal = CUBE[0].diagonal(offset)
            f.call(aten.diagonal_scatter.default, CUBE[0], -diagonal - 1, offset)
        f.call(aten.as_strided_scatter.default, CUBE[0].clone(), torch.ones(2, 2), [2, 2], [1, 5], 1)
        f.call(aten.slice_backward.default, torch.ones(2, 2), [2, 5], 1, 1, 5, 2)
        f.call(aten.select_backward.default, torch.ones(2), [2, 3], 1, -1)
        f.call(aten.unfold_backward.default, torch.ones(3, 2), [4], 0, 2, 1)


def failed(result, kind, message):
    """What the check of a call with such a result reports."""
    sizes = ",".join(map(str, result.shape))
    return f"{str(result.dtype)[6:]}[{sizes}]: {kind} {message}"


def indexing(File):
    with File("indexing") as f:
        rows, index = torch.arange(6.0).reshape(3, 2), ints(2, 0, 0)
        in_self = "index out of range in self"

        def outside(dim, size):
            return f"index {{index}} is out of bounds for dimension {dim} with size {size}"

        f.call(aten.embedding.default, rows, index.reshape(3, 1))
        f.call(aten.embedding.default, rows, ints(3), results=failed(rows[:1], "Index", in_self))
        f.call(aten.embedding.default, rows, ints(-1), results=failed(rows[:1], "Index", in_self))
        for scale in (False, True):
            f.call(aten.embedding_dense_backward.default, torch.ones(4, 2), ints(0, 2, 2, 1), 3, 1, scale)
        f.call(aten.index_select.default, CUBE, -1, ints(3, 0))
        f.call(aten.index_select.default, torch.tensor(5.0), 0, ints(0))
        f.call(aten.gather.default, rows, 0, ints(2, 0).reshape(1, 2))
        wrong = failed(rows[:1], "Runtime", outside(0, 3))
        f.call(aten.gather.default, rows, 0, ints(3, 0).reshape(1, 2), results=wrong)
        f.call(aten.take.default, rows, ints(0, -1))
        f.call(aten.index.Tensor, rows, [index])
        for indices in (
            [None, ints(1, -1)],
            [ints(0, 1).reshape(2, 1), None, ints(0, 3)],
            [None, ints(0, 1).reshape(2, 1), ints(0, 3)],
            [torch.tensor(1), None, torch.tensor(2)],
        ):
            f.call(aten.index.Tensor, CUBE, indices)
        f.call(aten.index.Tensor, rows, [ints(3)], results=failed(rows[:1], "Index", outside(0, 3)))
        f.call(aten.index.Tensor, rows, [ints(-4)], results=failed(rows[:1], "Index", outside(0, 3)))


def scatters(File):
    with File("scatter") as f:
        zeros, index = torch.zeros(2, 3), ints(1, 1, 0, 2).reshape(2, 2)
        source = torch.tensor([[1.0, -2.5, 9], [NAN, 4, 9]])
        f.call(aten.scatter.src, zeros, 1, ints(1, 0, 2, 0).reshape(2, 2), source)
        f.call(aten.scatter.value, zeros, 1, index, 3)
        f.call(aten.scatter_add.default, zeros, 1, index, source)
        f.call(aten.scatter.reduce, zeros + 2, 1, index, source, reduce="multiply")
        for dtype in (F32, BF16, I64):
            updates = torch.nan_to_num(source, 7).to(dtype)
            for reduce in ("sum", "prod", "mean", "amax", "amin"):
                for include_self in (True, False):
                    own = torch.full((2, 3), -3).to(dtype)
                    f.call(aten.scatter_reduce.two, own, 1, index, updates, reduce, include_self=include_self)
        f.call(aten.scatter_reduce.two, zeros, 1, index, source, "amax")
        f.call(aten.index_add.default, zeros, 1, ints(2, 2), torch.ones(2, 2), alpha=2)
        f.call(aten.index_copy.default, zeros, 0, ints(1), torch.ones(1, 3))
        f.call(aten.index_fill.int_Scalar, zeros, 1, ints(-1, 0), 7)
        f.call(aten.put.default, zeros, ints(3, -1, 3), ints(1, 2, 3).float(), True)
        for accumulate in (False, True):
            f.call(aten.index_put.default, zeros + 1, [ints(1, 0)], torch.tensor([[5.0], [6]]), accumulate)
            f.call(aten.index_put.default, zeros + 1, [None, ints(0, -1)], torch.tensor(5.0), accumulate)
            mask = torch.tensor([True, False])
            f.call(aten.index_put.default, zeros + 1, [mask], torch.tensor(5.0), accumulate)
            mask = torch.tensor([True, False, True])
            values = torch.tensor([[5.0, 6], [7, 8]])
            f.call(aten.index_put.default, zeros + 1, [None, mask], values, accumulate)
        message = "Runtime shape mismatch: value tensor of shape [3] cannot be broadcast to indexing result"
        mask = torch.tensor([True, False, True])
        f.call(
            aten.index_put.default, torch.zeros(3), [mask], torch.ones(3), results=f"float32[3]: {message}"
        )
        f.call(aten.masked_scatter.default, zeros, torch.tensor([True, False, True]), torch.arange(6.0))


def sorting(File):
    with File("sorting") as f:
        x = torch.tensor([[3.0, NAN, 1, 3], [-INF, 2, NAN, NAN]])
        for descending in (False, True):
            for dtype in (F32, BF16):
                f.call(aten.sort.stable, x.to(dtype), stable=True, descending=descending)
            f.call(aten.sort.stable, ints(2, 0, 2, 1), stable=True, descending=descending)
            f.call(aten.sort.stable, ints(2, 0, 2, 1) > 1, stable=True, descending=descending)
        f.call(aten.topk.default, torch.tensor([1.0, NAN, 3, 2]), 2)
        f.call(aten.topk.default, torch.tensor([1.0, NAN, 3, 2]), 3, largest=False)
        f.call(aten.kthvalue.default, torch.tensor([4.0, 1, 3, 2]), 2)
        for op in (aten.median, aten.nanmedian):
            f.call(op.default, x)
            f.call(op.dim, x, 1)
        f.call(aten.mode.default, ints(3, 1, 3, 1, 2))
        edges, values = torch.tensor([1.0, 3, 3, 5]), torch.tensor([0.0, 1, 3, 4, 5, 6, NAN])
        for right in (False, True):
            f.call(aten.searchsorted.Tensor, edges, values, right=right)
            f.call(aten.bucketize.Tensor, values, edges, right=right, out_int32=True)
        rows = torch.tensor([[4.0, 0, 2], [1, 5, 3]])
        f.call(aten.searchsorted.Tensor, rows, torch.tensor([[1.0], [4]]), sorter=rows.argsort())
        f.call(aten.isin.Tensor_Tensor, ints(1, 2, 3), ints(3, 1))
        f.call(aten.isin.Tensor_Scalar, ints(1, 2, 3), 2, invert=True)


# `values.rs` runs random operators with this state.
SEED, OFFSET = 0x0123456789ABCDEF, 0xFFFFFFFF


def philox(counter):
    """One block of Philox4x32-10, from the paper; torch's CPU generator is another one."""
    c = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    k = [SEED & 0xFFFFFFFF, SEED >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def random(File):
    with File("random") as f:
        words = [word for block in range(3) for word in philox(OFFSET + block)]
        word = torch.tensor(words[:9], dtype=torch.float64)
        empty, high = torch.zeros(9, dtype=I64), 2**32 - 1
        random_from = getattr(aten.random, "from")
        f.call(random_from, empty, 0, high, results=torch.tensor([w % high for w in words[:9]]))
        f.call(random_from, empty, -5, 6, results=torch.tensor([w % 11 - 5 for w in words[:9]]))
        pairs = torch.tensor([(words[2 * i] | words[2 * i + 1] << 32) % 2**40 for i in range(3)])
        f.call(random_from, empty[:3], 0, 2**40, results=pairs)
        unit = (word / 256).floor() / 2**24
        f.call(aten.uniform.default, torch.zeros(9), -1.0, 3.0, results=(unit * 4 - 1).float())
        narrow = (word / 2**24).floor() / 256
        f.call(aten.uniform.default, torch.zeros(9, dtype=BF16), 0.0, 1.0, results=narrow.bfloat16())
        f.call(aten.bernoulli.p, torch.zeros(9), 0.5, results=(unit < 0.5).float())
        first, second = (word[:8:2] + 0.5) / 2**32, (word[1:9:2] + 0.5) / 2**32
        radius, angle = (-2 * first.log()).sqrt(), 2 * torch.pi * second
        normal = torch.stack([radius * angle.cos(), radius * angle.sin()], 1).flatten()
        f.call(aten.normal_functional.default, torch.zeros(8), 1.0, 2.0, results=(normal * 2 + 1).float())
        f.call(
            aten.exponential.default, torch.zeros(9), 2.0, results=(-((word + 0.5) / 2**32).log() / 2).float()
        )
        mask = unit < 0.75
        f.call(aten.native_dropout.default, torch.ones(9), 0.25, True, results=[mask.float() / 0.75, mask])


def write(File):
    for family in (views, movement, indexing, scatters, sorting, random):
        family(File)
