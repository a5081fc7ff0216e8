"""Tensors that are written while others that share their memory are read: refused where the CPU refuses them."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.usefixtures("no_fallback"), pytest.mark.filterwarnings("ignore")]

aten = torch.ops.aten


def at(x, *positions):
    return torch.tensor(positions, device=x.device)


def indices(x):
    return torch.empty(0, dtype=torch.int64, device=x.device)


# Of what is read, x, and what is written, o: five elements each.
CALLS = {
    "where": lambda x, o: torch.where(x > 0, x, x, out=o),
    "exp": lambda x, o: torch.exp(x, out=o),
    "mul_": lambda x, o: o.mul_(x),
    "cumsum": lambda x, o: torch.cumsum(x, 0, out=o),
    "cumprod": lambda x, o: torch.cumprod(x, 0, out=o),
    "logcumsumexp": lambda x, o: torch.logcumsumexp(x, 0, out=o),
    "cummax": lambda x, o: torch.cummax(x, 0, out=(o, indices(x))),
    "sort": lambda x, o: torch.sort(x, out=(o, indices(x))),
    "topk": lambda x, o: torch.topk(x, 5, out=(o, indices(x))),
    "kthvalue": lambda x, o: torch.kthvalue(x.view(5, 1), 1, out=(o, indices(x))),
    "mode": lambda x, o: torch.mode(x.view(5, 1), 1, out=(o, indices(x))),
    "median": lambda x, o: torch.median(x.view(5, 1), 1, out=(o, indices(x))),
    "max": lambda x, o: torch.max(x.view(5, 1), 1, out=(o, indices(x))),
    "cat": lambda x, o: torch.cat([x[:2], x[2:]], out=o),
    "stack": lambda x, o: torch.stack([x[:1], x[1:2]], out=o[:2].view(2, 1)),
    "gather": lambda x, o: torch.gather(x, 0, at(x, 0, 1, 2, 3, 4), out=o),
    "index_select": lambda x, o: torch.index_select(x, 0, at(x, 0, 1, 2, 3, 4), out=o),
    "take": lambda x, o: torch.take(x, at(x, 0, 1, 2, 3, 4), out=o),
    "index": lambda x, o: aten.index.Tensor_out(x, [at(x, 0, 1, 2, 3, 4)], out=o),
    "scatter": lambda x, o: torch.scatter(x, 0, at(x, 0, 1), x[:2], out=o),
    "index_add": lambda x, o: torch.index_add(x, 0, at(x, 0, 1), x[:2], out=o),
    "scatter_": lambda x, o: o.scatter_(0, at(x, 0, 1, 2), x[:3]),
    "index_copy_": lambda x, o: o.index_copy_(0, at(x, 0, 1, 2), x[:3]),
    "index_put_": lambda x, o: o.index_put_((at(x, 0, 1, 2),), x[:3]),
    "put_": lambda x, o: o.put_(at(x, 0, 1, 2), x[:3]),
    "masked_scatter_": lambda x, o: o.masked_scatter_(x > 0, x.clone()),
    "fill_": lambda x, o: o.fill_(x[1].clone()),
    "sum": lambda x, o: torch.sum(x.view(5, 1), 1, out=o),
    "softmax": lambda x, o: aten._softmax.out(x, 0, False, out=o),
    "addmm": lambda x, o: torch.addmm(*[x[:4].view(2, 2)] * 3, out=o[:4].view(2, 2)),
    "vector_norm": lambda x, o: torch.linalg.vector_norm(x.view(5, 1), dim=1, out=o),
    "cross": lambda x, o: torch.linalg.cross(x[:3], x[:3], out=o[:3]),
    "aminmax": lambda x, o: torch.aminmax(x.view(5, 1), dim=1, out=(o, x.new_empty(0))),
    "renorm": lambda x, o: torch.renorm(x.view(5, 1), 1, 0, 1, out=o.view(5, 1)),
    "searchsorted": lambda x, o: torch.searchsorted(x, x, out=o.view(torch.int32), out_int32=True),
    "_foreach_add_": lambda x, o: torch._foreach_add_([o], [x]),
    "_foreach_mul_ by a tensor": lambda x, o: torch._foreach_mul_([o], x[0]),
    "_foreach_copy_": lambda x, o: torch._foreach_copy_([o], [x]),
    "_foreach_lerp_": lambda x, o: torch._foreach_lerp_([x.clone(), o], [x, x], 0.5),
    "_foreach_add_ across positions": lambda x, o: torch._foreach_add_([o[:1], o[1:2]], [x[1:2], x[2:3]]),
}
SHARED = {
    "shifted": lambda x: (x[1:], x[:-1]),
    "the same": lambda x: (x[:5], x[:5]),
    "apart": lambda x: (x[:5], x.clone()[1:]),
    "one element": lambda x: (x[:5], x.new_ones(1).expand(5)),
}


def outcome(call, shared, device):
    x, o = SHARED[shared]((torch.arange(6.0) + 1).to(device))
    try:
        call(x, o)
    except RuntimeError as refusal:
        # Tensors that repeat an element may be refused for their size first.
        return "refused" if shared == "one element" else str(refusal)
    return o.cpu()


@pytest.mark.parametrize("call", CALLS)
def test_refused_where_the_cpu_refuses(call):
    for shared in SHARED:
        got, want = (outcome(CALLS[call], shared, device) for device in ("tpu", "cpu"))
        if isinstance(got, str) or isinstance(want, str):
            assert type(got) is type(want), f"{shared}: {got}, not {want}"
            assert got == want, shared
        elif shared == "apart":
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_conjugates_of_expanded_elements_are_refused(device):
    x = torch.zeros(1, 3, dtype=torch.complex64, device=device)
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        x.expand(2, 3).conj_physical_()


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_a_number_fills_expanded_elements(device):
    x = torch.zeros(2, 3, device=device)
    x[0].expand(4, 3)[..., 1::2].fill_(7)
    x[1:].expand(2, 3)[1:] = 5
    assert x.tolist() == [[0, 7, 0], [5, 5, 5]]


def test_lists_over_several_devices():
    """As on CUDA, tensor by tensor."""
    x = torch.arange(3.0)
    ours, theirs = torch._foreach_add([x.to("tpu"), x], 1)
    assert ours.device.type == "tpu"
    assert theirs.device.type == "cpu"
    torch.testing.assert_close(ours.cpu(), theirs)
    to_device, to_host = [torch.zeros(3, device="tpu")], [torch.zeros(3)]
    torch._foreach_copy_(to_device, [x])
    torch._foreach_copy_(to_host, to_device)
    assert to_host[0].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="same device"):
        torch._foreach_add([x.to("tpu")], [x])
