"""Storages and aliasing are as on CUDA: identity, addresses, saving, copying, swapping, version counters."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import weakref

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("no_fallback")


def on_tpu(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(sizes).numel()).to(dtype).view(sizes).to("tpu")


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.untyped_storage().nbytes() > 0
    )


# Addresses --------------------------------------------------------------------------------------------


def test_data_ptr_arithmetic() -> None:
    x = on_tpu(4, 6)
    start = x.data_ptr()
    assert start == x.untyped_storage().data_ptr() != 0
    assert start % 64 == 0
    assert x[1].data_ptr() == start + 24
    assert x[1, 2].data_ptr() == start + 32
    assert x.t().data_ptr() == start
    assert x.view(torch.int16)[2, 1].data_ptr() == start + 50
    assert x[1:].untyped_storage().data_ptr() == start
    assert torch.empty(0, device="tpu").data_ptr() == 0


def test_live_storages_do_not_overlap() -> None:
    tensors = [torch.empty(n, dtype=torch.uint8, device="tpu") for n in (1, 64, 100, 4096, 1 << 20, 3)]
    ranges = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in tensors)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def test_addresses_are_not_host_memory() -> None:
    """The host must not mistake a device address for its own."""
    x, host = on_tpu(4), torch.arange(4.0)
    assert x.data_ptr() != host.data_ptr()
    with pytest.raises(TypeError, match="host memory"):
        x.numpy()


# Identity ---------------------------------------------------------------------------------------------


def test_to_keeps_or_copies() -> None:
    x = on_tpu(2, 3)
    assert x.to("tpu") is x
    assert x.to("tpu:0") is x
    assert x.to(torch.float32) is x
    assert x.contiguous() is x
    for other in (x.to("tpu", copy=True), x.clone(), x.t().contiguous(), x.to(torch.float64), x + 0):
        assert not shares(other, x)
    for alias in (x.detach(), x.data, x.view(6), x[0], x.t(), x.expand(2, 2, 3), x.view(torch.int32)):
        assert shares(alias, x)
        assert alias._is_view() or alias._base is None


def test_clone_is_independent() -> None:
    """The device may let a copy and its source hold one buffer until either is written."""
    x = on_tpu(2, 3)
    y = x.clone()
    z = torch.empty_like(x).copy_(x)
    y[0] = 7
    x[1].add_(10)
    assert y.tolist() == [[7, 7, 7], [3, 4, 5]]
    assert x.tolist() == [[0, 1, 2], [13, 14, 15]]
    assert z.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_host_memory_is_independent() -> None:
    host = torch.arange(16.0)
    x = host.to("tpu")
    host.fill_(-1)
    assert x.tolist() == list(map(float, range(16)))
    back = x.cpu()
    x.zero_()
    assert back.tolist() == list(map(float, range(16)))
    back.fill_(3)
    assert x.tolist() == [0.0] * 16


def test_storage_is_freed_with_its_last_tensor(tpu) -> None:
    gc.collect()
    before = torch.accelerator.memory_allocated()
    x = torch.empty(1 << 20, device="tpu")
    view = x[5:]
    assert torch.accelerator.memory_allocated() >= before + (4 << 20)
    storage = weakref.ref(x.untyped_storage())
    del x
    assert view[0].item() == view[0].item()
    assert torch.accelerator.memory_allocated() >= before + (4 << 20)
    del view
    gc.collect()
    assert storage() is None
    assert torch.accelerator.memory_allocated() == before


# Modules ----------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


def test_tied_weights_survive_moves() -> None:
    model, tokens = Tied(), torch.tensor([0, 3])
    expected = model(tokens)
    weight = model.head.weight
    for device in ("tpu", "cpu", "tpu", torch.device("tpu:0")):
        model.to(device)
        assert model.head.weight is model.embedding.weight
        assert model.head.weight.device.type == torch.device(device).type
        assert model.table.device.type == torch.device(device).type
        torch.testing.assert_close(model(tokens.to(device)).cpu(), expected)
    # .to swaps the data of the parameters in place, so that optimizers keep theirs.
    assert model.head.weight is weight
    with torch.no_grad():
        model.embedding.weight[0].fill_(1)
    assert model.head.weight[0].tolist() == [1.0] * 4


def test_module_moves_keep_values_and_memory_format() -> None:
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    weight = conv.weight.detach().clone()
    for _ in range(3):
        conv.to("tpu")
        assert conv.weight.is_contiguous(memory_format=torch.channels_last)
        conv.to("cpu")
        assert torch.equal(conv.weight, weight)
    assert conv.to("tpu").half().weight.dtype == torch.float16


def test_load_state_dict_writes_in_place() -> None:
    source, target = Tied(), Tied().to("tpu")
    address = target.head.weight.data_ptr()
    target.load_state_dict(source.state_dict())
    assert target.head.weight.data_ptr() == address
    assert torch.equal(target.head.weight.detach().cpu(), source.head.weight.detach())


def test_parameter_data_swaps() -> None:
    p = nn.Parameter(on_tpu(2, 3))
    first, second = p.data, on_tpu(3, 2) + 10
    p.data = second
    assert shares(p, second)
    assert tuple(p.shape) == (3, 2)
    p.data.mul_(2)
    assert second[0, 0].item() == 20
    p.data = first
    assert p.tolist() == [[0, 1, 2], [3, 4, 5]]
    p.data = torch.ones(2, 3)
    assert p.device.type == "cpu"
    p.data = first
    assert p.device.type == "tpu"


def test_flat_parameters() -> None:
    """One buffer behind all parameters, as DDP, FSDP and fused optimizers make it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    x = torch.arange(6.0).view(2, 3)
    expected = model(x).detach()
    model.to("tpu")
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    at = 0
    for p in model.parameters():
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    torch.testing.assert_close(model(x.to("tpu")).detach().cpu(), expected)
    flat.zero_()
    assert model(x.to("tpu")).abs().sum().item() == 0
    model(x.to("tpu")).sum().backward()
    assert model[1].bias.grad.tolist() == [2.0, 2.0]


