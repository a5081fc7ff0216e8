"""Hugging Face's trainers on the device, unchanged: accelerate has no branch for `tpu`, so that what places the
model is ACCELERATE_TORCH_DEVICE, which `import torch` sets.
"""

from __future__ import annotations

import random

import pytest
import torch

STEPS = 5
VOCABULARY = 64
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "one", "dog", "ran", "to", "big", "red", "house"]


@pytest.fixture
def placed_on(monkeypatch):
    """Where accelerate is to put things: "tpu" is what it finds without being told."""

    def place(device: str) -> dict[str, bool]:
        if device == "cpu":
            monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
        return {"use_cpu": device == "cpu"}

    yield place
    monkeypatch.undo()
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def settings(folder) -> dict:
    return {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "learning_rate": 5e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def trained(trainer) -> list[float]:
    """Losses of a run after which parameters, gradients and optimizer states are where the trainer's device is."""
    seen = set()
    step = trainer.training_step

    def observed(model, *args, **kwargs):
        loss = step(model, *args, **kwargs)
        seen.update(p.grad.device.type for p in model.parameters())
        seen.add(loss.device.type)
        return loss

    trainer.training_step = observed
    trainer.train()
    seen.update(p.device.type for p in trainer.model.parameters())
    states = trainer.optimizer.state.values()
    seen.update(state["exp_avg"].device.type for state in states)
    assert len(states) > 0
    assert seen == {trainer.args.device.type} == {trainer.accelerator.device.type}
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer(no_fallback, placed_on, tmp_path):
    from transformers import Trainer, TrainingArguments

    rows = random.Random(0)
    tokens = [[rows.randrange(8) for _ in range(16)] for _ in range(4 * STEPS)]
    data = [{"input_ids": row, "labels": row} for row in tokens]
    losses = {}
    for device in ("tpu", "cpu"):
        placement = placed_on(device)
        args = TrainingArguments(**settings(tmp_path), **placement)
        assert args.device.type == device
        losses[device] = trained(Trainer(model=tiny_llama(), args=args, train_dataset=data))
    assert len(losses["tpu"]) == STEPS
    assert losses["tpu"][-1] < losses["tpu"][0]
    assert losses["tpu"] == pytest.approx(losses["cpu"], rel=1e-4)


# SFTTrainer's own defaults are bfloat16 autocast and gradient checkpointing: there bfloat16's rounding is between the
# two devices (2**-8 an operand, averaged over the tokens of a batch).
@pytest.mark.parametrize(
    "options, tolerance", [({"bf16": False}, 1e-4), ({}, 1e-3)], ids=["float32", "default"]
)
def test_sft_trainer(no_fallback, placed_on, tmp_path, options, tolerance):
    from datasets import Dataset, disable_progress_bars
    from trl import SFTConfig, SFTTrainer

    disable_progress_bars()
    choose = random.Random(0)
    texts = [{"text": " ".join(choose.choices(WORDS, k=choose.randint(6, 12)))} for _ in range(4 * STEPS)]
    losses = {}
    for device in ("tpu", "cpu"):
        placement = placed_on(device)
        args = SFTConfig(**settings(tmp_path), **placement, **options, pad_to_multiple_of=16)
        trainer = SFTTrainer(
            model=tiny_llama(),
            args=args,
            train_dataset=Dataset.from_list(texts),
            processing_class=tokenizer(),
        )
        assert trainer.accelerator.device.type == device
        losses[device] = trained(trainer)
    assert len(losses["tpu"]) == STEPS
    assert losses["tpu"][-1] < losses["tpu"][0]
    assert losses["tpu"] == pytest.approx(losses["cpu"], rel=tolerance)
