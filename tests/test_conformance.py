"""The conformance harness notices what is wrong, whatever it is: its entries here fail in known ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from child_process import ROOT
from torch.testing._internal.opinfo.core import SampleInput

from conformance import draws, pairs, values, worker
from conformance.aspects import ASPECTS
from conformance.operands import Arguments

FORWARD = ASPECTS["forward"]
SOURCE = "conformance_entries:ENTRIES"
# The status of each entry is the first word of its name, but for these: what is found out is "wrong".
STATUSES = {
    "right": "green",
    "notimpl": "notimpl",
    "error": "error",
    "unjudged": "unjudged",
    "crash": "crash",
}
SAID = {
    "value": "value of output 0",
    "value_second": "value of output 0",
    "value_number": "3 instead of 2",
    "value_half": "units in the last place",
    "value_half_small": "0.0 at (0, 0), exactly 0.5",
    "dtype": "dtype of output 0: torch.float64 instead of torch.float32",
    "shape": "shape of output 0: [1, 3, 4] instead of [3, 4]",
    "strides": "strides of output 0: (1, 3) instead of (4, 1)",
    "device": "device of output 0: cpu instead of tpu",
    "structure": "structure of result",
    "alias_lost": "shares nothing with input 0 instead of at 0 of",
    "alias_false": "at 0 of input 0 instead of shares nothing with",
    "alias_offset": "at 0 of input 0 instead of at 4 of",
    "alias_of_outputs": "at 4 of output 0 instead of shares nothing with",
    "alias_object": "at 0 of input 0 instead of is",
    "write_lost": "value of input 0",
    "write_false": "value of input 0",
    "host": "bytes are read while it runs",
    "random_same": "another seed does not change it",
    "random_seedless": "the same seed does not repeat it",
    "random_scaled": "Kolmogorov-Smirnov distance",
    "notimpl_fallback": "conformance_test::plus_one",
    "crash_abort": "exit status -6",
    "crash_exit": "exit status 0",
    "crash_hang": "no answer in 8 s",
}


def run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "conformance",
        "--entries",
        SOURCE,
        "--report",
        "conformance-test",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500, env=environment())
    assert not check or done.returncode in (0, 1), done.stderr
    return done


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
    }


def read(path: Path) -> dict[pairs.Pair, dict]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {pairs.Pair(record["operator"], record["dtype"]): record for record in records}


@pytest.fixture(scope="module")
def entries() -> dict:
    return pairs.load(SOURCE)


@pytest.fixture(scope="module")
def finished(tpu, tmp_path_factory) -> tuple[dict[str, dict], str]:
    """Records by operator, and what was printed."""
    out = tmp_path_factory.mktemp("conformance") / "results.jsonl"
    done = run("--out", str(out), "--timeout", "8", "--jobs", "2")
    records = read(out)
    return {pair.operator: record for pair, record in records.items()}, done.stdout


def _names() -> list[str]:
    return list(pairs.load(SOURCE))


@pytest.mark.slow
@pytest.mark.parametrize("name", _names())
def test_entry_is_recorded_as_what_it_is(finished, name: str) -> None:
    record = finished[0][name]
    expected = "green" if name == "random_right" else STATUSES.get(name.partition("_")[0], "wrong")
    assert record["status"] == expected, record
    if expected != "green":
        assert SAID.get(name, "") in record["failures"][0]["message"]


@pytest.mark.slow
def test_a_wrong_sample_is_not_outvoted(finished) -> None:
    assert finished[0]["value_second"]["samples"] == {"green": 1, "wrong": 1}


@pytest.mark.slow
def test_the_closing_line_counts_every_pair_once(finished, entries) -> None:
    _, printed = finished
    line = dict(
        word.split("=")
        for word in printed.strip().splitlines()[-1].removeprefix("conformance-test: ").split()
    )
    every = pairs.select(entries, FORWARD)
    assert int(line.pop("pairs")) == len(every) == sum(map(int, line.values()))
    assert int(line["crash"]) == 3
    assert set(line) == {"green", "wrong", "notimpl", "error", "crash", "unjudged"}


@pytest.mark.slow
def test_a_fallback_is_never_green(tmp_path) -> None:
    out = tmp_path / "results.jsonl"
    run(
        "--ops",
        "notimpl_fallback,right",
        "--fallback",
        "allow",
        "--dtypes",
        "float32",
        "--out",
        str(out),
        "--jobs",
        "1",
    )
    records = read(out)
    assert records["right", "float32"]["status"] == "green"
    fallback = records["notimpl_fallback", "float32"]
    assert fallback["status"] == "notimpl"
    assert "ran on the host, with the right values" in fallback["failures"][0]["message"]


@pytest.mark.slow
def test_a_later_call_continues(tmp_path) -> None:
    out = tmp_path / "results.jsonl"
    run("--ops", "right,value", "--dtypes", "float32", "--out", str(out), "--jobs", "1")
    first = out.read_text()
    # As an interruption in the middle of a write leaves it.
    out.write_text(first + '{"operator": "sha')
    done = run("--ops", "right,value,shape", "--dtypes", "float32", "--out", str(out), "--jobs", "1")
    assert out.read_text().startswith(first)
    assert [record["operator"] for record in read(out).values()] == ["right", "value", "shape"]
    assert "pairs=3 green=1 wrong=2" in done.stdout
    # Another question has other answers.
    done = run(
        "--ops", "right", "--dtypes", "float32", "--out", str(out), "--jobs", "1", "--max-samples", "1"
    )
    assert "3 results of another build or other settings are dropped" in done.stderr
    assert [record["samples"] for record in read(out).values()] == [{"green": 1}]


def test_shards_cover_everything_once(entries) -> None:
    whole = pairs.select(entries, FORWARD)
    for count in (1, 2, 3, 7):
        shards = [pairs.select(entries, FORWARD, shard=(i, count)) for i in range(1, count + 1)]
        assert sorted(pair for shard in shards for pair in shard) == sorted(whole)


def test_every_pair_of_pytorch_is_asked() -> None:
    every = pairs.select(pairs.load(), FORWARD)
    assert len(every) == len(set(every)) == 2049


def test_an_operator_nobody_knows_is_refused() -> None:
    done = run("--ops", "no_such_operator", check=False)
    assert done.returncode == 2
    assert "No operator fits --ops no_such_operator" in done.stderr
    done = run("--dtypes", "float31", check=False)
    assert done.returncode == 2
    assert "float31: expected float32, bfloat16, float16" in done.stderr


@pytest.mark.parametrize(
    ("available", "most", "expected"),
    [
        (3, 6, [0, 1, 2]),
        (3, 0, [0, 1, 2]),
        (9, 1, [0]),
        (9, 3, [0, 4, 8]),
        (100, 4, [0, 33, 66, 99]),
        (0, 4, []),
    ],
)
def test_samples_are_spread(available: int, most: int, expected: list[int]) -> None:
    assert worker.chosen(available, most) == expected


def test_arguments_are_copied_as_they_are() -> None:
    base = torch.arange(12.0)
    sample = SampleInput(
        base[2:6], args=([base.view(3, 4).t(), torch.ones(2, 3).t()],), kwargs={"other": base[2:6]}
    )
    copied = Arguments(sample, "cpu")
    one, (two, three) = copied.input, copied.args[0]
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr() != base.data_ptr()
    assert (one.storage_offset(), two.stride(), three.stride()) == (2, (1, 4), (1, 3))
    for got, want in zip(
        copied.tensors(), [base[2:6], base.view(3, 4).t(), torch.ones(3, 2), base[2:6]], strict=True
    ):
        assert torch.equal(got, want)
    # Each converted by itself, however short the converted tensors live.
    many = SampleInput(torch.zeros(8), args=tuple(torch.full((8,), float(i)) for i in range(20)))
    for i, tensor in enumerate(Arguments(many, "cpu", values.widen).tensors()[1:]):
        assert tensor.dtype == torch.float64
        assert tensor.tolist() == [float(i)] * 8


NUMBERS = {
    "uniform": lambda: torch.rand(draws.COUNT),
    "normal": lambda: torch.randn(draws.COUNT),
    "whole": lambda: torch.randint(5, (draws.COUNT,)),
    "heavy": lambda: torch.empty(draws.COUNT).cauchy_(),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_draws_of_one_distribution_agree(name: str) -> None:
    torch.manual_seed(0)
    for _ in range(20):
        assert draws.compare(NUMBERS[name](), NUMBERS[name]()) is None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: torch.rand(draws.COUNT) * 1.02, NUMBERS["uniform"]),
        (lambda: torch.rand(draws.COUNT) ** 1.05, NUMBERS["uniform"]),
        (lambda: torch.randn(draws.COUNT) + 0.03, NUMBERS["normal"]),
        (lambda: torch.randn(draws.COUNT) * 1.05, NUMBERS["normal"]),
        (lambda: torch.randint(6, (draws.COUNT,)), NUMBERS["whole"]),
        (lambda: (torch.rand(draws.COUNT) < 0.32).long(), lambda: (torch.rand(draws.COUNT) < 0.3).long()),
        (lambda: torch.zeros(draws.COUNT), lambda: torch.ones(draws.COUNT)),
        (
            lambda: torch.rand(draws.COUNT).masked_fill(torch.arange(draws.COUNT) == 7, torch.nan),
            NUMBERS["uniform"],
        ),
        (lambda: torch.rand(draws.COUNT // 2), NUMBERS["uniform"]),
    ],
    ids=[
        "scaled",
        "bent",
        "shifted",
        "wider",
        "a sixth value",
        "another chance",
        "constants",
        "a NaN",
        "too few",
    ],
)
def test_other_distributions_are_told_apart(ours, theirs) -> None:
    torch.manual_seed(0)
    assert draws.compare(ours(), theirs()) is not None


@pytest.mark.parametrize("dtype", values.HALF)
def test_a_correctly_rounded_result_always_passes(dtype) -> None:
    torch.manual_seed(0)
    for scale in (1e-6, 1.0, 1e4):
        exact = torch.randn(1000, dtype=torch.float64) * scale
        rounded = exact.to(dtype)
        # However near the CPU's comes: it cannot be nearer.
        assert values.half_exceeds(rounded, rounded, exact, lambda: 0.0) is None
        sloppy = (exact * 1.02).to(dtype)
        assert values.half_exceeds(rounded, sloppy, exact, lambda: 0.0) is None
        assert values.half_exceeds(sloppy, rounded, exact, lambda: 0.5) is not None


def test_an_infinity_or_nan_out_of_place_never_passes() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    right = exact.bfloat16()
    for bad in (torch.inf, torch.nan):
        wrong = torch.tensor([1.0, bad]).bfloat16()
        assert values.half_exceeds(wrong, right, exact, lambda: 100.0) is not None
        assert values.exceeds(wrong.float(), right.float(), exact, lambda: 100.0) is not None