def test_storage_freed_and_brought_back() -> None:
    """As FSDP2 does with unsharded parameters."""
    p = nn.Parameter(on_tpu(2, 3))
    storage, saved = p.untyped_storage(), p.detach().clone()
    before = torch.accelerator.memory_allocated()
    storage.resize_(0)
    assert p.untyped_storage().nbytes() == 0
    assert tuple(p.shape) == (2, 3)
    assert torch.accelerator.memory_allocated() < before
    storage.resize_(24)
    with torch.no_grad():
        p.copy_(saved)
    assert p.tolist() == saved.tolist()
    assert torch.accelerator.memory_allocated() == before


# Saving -----------------------------------------------------------------------------------------------


def saved_and_loaded(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@pytest.mark.parametrize("device", ["tpu", "cpu"])
def test_views_share_a_storage_after_loading(device: str) -> None:
    x = on_tpu(4, 6)
    loaded = saved_and_loaded({"x": x, "row": x[1], "t": x.t(), "steps": x[::2, 1::2]}, map_location=device)
    assert all(t.device.type == device for t in loaded.values())
    assert all(shares(t, loaded["x"]) for t in loaded.values())
    assert torch.equal(loaded["steps"].cpu(), x[::2, 1::2].cpu())
    assert loaded["t"].stride() == (1, 6)
    assert loaded["row"].storage_offset() == 6
    loaded["x"][1, 0] = 100
    assert loaded["row"][0].item() == loaded["t"][0, 1].item() == 100


def test_load_goes_back_to_the_device() -> None:
    assert saved_and_loaded(on_tpu(3)).device == torch.device("tpu:0")
    assert saved_and_loaded(torch.arange(3.0), map_location="tpu").tolist() == [0, 1, 2]
    state = saved_and_loaded(Tied().to("tpu").state_dict(), weights_only=True)
    assert shares(state["head.weight"], state["embedding.weight"])


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.int64, torch.uint8])
def test_dtypes_are_saved(dtype: torch.dtype) -> None:
    x = on_tpu(3, 4, dtype=dtype).t()
    loaded = saved_and_loaded(x)
    assert loaded.dtype == dtype
    assert loaded.stride() == x.stride()
    assert torch.equal(loaded.cpu(), x.cpu())


def test_deepcopy() -> None:
    x = on_tpu(4, 6)
    pair = copy.deepcopy({"x": x, "view": x[1:, ::2]})
    assert shares(pair["x"], pair["view"])
    assert not shares(pair["x"], x)
    assert pair["view"].stride() == (6, 2)
    x.zero_()
    assert pair["view"].tolist() == [[6, 8, 10], [12, 14, 16], [18, 20, 22]]
    model = copy.deepcopy(Tied().to("tpu"))
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.device.type == "tpu"


def test_pickle() -> None:
    x = on_tpu(4, 6)
    first, second = pickle.loads(pickle.dumps((x[1:], x.t())))
    assert torch.equal(first.cpu(), x[1:].cpu())
    assert second.device.type == "tpu"
    parameter = pickle.loads(pickle.dumps(nn.Parameter(on_tpu(2))))
    assert isinstance(parameter, nn.Parameter)
    assert parameter.requires_grad


# Re-setting, resizing ---------------------------------------------------------------------------------


def test_set_shares_the_source() -> None:
    x, y = on_tpu(4, 6), torch.empty(0, device="tpu")
    y.set_(x)
    assert y.is_set_to(x)
    y.set_(x.untyped_storage(), 7, (2, 2), (6, 1))
    assert y.tolist() == [[7, 8], [13, 14]]
    y.add_(100)
    assert x[1, 1].item() == 107
    y.set_()
    assert y.numel() == 0
    assert not shares(x, y)
    with pytest.raises(RuntimeError):
        y.set_(torch.arange(3.0).untyped_storage())
    with pytest.raises(RuntimeError):
        y.set_(on_tpu(3, dtype=torch.int64))


