"""A forked child may import, seed and use CPU tensors; it gets CUDA's error only when it uses the device
after its parent did. Each case is a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run(source: str) -> str:
    prelude = """
        import os, sys, torch
        def child(function):
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                try:
                    print("child:", function())
                except BaseException as error:
                    print("child:", type(error).__name__, error)
                sys.stdout.flush()
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            print("status:", status)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ERROR = "Cannot re-initialize TPU in forked subprocess"


def test_fork_before_use_leaves_both_able(tpu):
    out = run(
        """
        torch.tpu.is_available(), torch.tpu.device_count(), torch.manual_seed(1)
        child(lambda: (torch.ones(3, device="tpu") + 1).sum().item())
        print("parent:", (torch.ones(3, device="tpu") + 1).sum().item())
        """
    )
    assert "child: 6.0" in out
    assert "parent: 6.0" in out
    assert "status: 0" in out


def test_use_in_a_child_after_the_parent_is_cudas_error(tpu):
    out = run(
        """
        x = torch.ones(3, device="tpu")
        event = torch.tpu.Event()
        event.record()
        uses = [
            lambda: torch.ones(3, device="tpu"), lambda: torch.ones(3).to("tpu"), lambda: x + 1, lambda: x.add_(1),
            lambda: x.cpu(), lambda: x[1].item(), lambda: x.clone(), lambda: x.copy_(torch.zeros(3)),
            lambda: x.untyped_storage().resize_(0), lambda: torch.tpu.init(), lambda: torch.tpu.synchronize(),
            lambda: torch.tpu.Stream(), lambda: torch.tpu.current_stream().synchronize(),
            lambda: torch.tpu.Event().record(), lambda: torch.tpu.get_device_name(),
        ]
        for use in uses:
            child(use)
        print("uses:", len(uses))
        print("parent:", (x + 1).sum().item())
        """
    )
    assert "uses: 15" in out
    assert out.count(f"child: RuntimeError {ERROR}") == 15, out
    assert "'spawn' start method" in out
    assert "parent: 6.0" in out


def test_a_child_may_seed_and_use_the_cpu(tpu):
    out = run(
        """
        x = torch.ones(3, device="tpu")
        def work():
            torch.manual_seed(3)
            torch.tpu.manual_seed_all(3)
            state = torch.tpu.get_rng_state()
            assert torch.tpu._is_in_bad_fork()
            torch.tpu.is_available(), torch.tpu.device_count(), torch.accelerator.is_available()
            return torch.ones(4).sum().item()
        child(work)
        """
    )
    assert "child: 4.0" in out


def test_a_child_may_let_device_tensors_go(tpu):
    out = run(
        """
        x = [torch.ones(3, device="tpu")]
        child(lambda: x.clear() or "freed")
        print("parent:", x[0].sum().item())
        """
    )
    assert "child: freed" in out
    assert "status: 0" in out
    assert "parent: 3.0" in out


@pytest.mark.parametrize("pin", [False, True])
def test_data_loader_workers(tpu, pin):
    out = run(
        f"""
        from torch.utils.data import DataLoader, TensorDataset
        x = torch.ones(1, device="tpu")
        data = TensorDataset(torch.arange(8.0))
        loader = DataLoader(data, batch_size=2, num_workers=2, pin_memory={pin})
        print("sum:", sum(batch.to("tpu").sum().item() for (batch,) in loader))
        """
    )
    assert "sum: 28.0" in out
