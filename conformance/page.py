"""docs/conformance.md and docs/conformance.html, written from whole runs."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from . import html, matrix, pairs, values
from .aspects import ASPECTS
from .child import ROOT
from .records import Settings
from .report import STATUSES, Counts, closing
from .rules import (
    faults_of_the_cpu,
    host,
    like_cuda,
    nonunique,
    placement,
    policies,
    random_numbers,
    skips,
    tolerances,
    uninitialized,
)

FORWARD = ASPECTS["forward"].dtypes
PAGE = ROOT / "docs/conformance.md"
TABLE = ROOT / "docs/conformance.html"

INTRODUCTION = """# Conformance

PyTorch describes its operators and how to call them in a list of its own tests, `op_db`. `make conformance` runs
every entry of it in {dtypes} on the device and on the CPU and compares them: {pairs} pairs of an
operator and a dtype, {samples} samples{spread}. This page is written by
`python -m conformance --publish`; `python -m conformance --help` says how to run a part of it. The same table, to be
filtered, is [conformance.html](conformance.html).

{line}

{as_others_count}

Measured with torch {torch}, {settings}.

## What is compared

A pair is **green** when every sample is, with `torch.tpu.set_fallback("error")`: an operator that would run on the
host raises. Compared are values, dtype, shape, strides, the structure of the result, conjugate and negative bits,
which outputs share storage with which inputs and outputs and at which offset, and the inputs after the call.

**wrong** is any mismatch, **notimpl** a `NotImplementedError`, **error** another exception where the CPU has none,
**crash** the death of the process or no answer in time. **unjudged** are pairs of which there is nothing to compare:
the CPU itself raises for every sample. They are pairs, and never green.

Float32 and integer results are held to PyTorch's tolerances: those of `torch.testing.assert_close`, or of the
entry's own decorators where these are wider. Half-precision results are judged by their error against the same call
in float64, which may be at most {factor} times the error of the CPU's own result:

- in the norm: the largest error of a result against the CPU's for the same sample; or, in units in the last place of
  the largest element, against the CPU's largest over {many} samples of the pair, because how several roundings add
  up in one sample is a matter of chance;
- element by element: at most {factor} times the CPU's error, or one rounding ({rounding} units in the last place), or
  within PyTorch's tolerance of the CPU's element.

