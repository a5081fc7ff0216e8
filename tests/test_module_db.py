"""PyTorch's own samples of modules and optimizers on the device against the CPU."""

from __future__ import annotations

import copy
import math
import os

import pytest
import torch
from torch.nn.parameter import is_lazy
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_leaves, tree_map

# All samples take an hour; the first of each entry are enough to see that an entry works.
SAMPLES = 1000 if os.environ.get("TORCH_PJRT_ALL_SAMPLES") else 2
STEPS = 10


def _moved(tree, device: str):
    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    return tree_map(move, tree)


def _close(ours, theirs) -> None:
    pairs = list(zip(tree_leaves(ours), tree_leaves(theirs), strict=True))
    for our, their in pairs:
        if isinstance(their, torch.Tensor):
            assert our.device.type == "tpu"
            # Where large products cancel, what is left is rounding noise of the large ones.
            largest = their.abs().amax().item() if their.numel() and their.is_floating_point() else 0.0
            noise = 1e-5 * max(1.0, largest if math.isfinite(largest) else 1.0)
            torch.testing.assert_close(our.cpu(), their, rtol=1e-4, atol=noise, equal_nan=True)


def _gradients(result, module: torch.nn.Module, inputs) -> list:
    """Of the sum of all results, weighted with numbers that depend on the shapes alone."""
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    wanted = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    wanted += [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not (outputs and wanted):
        return []
    weights = [torch.linspace(0.5, 1.5, out.numel()).view(out.shape).to(out) for out in outputs]
    return list(torch.autograd.grad(outputs, wanted, weights, allow_unused=True))


def _samples(info, training: bool) -> list:
    torch.manual_seed(0)
    made = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    usable = [sample for sample in made if sample.forward_input is not None]
    count = len(usable)
    return usable if count <= SAMPLES else [usable[i * (count - 1) // (SAMPLES - 1)] for i in range(SAMPLES)]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(no_fallback, info, training: bool) -> None:
    samples = _samples(info, training)
    if not samples:
        pytest.skip(f"PyTorch has no samples of {info.name} in float32")
    for sample in samples:
        torch.manual_seed(1)
        made = sample.constructor_input
        theirs = info.module_cls(*made.args, **made.kwargs).to(torch.float32).train(training)
        given = (sample.forward_input.args, sample.forward_input.kwargs)
        our_inputs, their_inputs = _moved(given, "tpu"), _moved(given, "cpu")
        if any(is_lazy(parameter) for parameter in theirs.parameters()):
            # The first call draws the parameters, which are then the same on both.
            theirs(*their_inputs[0], **their_inputs[1])
        ours = copy.deepcopy(theirs).to("tpu")
        their_result = theirs(*their_inputs[0], **their_inputs[1])
        our_result = ours(*our_inputs[0], **our_inputs[1])
        _close(our_result, their_result)
        _close(_gradients(our_result, ours, our_inputs), _gradients(their_result, theirs, their_inputs))
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        _close(list(ours.state_dict().values()), list(theirs.state_dict().values()))


FORMS = {
    "default": {},
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True, "foreach": False},
    "capturable-foreach": {"capturable": True, "foreach": True},
}


def _has_form(info, form: str) -> bool:
    needed = [name for name in ("foreach", "fused") if name in FORMS[form]]
    return all(name in info.supported_impls for name in needed) and (
        "capturable" not in form or info.has_capturable_arg
    )


OPTIMIZERS = [
    pytest.param(info, form, id=f"{info.optim_cls.__name__}-{form}")
    for info in optim_db
    for form in FORMS
    if _has_form(info, form)
]


def _options(info, form: str, given: dict, device: str) -> dict:
    options = {name: value for name, value in given.items() if name not in ("foreach", "fused")}
    options = tree_map(lambda leaf: _moved(leaf, device), options)
    if device == "cpu":
        return {name: value for name, value in options.items() if name != "capturable"}
    # As on CUDA, foreach takes a number that is a tensor only where it may be captured.
    if "foreach" in form and info.has_capturable_arg and any(map(torch.is_tensor, tree_leaves(options))):
        options["capturable"] = True
    return options | FORMS[form]


@pytest.mark.parametrize(("info", "form"), OPTIMIZERS)
def test_optimizer(no_fallback, info, form: str) -> None:
    if info.only_supports_sparse_grads:
        pytest.skip(f"{info.optim_cls.__name__} takes sparse gradients alone")
    # Those for CUDA contain numbers that are tensors, and capturable forms.
    inputs = info.optim_inputs_func(device="cuda")
    for given in inputs if SAMPLES > 2 else inputs[:4]:
        states = {}
        for device in ("cpu", "tpu"):
            torch.manual_seed(0)
            parameters = [torch.nn.Parameter(torch.randn(size).to(device)) for size in ((4, 3), (5, 2))]
            optimizer = info.optim_cls(parameters, **_options(info, form, given.kwargs, device))
            target = torch.linspace(-1, 1, 10).to(device)

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                first, second = parameters
                loss = (first**2).sum() + ((second.reshape(-1) - target) ** 2).sum() * 3
                loss.backward()
                return loss

            for _ in range(STEPS):
                optimizer.step(closure)
            # Once at the minimum, what LBFGS remembers of its last directions is rounding noise.
            noise = info.optim_cls is torch.optim.LBFGS
            state = {} if noise else optimizer.state_dict()["state"]
            states[device] = ([p.detach() for p in parameters], state)
        for our, their in zip(tree_leaves(states["tpu"]), tree_leaves(states["cpu"]), strict=True):
            if isinstance(their, torch.Tensor):
                torch.testing.assert_close(our.cpu(), their, rtol=1e-4, atol=1e-5, msg=f"{given.desc}")
            else:
                assert our == their
