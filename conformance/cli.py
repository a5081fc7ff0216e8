"""The command line."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from tqdm import tqdm

from . import page, pairs, report, runner
from .aspects import ASPECTS
from .child import ROOT
from .records import FOLDER, Records, Settings, read, results_of

DESCRIPTION = """
PyTorch's own operator samples (op_db) on the device `tpu`, each against the CPU: values, dtype, shape, strides,
aliasing, and what becomes of the inputs. They are asked in one of these ways (--aspect):

{aspects}

A pair is an operator and a dtype. It is

  green    every sample passes, and nothing ran on the host as a fallback
  wrong    any mismatch                     notimpl  NotImplementedError
  error    another exception                crash    the process died, or did not answer in time
  unjudged the CPU itself raises for every sample, or PyTorch has none

What is not compared as it stands is listed in conformance/rules/, with reasons, and counted.
"""

EXAMPLES = """
examples:
  python -m conformance                                   every pair; continues where it was interrupted
  python -m conformance --ops 'fft.*,sort' --dtypes float32 --max-samples 0
  python -m conformance --ops add --out /tmp/add.jsonl --show      each failure, word for word
  python -m conformance --aspect gradient                 float32 gradients of every entry that has them
  python -m conformance --dtypes float16,complex64        other dtypes; their results are kept beside the others
  python -m conformance --shard 1/4 --out one.jsonl       a quarter of the pairs, on one of four machines
  python -m conformance --publish                         the whole run, and docs/conformance.md from it

Results are added to --out pair by pair. A later call continues there as long as neither the build nor the
settings have changed; --fresh starts anew.
"""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conformance",
        description=DESCRIPTION.format(aspects=_aspects()),
        epilog=textwrap.dedent(EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--aspect", choices=ASPECTS, default="forward", help="(default: %(default)s)")
    add(
        "--dtypes",
        type=_dtypes,
        metavar="NAME,...",
        help=f"of {', '.join(pairs.DTYPES)} (default: {', '.join(ASPECTS['forward'].dtypes)} for forward, and the "
        "first that an entry has of float32 and some more for the others)",
    )
    add("--ops", default="*", help="comma-separated names or patterns, such as 'linalg.*' (default: all)")
    add(
        "--max-samples",
        type=int,
        default=6,
        help="of each pair, evenly spread; 0: all (default: %(default)s)",
    )
    add("--shard", type=_shard, default=(1, 1), metavar="I/N", help="every N-th pair from the I-th")
    add(
        "--fallback",
        choices=("error", "allow"),
        default="error",
        help="allow: operators without a lowering run on the host and their values are compared, too; such "
        "pairs stay notimpl (default: %(default)s)",
    )
    add("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    add("--timeout", type=float, default=120, help="seconds for one sample (default: %(default)s)")
    add("--out", type=Path, help=f"file of results (default: {FOLDER.relative_to(ROOT)}/ASPECT.jsonl)")
    resume = parser.add_mutually_exclusive_group()
    resume.add_argument("--resume", action="store_true", default=True, help="continue (the default)")
    resume.add_argument("--fresh", action="store_true", help="forget earlier results")
    add("--show", action="store_true", help="print what is not green")
    add("--publish", action="store_true", help="write docs/conformance.md and docs/conformance.html")
    add(
        "--report",
        help="name of the closing line and of the file in target/reports/ (default: conformance-ASPECT)",
    )
    add("--entries", default=pairs.OP_DB, metavar="MODULE:LIST", help="other OpInfo entries")
    chosen = parser.parse_args(words)
    chosen.out = chosen.out or results_of(chosen.aspect)
    chosen.report = chosen.report or f"conformance-{chosen.aspect}".removesuffix("-forward")
    return chosen


def _aspects() -> str:
    width = max(map(len, ASPECTS))
    return "\n".join(f"  {name:{width}} {type(aspect).__doc__}" for name, aspect in ASPECTS.items())


def _dtypes(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(pairs.DTYPES)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected {', '.join(pairs.DTYPES)}")
    return names


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected I/N with 1 <= I <= N, such as 1/4")
    return int(index), int(count)


def main(words: list[str] | None = None) -> int:
    chosen = arguments(words)
    if chosen.max_samples < 0 or chosen.jobs < 1:
        print("--max-samples must be at least 0 and --jobs at least 1.", file=sys.stderr)
        return 2
    entries = pairs.load(chosen.entries)
    aspect = ASPECTS[chosen.aspect]
    selected = pairs.select(entries, aspect, chosen.dtypes, chosen.ops.split(","), chosen.shard)
    if not selected:
        dtypes = ",".join(chosen.dtypes or aspect.dtypes)
        print(f"No operator fits --ops {chosen.ops} --dtypes {dtypes}.", file=sys.stderr)
        return 2
    if chosen.publish and (chosen.aspect != "forward" or selected != pairs.select(entries, aspect)):
        print("--publish wants a whole run: no --aspect, --ops, --dtypes or --shard.", file=sys.stderr)
        return 2
    settings = Settings(chosen.entries, chosen.aspect, chosen.max_samples, chosen.fallback, chosen.timeout)
    records = Records(chosen.out, settings, chosen.fresh)
    if records.dropped:
        print(f"{records.dropped} results of another build or other settings are dropped.", file=sys.stderr)
    todo = [pair for pair in selected if pair not in records.done]
    counts = report.Counts(records.done[pair] for pair in selected if pair in records.done)
    with tqdm(total=len(selected), initial=len(selected) - len(todo), unit="pair", dynamic_ncols=True) as bar:

        def done(record: dict) -> None:
            records.add(record)
            counts.add(record)
            bar.set_postfix_str(str(counts), refresh=False)
            bar.update()

        runner.run(todo, settings, chosen.jobs, done)
    results = [records.done[pair] for pair in selected]
    if chosen.show:
        report.show(results)
    if chosen.publish:
        page.write(results, entries, settings, dtypes_beyond(chosen, entries), others(chosen, entries))
    report.close(chosen.report, results, settings)
    return 0 if counts.clean() else 1


def dtypes_beyond(chosen: argparse.Namespace, entries: dict) -> dict[str, list[dict]]:
    """By dtype, the forward results of those beyond the usual that have been run as a whole with this build."""
    aspect = ASPECTS["forward"]
    done = read(
        results_of("forward"),
        Settings(chosen.entries, "forward", chosen.max_samples, chosen.fallback, chosen.timeout),
    )
    found = {}
    for dtype in (name for name in pairs.DTYPES if name not in aspect.dtypes):
        whole = pairs.select(entries, aspect, [dtype])
        if all(pair in done for pair in whole):
            found[dtype] = [done[pair] for pair in whole]
    return found


def others(chosen: argparse.Namespace, entries: dict) -> dict[str, list[dict]]:
    """By aspect, the results of those that have been run as a whole with this build and these settings."""
    found = {}
    for name, aspect in ASPECTS.items():
        settings = Settings(chosen.entries, name, chosen.max_samples, chosen.fallback, chosen.timeout)
        done = read(results_of(name), settings)
        whole = pairs.select(entries, aspect)
        if name != "forward" and all(pair in done for pair in whole):
            found[name] = [done[pair] for pair in whole]
    return found
