"""`python -m conformance.tpu`: its command line, the questions and the report."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .. import pairs
from ..aspects import ASPECTS
from ..child import Child, Died
from ..records import FOLDER, build, results_of
from ..report import closing
from ..rules import examples, host
from .store import Answers, Programs, compiler_version, custom_calls

# Of the green pairs, what must be accepted.
SHARE = 0.97

DESCRIPTION = """
One sample of every pair that `python -m conformance` found green, and the examples: the programs that run on the
device, each compiled ahead of time for a TPU topology with libtpu. No TPU is needed. A pair is accepted when all
its programs are. What is known of a program is kept by its digest, so that a second run compiles only what is new.
"""


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.tpu",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--results", type=Path, default=results_of("forward"), help="of conformance (default: %(default)s)")
    add("--topology", default="v6e:2x2", help="default: %(default)s")
    add("--ops", default="*", help="comma-separated names or patterns (default: all)")
    add(
        "--dtypes", default=",".join(ASPECTS["forward"].dtypes), help="comma-separated (default: %(default)s)"
    )
    add("--no-examples", action="store_true", help="the pairs alone")
    add("--timeout", type=float, default=300, help="seconds for one program (default: %(default)s)")
    add("--folder", type=Path, default=FOLDER / "tpu", help="programs and answers (default: %(default)s)")
    add("--entries", default=pairs.OP_DB, metavar="MODULE:LIST", help="other OpInfo entries")
    add(
        "--report",
        default="conformance-tpu",
        help="name of the closing line and of the file in target/reports/",
    )
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    chosen = arguments(words)
    green = _green(chosen)
    if not green:
        print(f"No green pair in {chosen.results}: run `make conformance` first.", file=sys.stderr)
        return 2
    questions = {str(pair): pair._asdict() for pair in green}
    if not chosen.no_examples:
        questions |= {f"example {name}": {"example": words} for name, words in examples.RUNS.items()}
    folder = chosen.folder / "programs"
    programs = Programs(folder)
    recorded = Answers(chosen.folder / "recorded.jsonl", build())
    recorder = Child("conformance.tpu.recorder", chosen.entries, str(folder), timeout=1800, questions=100)
    ask(recorder, "recording", questions, recorded)
    compiled = Answers(chosen.folder / "compiled.jsonl", compiler_version(chosen.topology))
    digests = sorted({key for name in questions for _, key in recorded[name]["programs"]})
    compiler = Child("conformance.tpu.compiler", str(folder), chosen.topology, timeout=chosen.timeout)
    ask(compiler, "compiling", {key: {"digest": key} for key in digests}, compiled)
    kind = {"topology": chosen.topology, "compiler": f"libtpu {version('libtpu')}"}
    return report(chosen.report, questions, recorded, compiled, programs, kind)


def _green(chosen: argparse.Namespace) -> list[pairs.Pair]:
    if not chosen.results.exists():
        return []
    records = [json.loads(line) for line in chosen.results.read_text().splitlines()]
    entries, dtypes, names = pairs.load(chosen.entries), chosen.dtypes.split(","), chosen.ops.split(",")
    wanted = set(pairs.select(entries, ASPECTS["forward"], dtypes, names))
    found = [
        pairs.Pair(record["operator"], record["dtype"]) for record in records if record["status"] == "green"
    ]
    return [pair for pair in found if pair in wanted]


def ask(child: Child, what: str, questions: dict[str, dict[str, Any]], answers: Answers) -> None:
    todo = [name for name in questions if name not in answers]
    try:
        for name in tqdm(todo, desc=what, dynamic_ncols=True):
            try:
                answers.add(name, child.ask(questions[name]))
            except Died as failure:
                answers.add(name, {"programs": [], "failure": str(failure)})
    finally:
        child.stop()


def report(
    name: str,
    questions: dict[str, dict[str, Any]],
    recorded: Answers,
    compiled: Answers,
    programs: Programs,
    kind: dict[str, str],
) -> int:
    """Say what was accepted; 0 when it is enough. kind: topology and compiler, for the file."""
    refused: dict[str, list[str]] = {}
    found: set[str] = set()
    for question in questions:
        answer = recorded[question]
        reasons = [f"not recorded: {answer['failure']}"] if answer["failure"] else []
        for operator, key in answer["programs"]:
            found.add(key)
            if refusal := compiled[key]["failure"]:
                reasons.append(f"{operator}: {refusal}")
        if reasons:
            refused[question] = reasons
    calls = {key: custom_calls(programs.read(key)) for key in found}
    foreign = {key: targets for key, targets in calls.items() if set(targets) - set(host.KERNELS)}
    pairs_asked = [question for question, asked in questions.items() if "operator" in asked]
    examples_asked = [question for question, asked in questions.items() if "example" in asked]
    accepted = sum(question not in refused for question in pairs_asked)
    line = {
        "pairs": len(pairs_asked),
        "accepted": accepted,
        "refused": len(pairs_asked) - accepted,
        "custom_calls": len(foreign),
        "programs": len(found),
        "examples": f"{sum(question not in refused for question in examples_asked)}/{len(examples_asked)}",
    }
    for question, reasons in refused.items():
        print(f"refused: {question}: {reasons[0][:300]}")
    closing.close(name, line, {**kind, "refused_because": refused, "foreign_custom_calls": foreign})
    examples_refused = any(question in refused for question in examples_asked)
    good = accepted >= SHARE * len(pairs_asked) and not (foreign or examples_refused)
    return 0 if good else 1
