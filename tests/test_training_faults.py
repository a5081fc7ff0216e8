"""What goes wrong while a model trains, and what must not go wrong with it: a process killed while it writes a
checkpoint, gradients that are not finite, memory that runs out in backward, workers that touch the device.
"""

from __future__ import annotations

import copy
import json

import pytest
import torch
from child_process import ROOT, run, run_with_injection
from torch.utils.checkpoint import checkpoint

MIB = 2**20


def model(width: int = 8) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, 3))


def state(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Copies of parameters and optimizer states, on the CPU."""
    tensors = [p.detach() for p in module.parameters()]
    for entry in optimizer.state.values():
        tensors += [value for value in entry.values() if isinstance(value, torch.Tensor)]
    return [tensor.cpu().clone() for tensor in tensors]


def identical(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tpu, tmp_path):
    """Children that save a first checkpoint, then die by SIGKILL within the second: with half of it written, and with
    all of it written but not in its place."""
    out = run(
        f"""
        import os, pathlib, signal, sys, torch
        sys.path.insert(0, {str(ROOT / "examples")!r})
        from finetune_lm import save

        class Bomb:
            def __reduce__(self):
                os.kill(os.getpid(), signal.SIGKILL)

        def written():
            os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
            return 0

        folder = pathlib.Path({str(tmp_path)!r})
        for name, last in [("half", Bomb), ("unplaced", written)]:
            path = folder / name / "tpu.pt"
            if (child := os.fork()) == 0:
                weight = torch.arange(1000.0, device="tpu")
                save(path, {{"step": 1, "weight": weight}})
                save(path, {{"step": 2, "weight": weight * 2, "last": last()}})
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            assert path.with_name("tpu.pt.partial").exists()
        for name in ("half", "unplaced"):
            path = folder / name / "tpu.pt"
            state = torch.load(path, map_location="tpu")
            assert state["step"] == 1
            assert state["weight"].device.type == "tpu"
            assert torch.equal(state["weight"].cpu(), torch.arange(1000.0))
            save(path, {{"step": 3}})  # over what the killed one left
            assert torch.load(path)["step"] == 3
            assert os.listdir(path.parent) == ["tpu.pt"]
            print("survived", name)
        """
    ).stdout
    assert "survived half" in out
    assert "survived unplaced" in out


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("form", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_a_gradient_that_is_not_finite_skips_the_step(no_fallback, form, bad):
    scales = {}
    for device in ("cpu", "tpu"):
        module = model().to(device)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, **form)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        x = torch.linspace(-1, 1, 40).reshape(5, 8).to(device)
        scales[device] = []
        for step in range(6):
            before = state(module, optimizer)
            scaler.scale(module(x).square().mean()).backward()
            if step == 2:
                module[2].weight.grad[0, 0] = bad
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert identical(before, state(module, optimizer)) == (step == 2)
            scales[device].append(scaler.get_scale())
        final = [p.detach().cpu() for p in module.parameters()]
        if device == "cpu":
            want = final
    # Doubled after two good steps, halved by the bad one, doubled after two more.
    assert scales["tpu"] == scales["cpu"] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0, 2048.0]
    # The signs of Adam's first steps are those of rounded gradients: 1e-4 is a thousandth of a step.
    torch.testing.assert_close(final, want, rtol=0, atol=1e-4)


HOST_READS = """
    import json
    from torch import nn
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to("tpu")
    optimizers = {
        "foreach": torch.optim.AdamW(model.parameters(), foreach=True),
        "fused": torch.optim.AdamW(model.parameters(), fused=True),
        "sgd": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    }
    x = torch.ones(4, 8, device="tpu")
    reads = {}
    def counts(name, function):
        "Host copies in the third call: the first ones compile."
        for i in range(3):
            start = counted()[4]
            function()
            torch.tpu.synchronize()
            reads[name] = counted()[4] - start
    def backward():
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
    counts("backward", backward)
    for foreach in (True, False):
        counts(f"clip foreach={foreach}", lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach))
    counts("clip value", lambda: nn.utils.clip_grad_value_(model.parameters(), 1.0))
    for name, optimizer in optimizers.items():
        counts(f"step {name}", optimizer.step)
        scaler = torch.amp.GradScaler("tpu")
        def scaled():
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        counts(f"scaled {name}", scaled)
    counts("item", lambda: x.sum().item())
    counts("cpu", lambda: x.cpu())
    print(json.dumps(reads))