def test_resize_keeps_the_prefix() -> None:
    for sizes in ((2, 3), (4, 5), (7,), (0,)):
        x = on_tpu(2, 4)
        row = x[1]
        storage = x.untyped_storage()
        x.resize_(sizes)
        kept = min(x.numel(), 8)
        assert x.flatten()[:kept].tolist() == list(map(float, range(kept)))
        assert x.untyped_storage()._cdata == storage._cdata
        assert row.tolist() == [4, 5, 6, 7]


def test_typed_resize_of_views() -> None:
    x = on_tpu(2, 4)
    x[1].resize_(6).zero_()
    assert x.untyped_storage().nbytes() == 40
    assert x.tolist() == [[0, 1, 2, 3], [0, 0, 0, 0]]


def test_storage_bytes() -> None:
    x = on_tpu(2, 3)
    assert len(x.untyped_storage()) == 24
    assert x.untyped_storage().cpu().tolist() == torch.arange(6.0).untyped_storage().tolist()
    y = torch.empty(6, device="tpu")
    y.untyped_storage().copy_(x.untyped_storage())
    assert y.tolist() == list(map(float, range(6)))
    assert x.untyped_storage().clone().nbytes() == 24
    assert x.untyped_storage().device == torch.device("tpu:0")


def test_bytes_that_are_no_bools_stay() -> None:
    x = torch.tensor([0, 1, 2, 255], dtype=torch.uint8, device="tpu")
    flags = x.view(torch.bool)
    flags[0] = True
    assert x.tolist() == [1, 1, 2, 255]
    flags = torch.tensor([True, False, True, False], device="tpu")
    flags.view(torch.uint8)[1] = 5
    assert flags.view(torch.uint8).tolist() == [1, 5, 1, 0]
    flags.view(torch.int16)[1] = 0x0100
    assert flags.tolist() == [True, True, False, True]


# Version counters, autograd ---------------------------------------------------------------------------


def test_versions_are_shared_by_views() -> None:
    x = on_tpu(4, 6)
    view, detached, data = x[1], x.detach(), x.data
    x.add_(1)
    view.mul_(2)
    assert x._version == view._version == detached._version == 2
    assert data._version == 0
    data.zero_()
    assert x._version == 2
    x.copy_(torch.ones(4, 6))
    torch.add(torch.ones(6, device="tpu"), 1, out=view)
    assert x._version == view._version == 4


def test_detach_shares_and_cuts() -> None:
    x = on_tpu(3).requires_grad_()
    y = (x * 2).detach()
    assert not y.requires_grad
    assert shares(x.detach(), x)
    assert x.detach().data_ptr() == x.data_ptr()


def test_autograd_sees_writes_in_place() -> None:
    x = on_tpu(3).requires_grad_()
    y = x * x
    z = y.exp()
    y.add_(1)
    z.sum().backward()
    assert x.grad is not None
    y = x.exp()
    loss = y.sum()
    y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (y * y).sum().backward()
    del loss
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)


def test_gradients_through_views_of_a_base() -> None:
    def gradient(device: str) -> torch.Tensor:
        x = torch.arange(12.0).to(device).view(3, 4).requires_grad_()
        y = x * 2
        y[1, ::2] = 0
        y.t()[3].mul_(3)
        (y * y).sum().backward()
        return x.grad.cpu()

    assert torch.equal(gradient("tpu"), gradient("cpu"))


# Layouts ----------------------------------------------------------------------------------------------


def test_channels_last_is_kept() -> None:
    x = torch.arange(48.0).view(2, 3, 4, 2).to(memory_format=torch.channels_last)
    y = x.to("tpu")
    assert y.stride() == x.stride()
    assert (y + 1).stride() == x.stride()
    assert y.cpu().stride() == x.stride()
    assert torch.equal(y.cpu(), x)
    assert torch.equal(y.contiguous().cpu(), x)
    assert y.contiguous().is_contiguous()
    assert torch.equal(y.permute(0, 2, 3, 1).reshape(-1).cpu(), x.permute(0, 2, 3, 1).reshape(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.complex64])
def test_strided_host_copies(dtype: torch.dtype) -> None:
    host = torch.arange(48).to(dtype).view(4, 12)
    for view in (host[::2, 1::3], host.t(), host[1:2].expand(5, 12), host[:, :1], host[3, 5]):
        moved = view.to("tpu")
        assert torch.equal(moved.cpu(), view)
        target = torch.zeros(4, 12, dtype=dtype)
        base = torch.zeros(4, 12, dtype=dtype, device="tpu")
        if view.dim() == 2 and view.shape[0] == 2:
            target[1:3, ::3].copy_(view)
            base[1:3, ::3].copy_(view)
            assert torch.equal(base.cpu(), target)
            out = torch.zeros(4, 12, dtype=dtype)
            out[1:3, ::3].copy_(base[1:3, ::3])
            assert torch.equal(out, target)


def test_a_copy_of_a_part_of_itself_is_refused_though_it_is_expanded(no_fallback):
    for device in ("cpu", "tpu"):
        x = torch.arange(6.0, device=device)
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            x.copy_(x[0])
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            x.view(2, 3).copy_(x[1:4])
        x.copy_(x.view(6))
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
