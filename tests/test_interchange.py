"""Tensors of the device in files, in other libraries' hands, and as text."""

from __future__ import annotations

import numpy
import pytest
import torch
from both_devices import check, grid

safetensors = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.usefixtures("no_fallback")

TENSORS = {
    "matrix": torch.arange(12.0).view(3, 4),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "int64": torch.arange(4),
    "bool": torch.tensor([True, False]),
    "number": torch.tensor(2.0),
    "empty": torch.empty(0, 3),
}


# safetensors knows no `tpu`; the index of a device is one of the accelerator's.
@pytest.mark.parametrize("device", ["cpu", 0])
def test_safetensors(tmp_path, device) -> None:
    file = tmp_path / "tensors.safetensors"
    safetensors.save_file({name: t.to("tpu") for name, t in TENSORS.items()}, file)
    loaded = safetensors.load_file(file, device=device)
    assert {t.device.type for t in loaded.values()} == {"cpu" if device == "cpu" else "tpu"}
    for name, t in TENSORS.items():
        assert torch.equal(loaded[name].cpu(), t)
        assert loaded[name].dtype == t.dtype


def test_safetensors_refuse_what_shares_memory(tmp_path) -> None:
    x = TENSORS["matrix"].to("tpu")
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file({"all": x, "row": x[1]}, tmp_path / "tensors.safetensors")


def test_safetensors_of_tied_weights(tmp_path) -> None:
    def tied() -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).to("tpu")
        model[1].weight = model[0].weight
        return model

    saved, loaded = tied(), tied()
    safetensors.save_model(saved, tmp_path / "model.safetensors")
    safetensors.load_model(loaded, tmp_path / "model.safetensors")
    assert loaded[1].weight is loaded[0].weight
    torch.testing.assert_close(loaded[1].weight.cpu(), saved[0].weight.cpu())


def test_numpy() -> None:
    x = grid("tpu", 3)
    with pytest.raises(TypeError, match=r"can't convert tpu.*cpu\(\)"):
        numpy.asarray(x)
    numpy.testing.assert_array_equal(x.numpy(force=True), grid("cpu", 3).numpy())
    assert torch.from_dlpack(numpy.ones(3), device="tpu").device.type == "tpu"
    # DLPack has no name for this device: what it exports is a copy on the host.
    assert torch.utils.dlpack.from_dlpack(x.__dlpack__(dl_device=(1, 0))).device.type == "cpu"
    with pytest.raises((ValueError, RuntimeError, BufferError)):
        numpy.from_dlpack(x)


def test_types_by_name() -> None:
    x = grid("tpu", 3)
    assert x.type() == "torch.tpu.FloatTensor"
    assert torch.ones(3).type(x.type()).device.type == "tpu"
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.type_as(torch.ones(1)).device.type == "cpu"
    check(lambda d: (grid(d, 3).type(torch.float64), grid(d, 3).type(torch.int32)))


TEXTS = {
    "large": lambda d: grid(d, 40, 50),
    "not finite": lambda d: torch.tensor([torch.nan, torch.inf, 1e10, 1e-10], device=d),
    "complex": lambda d: torch.complex(grid(d, 3), grid(d, 3)).conj(),
    "negative": lambda d: torch.complex(grid(d, 3), grid(d, 3)).conj().imag,
    "empty": lambda d: torch.empty(0, 2, device=d),
    "gradient": lambda d: grid(d, 3).requires_grad_() * 2,
    "parameter": lambda d: torch.nn.Parameter(grid(d, 2)),
    "expanded": lambda d: grid(d, 3, 1).expand(3, 4),
    "sparse": lambda d: torch.eye(2).to(d).to_sparse(),
    **{
        str(dtype): lambda d, dtype=dtype: torch.arange(6).view(2, 3).to(dtype).to(d)
        for dtype in (
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.int8,
            torch.bool,
            torch.uint16,
            torch.complex128,
        )
    },
}


@pytest.mark.parametrize("name", TEXTS)
def test_printing(name: str) -> None:
    ours, theirs = repr(TEXTS[name]("tpu")), repr(TEXTS[name]("cpu"))
    # Where a line is broken depends on the name of the device.
    assert "device='tpu:0'" in ours
    assert "".join(ours.replace("device='tpu:0'", "").split()).replace(",,", ",").replace(
        ",)", ")"
    ) == "".join(theirs.split()).replace(",)", ")")