"""


def test_host_reads_of_a_training_step_are_those_of_cuda(tpu):
    """Counted at the plugin. An optimizer that cannot skip by itself is skipped by the host, on CUDA too."""
    reads = json.loads(run_with_injection(HOST_READS).stdout)
    own = {"scaled foreach": 1, "scaled sgd": 1, "item": 1, "cpu": 1}
    assert reads == {name: own.get(name, 0) for name in reads}
    assert len(reads) == 12


def test_workers_forked_after_the_device_was_used(tpu):
    out = run(
        """
        from torch.utils.data import DataLoader, Dataset
        import torch
        class Squares(Dataset):
            def __init__(self, device): self.device = device
            def __len__(self): return 16
            def __getitem__(self, i): return torch.full((3,), float(i), device=self.device) ** 2
        weight = torch.ones(3, device="tpu", requires_grad=True)
        loader = DataLoader(Squares("cpu"), 4, num_workers=2, pin_memory=True, persistent_workers=True)
        for epoch in range(2):
            for batch in loader:
                (batch.to("tpu", non_blocking=True) * weight).sum().backward()
        print("gradient", weight.grad.tolist())
        try:
            list(DataLoader(Squares("tpu"), 4, num_workers=1))
        except RuntimeError as error:
            print("caught", error)
        print("after", (weight * 2).sum().item())
        """
    ).stdout
    total = 2.0 * sum(i * i for i in range(16))
    assert f"gradient {[total] * 3}" in out
    assert "caught Caught RuntimeError in DataLoader worker process 0" in out
    assert "Cannot re-initialize TPU in forked subprocess" in out
    assert "'spawn' start method" in out
    assert "after 6.0" in out


def test_out_of_memory_in_backward_leaves_parameters_and_process(no_fallback):
    tpu = torch.tpu
    module = model(64).to("tpu")
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    twin = copy.deepcopy(module).cpu()
    small, large = torch.randn(4, 64), torch.randn(32 * 1024, 64)

    def step(module: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    step(module, optimizer, small.to("tpu"))
    before, held = state(module, optimizer), tpu.memory_allocated()
    x = large.to("tpu")
    optimizer.zero_grad()
    loss = module(x).square().mean()
    tpu.set_memory_limit(tpu.memory_allocated() + MIB)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"):
            loss.backward()
    finally:
        tpu.set_memory_limit(None)
    assert identical(before, state(module, optimizer))
    del loss, x
    optimizer.zero_grad()
    tpu.synchronize()
    assert tpu.memory_allocated() <= held
    # The next steps are those of a twin to which nothing happened.
    other = torch.optim.AdamW(twin.parameters(), lr=0.1)
    step(twin, other, small)
    for x in (large, small, small):
        assert step(module, optimizer, x.to("tpu")) == pytest.approx(step(twin, other, x), rel=1e-3)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("autocast", [False, True])
def test_checkpointing_repeats_dropout(no_fallback, use_reentrant, autocast):
    module = torch.nn.Sequential(*model(), torch.nn.Dropout(0.5)).to("tpu")
    x = torch.randn(16, 8, device="tpu", requires_grad=True)

    def gradients(checkpointed: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        with torch.autocast("tpu", torch.bfloat16, enabled=autocast):
            y = checkpoint(module, x, use_reentrant=use_reentrant) if checkpointed else module(x)
            z = torch.nn.functional.dropout(y, 0.5)  # after the checkpoint: its numbers must not move
        z.float().square().sum().backward()
        found = [x.grad, *(p.grad for p in module.parameters())]
        x.grad = None
        module.zero_grad()
        return [grad.cpu() for grad in found]

    plain = gradients(False)
    assert identical(plain, gradients(True))
    assert any(grad.count_nonzero() > 0 for grad in plain)
    torch.manual_seed(4)
    assert not torch.equal(module(x), module(x))


def test_autocast_covers_what_cuda_covers(tpu):
    """PyTorch's own lists of both devices; only cuDNN's operators are CUDA's alone."""
    of = torch._C._dispatch_get_registrations_for_dispatch_key
    missing = set(of("AutocastCUDA")) - set(of("AutocastPrivateUse1"))
    assert missing == {"aten::cudnn_convolution", "aten::cudnn_convolution_transpose", "aten::_cudnn_rnn"}


def test_autocast_dtypes(no_fallback):
    """One operator of each list: lower precision, float32, float32 by argument, the widest, banned."""
    half, full = (torch.rand(4, 4, device="tpu", dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("tpu", dtype):
            assert (full @ full).dtype == dtype
            assert torch.nn.functional.linear(full, full).dtype == dtype
            attention = torch.nn.functional.scaled_dot_product_attention
            assert attention(full[None, None], full[None, None], full[None, None]).dtype == dtype
            assert half.exp().dtype == torch.float32
            assert torch.nn.functional.layer_norm(half, (4,)).dtype == torch.float32
            assert half.sum().dtype == torch.float32
            assert half.softmax(-1).dtype == torch.float32
            assert half.sum(dtype=torch.bfloat16).dtype == torch.bfloat16
            assert torch.addcmul(full, half, half).dtype == torch.float32
            assert torch.cat([half, full]).dtype == torch.float32
            assert (half + half).dtype == torch.bfloat16
            with pytest.raises(RuntimeError, match="unsafe to autocast"):
                torch.nn.functional.binary_cross_entropy(full, full)
    assert (full @ full).dtype == torch.float32
