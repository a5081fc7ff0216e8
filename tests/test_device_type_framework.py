"""PyTorch's own framework for tests of devices makes tests for `tpu`, as it does for third parties' classes."""
# ruff: noqa: PT009  (the assertions of PyTorch's TestCase compare tensors)

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import (
    dtypes,
    instantiate_device_type_tests,
    onlyNativeDeviceTypes,
    ops,
    skipMeta,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase

CHOSEN = [entry for entry in op_db if entry.name in ("add", "softmax", "index_select", "sort")]


class TestThirdParty(TestCase):
    """As it would stand in somebody else's repository."""

    def test_device(self, device):
        self.assertEqual(torch.device(device).type, "tpu")
        self.assertEqual(torch.ones(2, device=device).device.type, "tpu")

    @dtypes(torch.float32, torch.int64)
    def test_dtype(self, device, dtype):
        x = make_tensor((3, 4), device=device, dtype=dtype)
        self.assertEqual(x + x, 2 * x)
        self.assertEqual((x + x).cpu(), 2 * x.cpu())

    @ops(CHOSEN, allowed_dtypes=(torch.float32,))
    def test_operator(self, device, dtype, op):
        for sample in list(op.sample_inputs(device, dtype))[:3]:
            ours = op(sample.input, *sample.args, **sample.kwargs)
            on_cpu = sample.transform(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf)
            self.assertEqual(ours, op(on_cpu.input, *on_cpu.args, **on_cpu.kwargs), exact_device=False)

    @skipMeta
    @onlyNativeDeviceTypes
    def test_decorators(self, device):
        self.assertNotEqual(torch.device(device).type, "meta")


instantiate_device_type_tests(TestThirdParty, globals(), only_for=("tpu",))


def test_the_class_is_made():
    # PyTorch names the class after the dispatch key, and the tests after the device.
    made = {name for name in globals() if name.startswith("TestThirdParty")}
    assert made == {"TestThirdPartyPRIVATEUSE1"}
    names = set(dir(globals()["TestThirdPartyPRIVATEUSE1"]))
    assert {"test_device_tpu", "test_dtype_tpu_float32", "test_operator_sort_tpu_float32"} <= names
