"""`make conformance-tpu` on a few pairs: accepted and refused ones, and what it keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from child_process import ROOT

from conformance.child import Child
from conformance.tpu import check, store

# Of every kind that compilers treat in their own way: elementwise, contraction, reduction, sort, gather, scatter,
# window, random, an integer, half precision.
SAMPLE = {
    "add": "float32",
    "matmul": "bfloat16",
    "var_mean": "float32",
    "sort": "int64",
    "index_select": "bool",
    "scatter_add": "float32",
    "nn.functional.max_pool2d": "float32",
    "normal": "bfloat16",
    "nn.functional.conv2d": "bfloat16",
    "cumsum": "int64",
}


def run(folder: Path, *words: str, results: Path) -> dict:
    command = [sys.executable, "-m", "conformance.tpu", "--results", str(results), "--folder", str(folder)]
    command += ["--no-examples", "--report", "conformance-tpu-test", *words]
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=580, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode in (0, 1), done.stderr
    line = done.stdout.strip().splitlines()[-1].removeprefix("conformance-tpu-test: ")
    return {
        **dict(word.split("=") for word in line.split()),
        "status": done.returncode,
        "printed": done.stdout,
    }


def write(path: Path, pairs: list[tuple[str, str, str]]) -> Path:
    lines = [json.dumps(dict(zip(("operator", "dtype", "status"), pair, strict=True))) for pair in pairs]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_a_sample_of_pairs_is_accepted(tpu, tmp_path) -> None:
    """Runs with every change; the whole takes as long as the compiler needs for thousands of programs."""
    pairs = [(operator, dtype, "green") for operator, dtype in SAMPLE.items()]
    results = write(tmp_path / "results.jsonl", [*pairs, ("sub", "float32", "wrong")])
    got = run(tmp_path, results=results)
    assert got["status"] == 0, got["printed"]
    assert int(got["pairs"]) == int(got["accepted"]) == len(SAMPLE)
    assert int(got["programs"]) >= len(SAMPLE)
    assert got["custom_calls"] == "0"
    kept = (tmp_path / "compiled.jsonl").read_text()
    assert len(kept.splitlines()) == int(got["programs"])
    # A second run asks nothing again.
    run(tmp_path, results=results)
    assert (tmp_path / "compiled.jsonl").read_text() == kept


GOOD = """func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}"""
REFUSED = """func.func public @main(%x: tensor<8xcomplex<f64>>) -> tensor<8xcomplex<f64>> {
  %0 = stablehlo.fft %x, type = FFT, length = [8] : (tensor<8xcomplex<f64>>) -> tensor<8xcomplex<f64>>
  return %0 : tensor<8xcomplex<f64>>
}"""
FOREIGN = """func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @AllocateBuffer() : () -> tensor<8xf32>
  return %0 : tensor<8xf32>
}"""


@pytest.mark.slow
def test_refusals_and_custom_calls_are_reported(tpu, tmp_path, capsys) -> None:
    programs = store.Programs(tmp_path / "programs")
    texts = {"good": GOOD, "refused": REFUSED, "foreign": FOREIGN, "died": ""}
    recorded = store.Answers(tmp_path / "recorded.jsonl", "1")
    for name, text in texts.items():
        failure = "exit status -6" if name == "died" else ""
        found = [("aten::op", programs.add(text))] if text else []
        recorded.add(f"{name} float32", {"programs": found, "failure": failure})
    questions = {f"{name} float32": {"operator": name, "dtype": "float32"} for name in texts}
    compiled = store.Answers(tmp_path / "compiled.jsonl", "1")
    compiler = Child("conformance.tpu.compiler", str(tmp_path / "programs"), "v6e:2x2", timeout=300)
    digests = [store.digest(text) for text in texts.values() if text]
    check.ask(compiler, "compiling", {key: {"digest": key} for key in digests}, compiled)
    assert check.report("conformance-tpu-test", questions, recorded, compiled, programs, {}) == 1
    printed = capsys.readouterr().out
    assert "pairs=4 accepted=2 refused=2 custom_calls=1 programs=3" in printed
    assert "refused: refused float32: aten::op: RuntimeError" in printed
    assert "refused: died float32: not recorded: exit status -6" in printed


def test_custom_calls_are_found() -> None:
    text = """
    %0 = stablehlo.custom_call @LapackSyevd(%arg0) {api_version = 4} : (tensor<2xf32>) -> tensor<2xf32>
    %1 = "stablehlo.custom_call"(%0) <{call_target_name = "other"}> : (tensor<2xf32>) -> tensor<2xf32>
    %2 = stablehlo.add %0, %1 : tensor<2xf32>"""
    assert store.custom_calls(text) == ["LapackSyevd", "other"]
    assert store.custom_calls("%2 = stablehlo.add %0, %1 : tensor<2xf32>") == []


def test_answers_of_another_version_are_forgotten(tmp_path) -> None:
    answers = store.Answers(tmp_path / "answers.jsonl", "1")
    answers.add("a", {"failure": ""})
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('{"version": "1", "ke')  # Interrupted.
    assert store.Answers(tmp_path / "answers.jsonl", "1")["a"] == {"failure": ""}
    assert "a" not in store.Answers(tmp_path / "answers.jsonl", "2")