A correctly rounded result always passes: no number of the dtype is nearer to the exact one.
"""

RULES: tuple[tuple[str, str, Mapping[str, str], tuple[str, ...]], ...] = (
    (
        "Random numbers",
        "dtype, shape, strides and aliasing as the CPU's; the same seed repeats the result and another changes it; "
        f"{random_numbers.N:,} draws come from the CPU's distribution (Kolmogorov-Smirnov, or chi-squared for few "
        "values)",
        dict.fromkeys(random_numbers.OPERATORS, "draws random numbers"),
        ("random",),
    ),
    (
        "Uninitialised memory",
        "everything but the values",
        dict.fromkeys(uninitialized.OPERATORS, "the values are whatever the memory holds"),
        ("metadata only",),
    ),
    (
        "Results that are not unique",
        "what is unique of them",
        {name: rule.reason for name, rule in nonunique.OPERATORS.items()},
        ("what is unique",),
    ),
    (
        "As CUDA, not as the CPU",
        "the mismatches that are listed, and no others",
        {
            name: f"{', '.join(sorted(rule.kinds))} of {', '.join(sorted(rule.outputs))}: {rule.reason}"
            for name, rule in like_cuda.OPERATORS.items()
        },
        ("as CUDA",),
    ),
    (
        "Arguments that stay on the CPU",
        "as everything else",
        placement.OPERATORS,
        ("arguments on the CPU",),
    ),
    (
        "Tolerances beyond PyTorch's",
        f"the largest error against a float64 run is at most {values.FACTOR} times the CPU's",
        tolerances.AGAINST_FLOAT64,
        ("float32 against float64",),
    ),
    (
        "Gradients and tangents beyond PyTorch's tolerances",
        f"the largest error against a float64 run is at most {values.FACTOR} times the CPU's; in ways to ask whose "
        "samples are not counted here",
        tolerances.GRADIENTS_AGAINST_FLOAT64,
        (),
    ),
    ("Samples whose gradient is not compared", "nothing", nonunique.WITHOUT_GRADIENT, ()),
    (
        "Half precision beyond 1.2 times the CPU's error",
        "the largest error against a float64 run, in units in the last place, is at most what is listed",
        {name: f"{units:g} units; {reason}" for name, (units, reason) in tolerances.HALF.items()},
        ("half beyond",),
    ),
    (
        "One algorithm on both devices",
        "as everything else",
        policies.OPERATORS,
        ("one policy",),
    ),
    (
        "Exact where a tolerance would do",
        "every bit",
        tolerances.EXACT,
        ("exact",),
    ),
    (
        "Reads of the device while the operator runs",
        "as everything else; an entry that is not listed and reads is wrong",
        host.READS,
        ("reads on the host",),
    ),
    (
        "Reads of the device while gradients and tangents are computed",
        "as everything else; in ways to ask whose samples are not counted here",
        host.READS_OF_GRADIENTS,
        (),
    ),
    ("Host kernels", "as everything else", host.KERNELS, ("host kernel",)),
    (
        "Faults of the CPU",
        "the right values; in the way to ask `out`, whose samples are not counted here",
        faults_of_the_cpu.STRIDED_OUT,
        (),
    ),
    ("Skips beyond PyTorch's", "nothing", skips.OPERATORS, ()),
)


def write(
    records: Sequence[dict[str, Any]],
    entries: Mapping[str, Any],
    settings: Settings,
    dtypes: Mapping[str, Sequence[dict[str, Any]]],
    others: Mapping[str, Sequence[dict[str, Any]]],
) -> None:
    """records: forward, in the usual dtypes; dtypes: in further ones; others: of further aspects."""
    counts = Counts(records)
    samples = sum(sum(record["samples"].values()) for record in records)
    every = settings.max_samples == 0
    spread = "" if every else f" (at most {settings.max_samples} of each pair, evenly spread)"
    text = INTRODUCTION.format(
        dtypes=", ".join(FORWARD[:-1]) + f" and {FORWARD[-1]}",
        pairs=f"{len(records):,}",
        samples=f"{samples:,}",
        spread=spread,
        line="```\n" + counts.text("conformance") + "\n```",
        as_others_count=_as_torchtpu_counts(records, entries),
        torch=torch.__version__.partition("+")[0],
        settings=settings.key().partition(" ")[2].replace("=", " "),
        factor=values.FACTOR,
        rounding=values.ROUNDING,
        many=values.SAMPLES_FOR_ERROR,
    )
    parts = [text, "## Pairs\n", *_tables(records, entries), "## Rules\n", *_rules(records)]
    parts += ["## What is not green\n", *_not_green(records)]
    parts += _dtypes(dtypes)
    parts += _others(others)
    parts += _tpu()
    table = matrix.rows(chain(records, *dtypes.values()), others)
    columns = matrix.columns(table, others)
    parts += ["", "## Operator by operator\n", *matrix.markdown(table, columns)]
    introduction = f"PyTorch {torch.__version__.partition('+')[0]}: {counts.text('forward')}"
    for path, text in (
        (PAGE, "\n".join(parts).rstrip() + "\n"),
        (TABLE, html.page(introduction, table, columns)),
    ):
        path.write_text(text)
        print(f"{path.relative_to(ROOT)} is written")


def _as_torchtpu_counts(records: Sequence[dict[str, Any]], entries: Mapping[str, Any]) -> str:
    """TorchTPU 0.2.0's own figures were measured with its wheel on the CPU plugin, three samples of each entry."""
    float32 = [record for record in records if record["dtype"] == "float32"]
    green = sum(record["status"] == "green" for record in float32)
    missing = sum(record["status"] == "notimpl" for record in float32)
    return (
        "Counted as TorchTPU is, by entries in float32, forward alone: "
        f"{green} of {len(entries)} pass and {missing} are not implemented; {len(entries) - len(float32)} have no "
        "float32. TorchTPU 0.2.0 passes 527 of 702 and does not implement 118."
    )


def _tables(records: Sequence[dict[str, Any]], entries: Mapping[str, Any]) -> Iterable[str]:
    by_dtype, by_family = defaultdict(list), defaultdict(list)
    for record in records:
        by_dtype[record["dtype"]].append(record)
        by_family[pairs.family(record["operator"], entries[record["operator"]])].append(record)
    for label, groups in (("dtype", by_dtype), ("family", dict(sorted(by_family.items())))):
        yield f"| {label} | pairs | {' | '.join(STATUSES)} |"
        yield "|---" * (len(STATUSES) + 2) + "|"
        for name, group in groups.items():
            line = Counts(group).line()
            yield f"| {name} | {' | '.join(str(number) for number in line.values())} |"
        yield ""


