"""What CPU kernels refuse is refused with the same exception and the same words."""

import re

import pytest
import torch
import torch.nn.functional as F


def _at(device: str, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*sizes, dtype=dtype, device=device)


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
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        CALLS[name]("cpu")
    with pytest.raises(type(theirs.value), match=re.escape(str(theirs.value).splitlines()[0])):
        _finish(CALLS[name])


def test_an_index_beyond_32_bits_is_named(tpu):
    far = torch.tensor([2**40 + 3]).to("tpu")
    with pytest.raises(IndexError, match=f"index {2**40 + 3} is out of bounds for dimension 0 with size 3"):
        _at("tpu", 3)[far].cpu()


def test_a_dimension_without_elements_has_no_index(tpu):
    with pytest.raises(RuntimeError, match="index is out of bounds for dimension 0 with size 0"):
        torch.gather(_at("tpu", 0), 0, torch.tensor([0]).to("tpu"))
