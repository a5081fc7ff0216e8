"""What CPU kernels refuse is refused with the same exception and the same words."""

import re

import pytest
import torch
import torch.nn.functional as F


def _at(device: str, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(sizes, dtype=dtype, device=device)


D, INF = torch.float64, float("inf")

CALLS = {
    "a negative stride": lambda d: F.conv2d(_at(d, 1, 1, 4, 4), _at(d, 1, 1, 2, 2), stride=(-1, 1)),
    "a negative padding": lambda d: F.conv3d(_at(d, 1, 1, 4, 4, 4), _at(d, 1, 1, 2, 2, 2), padding=-1),
    "a dilation of zero": lambda d: F.conv2d(_at(d, 1, 1, 4, 4), _at(d, 1, 1, 2, 2), dilation=0),
    "a weight of two dimensions": lambda d: F.conv1d(_at(d, 1, 1, 4), _at(d, 1, 2)),
    "more groups than channels": lambda d: F.conv2d(_at(d, 2, 2, 4, 3), _at(d, 2, 2, 1, 3), groups=3),
    "a mask that is no mask": lambda d: _at(d, 3).masked_scatter(_at(d, 3, dtype=torch.uint8), _at(d, 3)),
    "boundaries in two dimensions": lambda d: torch.bucketize(_at(d, 3), _at(d, 2, 2)),
    "parts of different dtypes": lambda d: torch.complex(_at(d, 3), _at(d, 3, dtype=torch.float64)),
    "weights in three dimensions": lambda d: torch.multinomial(_at(d, 1, 2, 3), 2),
    "weights below zero": lambda d: torch.multinomial(torch.tensor([1.0, -1.0]).to(d), 2, replacement=True),
    "weights without end": lambda d: torch.multinomial(torch.tensor([1.0, INF]).to(d), 2, replacement=True),
    "samples that are no integers": lambda d: torch.multinomial(_at(d, 3), 1, out=_at(d, 1)),
    "a narrow result": lambda d: torch.complex(
        *[_at(d, 3, dtype=D)] * 2, out=_at(d, 3, dtype=torch.complex64)
    ),
    "a narrow polar result": lambda d: torch.polar(
        *[_at(d, 3, dtype=D)] * 2, out=_at(d, 3, dtype=torch.cfloat)
    ),
    "parts that are integers": lambda d: torch.complex(_at(d, 3), _at(d, 3, dtype=torch.int32)),
    "a weight that is no matrix": lambda d: F.embedding(_at(d, 1, dtype=torch.int64), _at(d)),
    "a row beyond a bag's": lambda d: F.embedding_bag(torch.tensor([[0, 7]]).to(d), _at(d, 3, 2, dtype=D)),
    "no class": lambda d: F.multi_margin_loss(_at(d, 5, 0), _at(d, 5, dtype=torch.int64)),
    "labels of another size": lambda d: F.multilabel_margin_loss(_at(d, 5, 4), _at(d, 4, dtype=torch.int64)),
    "a reflector of no dimension": lambda d: torch.ormqr(_at(d), _at(d), _at(d)),
    "a fill of one dimension": lambda d: _at(d, 2).masked_fill(_at(d, 2, dtype=torch.bool), _at(d, 1)),
    "a complex fill": lambda d: _at(d, 2).masked_fill(_at(d, 2, dtype=torch.bool), 1j),
    "a complex fill of integers": lambda d: (x := _at(d, 2, dtype=torch.int64)).masked_fill(
        x > 0, _at(d) * 1j
    ),
    "minima over maxima": lambda d: torch.aminmax(_at(d, 2, 2), dim=0, out=(x := _at(d, 2), x)),
    "an outer product for a number": lambda d: _at(d).addr_(_at(d, 2), _at(d, 3)),
    "a mask of more dimensions": lambda d: _at(d, 2).masked_scatter_(
        _at(d, 2, 2, dtype=torch.bool), _at(d, 4)
    ),
    "a pivot before the first row": lambda d: torch.lu_unpack(
        _at(d, 2, 2), torch.tensor([-1, 2], dtype=torch.int32).to(d)
    ),
    "a pivot after the last row": lambda d: torch.linalg.lu_solve(
        _at(d, 2, 2), torch.tensor([1, 3], dtype=torch.int32).to(d), _at(d, 2, 1)
    ),
    "an index outside a plane": lambda d: F.max_unpool2d(_at(d, 1, 1, 1), torch.tensor([[[-1]]]).to(d), 2),
    "an index outside a volume": lambda d: F.max_unpool3d(
        _at(d, 1, 1, 1, 1), torch.tensor([[[[8]]]]).to(d), 2
    ),
    "segments that end before they start": lambda d: torch.segment_reduce(
        _at(d, 4), "sum", offsets=torch.tensor([0, 3, 2, 4]).to(d), axis=0
    ),
    "the median of nothing": lambda d: _at(d, 0).median(dim=0),
    "the mode of nothing": lambda d: _at(d, 2, 0).mode(dim=1),
    "an image without a row": lambda d: F.conv_transpose2d(_at(d, 1, 1, 0, 2), _at(d, 1, 1, 2, 2)),
    "a number for no place": lambda d: _at(d, 3).put(_at(d, 0, dtype=torch.int64), _at(d)),
    "a place in nothing": lambda d: _at(d, 0).index_add(0, torch.tensor([0]).to(d), _at(d, 1)),
    "trials that overlap": lambda d: torch.bernoulli(_at(d, 6), out=_at(d, 1).expand(6)),
    "selected over itself": lambda d: torch.masked_select(x := _at(d, 6), x > 0, out=x),
    "no sample": lambda d: torch.multinomial(_at(d, 3), 0),
    "more samples than there are": lambda d: torch.multinomial(_at(d, 3), 4),
    "an index to gather": lambda d: torch.gather(_at(d, 2, 2), 1, torch.tensor([[0, 23]]).to(d)),
    "an index below": lambda d: torch.gather(_at(d, 2, 2), 1, torch.tensor([[0, -7]]).to(d)),
    "an index to scatter": lambda d: _at(d, 3, 5).scatter(0, torch.tensor([[0, 34]]).to(d), 1.0),
    "an index": lambda d: _at(d, 3)[torch.tensor([1, 5]).to(d)],
    "an index from the end": lambda d: _at(d, 3)[torch.tensor([1, -5]).to(d)],
}


def _finish(call) -> None:
    call("tpu")
    torch.tpu.synchronize()


@pytest.mark.parametrize("name", CALLS)
def test_refused_alike(tpu, name):
    with pytest.raises((RuntimeError, IndexError, ValueError)) as theirs:
        CALLS[name]("cpu")
    words = str(theirs.value).splitlines()[0].partition("  (Could this error message be improved?")[0]
    with pytest.raises(type(theirs.value), match=re.escape(words)):
        _finish(CALLS[name])


def test_an_index_beyond_32_bits_is_named(tpu):
    far = torch.tensor([2**40 + 3]).to("tpu")
    with pytest.raises(IndexError, match=f"index {2**40 + 3} is out of bounds for dimension 0 with size 3"):
        _at("tpu", 3)[far].cpu()


def test_a_dimension_without_elements_has_no_index(tpu):
    with pytest.raises(RuntimeError, match="index is out of bounds for dimension 0 with size 0"):
        torch.gather(_at("tpu", 0), 0, torch.tensor([0]).to("tpu"))


OUTSIDE = [1, 7]
WRITES = {
    "index_add_": lambda x, at: x.index_add_(0, at(OUTSIDE), x[:2].clone()),
    "index_copy_": lambda x, at: x.index_copy_(0, at(OUTSIDE), x[:2] * 2),
    "index_fill_": lambda x, at: x.index_fill_(0, at(OUTSIDE), 9),
    "index_reduce_": lambda x, at: x.index_reduce_(0, at(OUTSIDE), x[:2] * 2, "amax", include_self=False),
    "index_put_": lambda x, at: x.index_put_((at(OUTSIDE),), x[:2] * 2),
    "index_put_ of two": lambda x, at: x.index_put_((at([0, 1]), at(OUTSIDE)), x[0, :2] * 2),
    "index_put_ accumulating": lambda x, at: x.index_put_((at(OUTSIDE),), x[:2] * 2, accumulate=True),
    "an assignment": lambda x, at: x.__setitem__(at(OUTSIDE), 9),
    "an assignment to a view": lambda x, at: x[:, 1].__setitem__(at(OUTSIDE), 9),
    "put_": lambda x, at: x.put_(at([0, 70]), x[0, :2] * 2),
    "scatter_": lambda x, at: x.scatter_(0, at([OUTSIDE]), 9),
    "scatter_add_": lambda x, at: x.scatter_add_(1, at([OUTSIDE]), x[:1, :2] * 2),
    "scatter_reduce_": lambda x, at: x.scatter_reduce_(
        0, at([OUTSIDE]), x[:1, :2] * 2, "mean", include_self=False
    ),
    "masked_scatter_": lambda x, at: x.masked_scatter_(x > 2, x[0]),
    "a masked assignment": lambda x, at: x.__setitem__(x > 2, x[0, :2]),
    "remainder_": lambda x, at: x.remainder_(at([1, 0, 2, 3])),
    "floor_divide_": lambda x, at: x.floor_divide_(at([1, 0, 2, 3])),
    "a view's fmod_": lambda x, at: x[1:, ::2].fmod_(at([1, 0])),
    "bernoulli_": lambda x, at: x.bernoulli_(at([0, 1, 2, 0]) / 1.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_a_refused_operator_would_write_stays(tpu, name):
    before = torch.arange(12).reshape(3, 4)
    x = before.to("tpu")

    def write():
        WRITES[name](x, lambda positions: torch.tensor(positions, device="tpu"))
        torch.tpu.synchronize()

    with pytest.raises((RuntimeError, IndexError)):
        write()
    assert torch.equal(x.cpu(), before)
    assert torch.equal((x + 1).cpu(), before + 1)


EXPANDED = {
    "abs_": lambda x: x.abs_(),
    "addr_": lambda x: x.addr_(x[0].clone(), x[0].clone()),
    "cauchy_": lambda x: x.cauchy_(),
    "deg2rad_": lambda x: x.deg2rad_(),
    "exponential_": lambda x: x.exponential_(),
    "floor_divide_": lambda x: x.floor_divide_(2),
    "geometric_": lambda x: x.geometric_(0.5),
    "log_normal_": lambda x: x.log_normal_(),
    "logical_or_": lambda x: x.logical_or_(x.clone()),
    "normal_": lambda x: x.normal_(),
    "random_": lambda x: x.random_(),
    "uniform_": lambda x: x.uniform_(),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_no_operator_writes_several_elements_to_one_place(tpu, name):
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor") as theirs:
        EXPANDED[name](_at("cpu", 1, 2).expand(2, 2))
    with pytest.raises(RuntimeError, match=re.escape(str(theirs.value))):
        EXPANDED[name](_at("tpu", 1, 2).expand(2, 2))


def test_marked_positions_of_expanded_tensors_may_be_written(tpu):
    for write in (
        lambda x: x.fill_(3),
        lambda x: x.zero_(),
        lambda x: x.masked_fill_(x > 0, 3),
        lambda x: x.index_fill_(0, torch.tensor([0]).to(x.device), 3),
    ):
        ours, theirs = (_at(device, 1, 2).expand(2, 2) for device in ("tpu", "cpu"))
        write(ours), write(theirs)
        assert torch.equal(ours.cpu(), theirs)


def test_the_storage_of_a_view_is_addressed(tpu):
    """Positions outside the view are written to a copy of its storage, and not returned."""
    results = []
    for device in ("tpu", "cpu"):
        x = torch.arange(8.0).to(device)
        source = _at(device, 2)
        for view in (x[2:6], x[1::2], x[1::2][:1]):
            results.append(torch.as_strided_scatter(view, source, (2,), (1,), 0).cpu())
            results.append(torch.as_strided_scatter(view, source, (2,), (2,), 3).cpu())
            results.append(torch.as_strided_copy(view, (2,), (1,), 0).cpu())
    for ours, theirs in zip(results[:9], results[9:], strict=True):
        assert torch.equal(ours, theirs)


def test_losses_and_modes_of_nothing(tpu):
    nothing = _at("tpu", 5, 0)
    assert F.mse_loss(nothing, nothing).isnan()
    assert F.smooth_l1_loss(nothing, nothing).isnan()
    assert F.mse_loss(nothing, nothing, reduction="sum") == 0
    assert [tuple(part.shape) for part in nothing.mode(0)] == [(0,), (0,)]