def _rules(records: Sequence[dict[str, Any]]) -> Iterable[str]:
    notes: Counter[str] = sum((Counter(record["notes"]) for record in records), Counter())
    yield (
        "Each list stands in a file of `conformance/rules/`. The number of samples is how often a rule was needed "
        "in this run; a pair whose result equals the CPU's in every bit needs none.\n"
    )
    own = notes["a tolerance of the OpInfo"]
    half, without = notes["half against float64"], notes["no float64 run"]
    yield (
        f"A wider tolerance of the entry's own decorators was needed by {own} samples. {half:,} half-precision results "
        f"differed from the CPU's and were judged against float64; {without} had no float64 run and were compared "
        "with PyTorch's tolerance.\n"
    )
    for title, compared, listed, needed in RULES:
        count = sum(number for note, number in notes.items() if note.startswith(needed)) if needed else 0
        yield f"### {title}: {len(listed)} entries, {count:,} samples\n"
        yield f"Compared: {compared}.\n"
        by_reason = defaultdict(list)
        for name, reason in listed.items():
            by_reason[reason].append(name)
        for reason, names in by_reason.items():
            yield f"- {_names(names)}: {reason}"
        yield ""


def _not_green(records: Sequence[dict[str, Any]], level: str = "###") -> Iterable[str]:
    for status in STATUSES[1:]:
        group = [record for record in records if record["status"] == status]
        if not group:
            continue
        by_reason: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for record in group:
            failure = next(failure for failure in record["failures"] if failure["status"] == status)
            by_reason[_reason(failure["message"])][record["operator"]].append(record["dtype"])
        yield f"{level} {status}: {len(group)}\n"
        for reason, operators in sorted(by_reason.items(), key=lambda item: -sum(map(len, item[1].values()))):
            count = sum(map(len, operators.values()))
            asked = "; ".join(f"`{name}` {', '.join(dtypes)}" for name, dtypes in operators.items())
            yield f"- {reason} ({count}): {asked}"
        yield ""


def _dtypes(dtypes: Mapping[str, Sequence[dict[str, Any]]]) -> Iterable[str]:
    if not dtypes:
        return
    yield "## Other dtypes\n"
    yield f"| dtype | pairs | {' | '.join(STATUSES)} |"
    yield "|---" * (len(STATUSES) + 2) + "|"
    for name, records in dtypes.items():
        yield f"| {name} | {' | '.join(str(number) for number in Counts(records).line().values())} |"
    yield ""
    yield from _not_green(list(chain(*dtypes.values())))


def _others(others: Mapping[str, Sequence[dict[str, Any]]]) -> Iterable[str]:
    if not others:
        return
    yield "## Other ways to ask\n"
    yield "An entry is asked in float32, or in the first other dtype that it has.\n"
    yield f"| asked | entries | {' | '.join(STATUSES)} |"
    yield "|---" * (len(STATUSES) + 2) + "|"
    for name, records in others.items():
        words = type(ASPECTS[name]).__doc__.rstrip(".")
        line = Counts(records).line()
        yield f"| **{name}**: {words} | {' | '.join(str(number) for number in line.values())} |"
    yield ""
    for name, records in others.items():
        yield f"### {name}: what is not green\n"
        yield from _not_green(records, "####")


def _tpu() -> Iterable[str]:
    """What `python -m conformance.tpu` has found, where it has run."""
    path = closing.REPORTS / "conformance-tpu.json"
    if not path.exists():
        return
    found = json.loads(path.read_text())
    yield "## For a TPU\n"
    yield (
        "`make conformance-tpu` takes one sample of every green pair, and the examples, and compiles the programs that "
        f"run on the device for `{found['topology']}` with {found['compiler']}, without a TPU. Of {found['pairs']:,} "
        f"pairs {found['accepted']:,} are accepted with all their programs, and so are {found['examples']} examples. "
        f"There are {found['programs']:,} different programs; {found['custom_calls']} have a custom call that is no "
        "listed host kernel.\n"
    )
    by_reason = defaultdict(list)
    for name, reasons in found["refused_because"].items():
        # Without the operator, and without the instruction that the compiler quotes.
        reason = re.sub(r"^aten::\S+: |\$region\d+", "", reasons[0].partition(": %")[0])
        by_reason[_reason(reason)].append(name)
    for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f"- {reason} ({len(names)}): {_names(names)}"


def _reason(message: str) -> str:
    """A failure in a line, without what differs from sample to sample."""
    operator = re.match(r"([\w.]+::[\w.]+): not implemented", message)
    if operator:
        return f"`{operator[1]}` has no lowering"
    return re.sub(r"\s+", " ", message).replace("|", "/")[:160]


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
