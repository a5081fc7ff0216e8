"""What the device does not have is refused with NotImplementedError that says what to do."""

import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, dtype=torch.qint8, device="tpu"),
        lambda: torch.zeros(3, dtype=torch.quint8, device="tpu"),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to("tpu"),
        lambda: torch._empty_affine_quantized([3], scale=0.1, zero_point=0, dtype=torch.qint8, device="tpu"),
    ],
)
def test_quantized_dtypes(tpu, make):
    with pytest.raises(NotImplementedError, match=r"quantized dtypes are not supported.*dequantize"):
        make()


def test_quantizing_on_the_device(no_fallback):
    with pytest.raises(NotImplementedError, match="quantize_per_tensor"):
        torch.quantize_per_tensor(torch.ones(3, device="tpu"), 0.1, 0, torch.qint8)


def test_tensors_do_not_go_to_other_processes(tpu):
    for sent in (torch.ones(3, device="tpu"), torch.nn.Parameter(torch.ones(3, device="tpu"))):
        with pytest.raises(NotImplementedError, match=r"send tensor\.cpu\(\)"):
            ForkingPickler.dumps(sent)
    assert pickle.loads(ForkingPickler.dumps(torch.ones(3))).tolist() == [1, 1, 1]
