"""The examples that train, each in a short form; `make train` runs the long one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from child_process import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
def test_digits_are_learnt_as_on_the_cpu(tpu, tmp_path):
    report, plot = tmp_path / "report.json", tmp_path / "curves.png"
    command = [
        sys.executable,
        str(EXAMPLES / "train_digits.py"),
        "--report",
        str(report),
        "--plot",
        str(plot),
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(report.read_text())
    cpu, device = result["devices"]["cpu"], result["devices"]["tpu"]
    assert device["accuracy"] >= 0.97
    first = slice(20)
    assert device["losses"][first] == pytest.approx(cpu["losses"][first], abs=1e-3)
    assert device["fallbacks"] == device["host_kernels"] == 0
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"train_digits: accuracy={device['accuracy']:.4f} loss=")
    assert last.endswith("fallbacks=0 host_kernels=0")
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["train_digits", "finetune_lm"])
def test_nonsense_is_refused(monkeypatch, capsys, name):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [name, "--steps", "0"])
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(name).parse()
    assert stop.value.code == 2
    assert "--steps must be at least 1" in capsys.readouterr().err


class Bytes:
    """A tokenizer whose tokens are the bytes of the text."""

    eos_token_id = 0

    def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


@pytest.fixture
def finetune(monkeypatch, tmp_path):
    """Runs the example with a small random Llama in place of SmolLM2; returns its report."""
    from transformers import LlamaConfig, LlamaForCausalLM

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import finetune_lm

    def load():
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=256,
        )
        return Bytes(), LlamaForCausalLM(config)

    monkeypatch.setattr(finetune_lm, "load", load)

    def run(*arguments: str) -> SimpleNamespace:
        report = tmp_path / "report.json"
        common = [
            "--report",
            str(report),
            "--length",
            "32",
            "--lr",
            "1e-2",
            "--layers",
            "2",
            "--batch-size",
            "4",
        ]
        monkeypatch.setattr(sys, "argv", ["finetune_lm.py", *common, *arguments])
        assert finetune_lm.main() == 0
        return SimpleNamespace(**json.loads(report.read_text()))

    return run


def test_fine_tuning_follows_the_cpu_and_resumes_exactly(no_fallback, finetune, tmp_path):
    whole = finetune("--steps", "12")
    cpu, device = whole.devices["cpu"], whole.devices["tpu"]
    assert device["losses"] == pytest.approx(cpu["losses"], rel=1e-3)
    assert device["loss_after"] == pytest.approx(cpu["loss_after"], rel=1e-3)
    assert device["loss_after"] < device["loss_before"] - 0.5
    assert device["fallbacks"] == device["host_kernels"] == 0

    folder = str(tmp_path / "checkpoint")
    one = ("--device", "tpu", "--checkpoint", folder, "--checkpoint-every", "5")
    half = finetune(*one, "--steps", "7").devices["tpu"]
    assert half["losses"] == device["losses"][:7]
    torch.manual_seed(99)  # the checkpoint has its own state
    resumed = finetune(*one, "--steps", "12", "--resume").devices["tpu"]
    for key in ("losses", "loss_before", "loss_after"):
        assert resumed[key] == device[key], key
    assert os.listdir(folder) == ["tpu.pt"]
    with pytest.raises(SystemExit, match="made with other settings"):
        finetune(*one, "--steps", "14", "--seed", "1", "--resume")


def test_a_checkpoint_that_is_none_is_named(no_fallback, finetune, tmp_path):
    one = ["--device", "cpu", "--steps", "2", "--checkpoint", str(tmp_path)]
    with pytest.raises(SystemExit):
        finetune(*one, "--resume")  # there is none
    finetune(*one, "--checkpoint-every", "1")
    made = (tmp_path / "cpu.pt").read_bytes()
    for broken in (b"", b"random bytes", made[: len(made) // 2]):
        (tmp_path / "cpu.pt").write_bytes(broken)
        with pytest.raises(SystemExit, match="is no checkpoint of this program"):
            finetune(*one, "--resume")
    torch.save([1, 2], tmp_path / "cpu.pt")
    with pytest.raises(SystemExit, match="is no checkpoint of this program"):
        finetune(*one, "--resume")
