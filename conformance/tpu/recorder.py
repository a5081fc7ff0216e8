"""The child process that finds out which programs run: {"operator", "dtype"} or {"example": words} is the question.

The answer is {"programs": [[operator, digest], ...], "failure"}; the texts go into a folder.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch_pjrt import _core

from .. import pairs
from ..aspects import ASPECTS
from ..child import ROOT, serve
from ..operands import Arguments
from ..rules import placement
from ..worker import let_seeds_count
from .store import Programs

# From so many samples of a pair the one with the most elements is taken: the first are often numbers.
CONSIDERED = 8


def main(descriptor: str, source: str, folder: str) -> None:
    warnings.filterwarnings("ignore")
    torch.tpu.set_fallback("error")
    entries = pairs.load(source)
    let_seeds_count()
    programs = Programs(Path(folder))

    def answer(question: dict[str, Any], tell: object) -> dict[str, Any]:
        failure = ""
        _core.record_programs(True)
        try:
            if "example" in question:
                run_example(*question["example"])
            else:
                run_sample(entries[question["operator"]], question)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"[:600]
        finally:
            found = _core.record_programs(False)
        return {
            "programs": [(op, programs.add(text)) for op, text in dict.fromkeys(found)],
            "failure": failure,
        }

    serve(descriptor, answer)


def run_sample(entry: Any, question: dict[str, str]) -> None:
    dtype = getattr(torch, question["dtype"])
    samples = ASPECTS["forward"].samples(question["operator"], entry, dtype)[:CONSIDERED]
    sample = max(samples, key=lambda sample: sum(t.numel() for t in Arguments(sample, "cpu").tensors()))
    arguments = Arguments(sample, "tpu", only_input=question["operator"] in placement.OPERATORS)
    torch.manual_seed(1)
    with contextlib.nullcontext() if arguments.name_a_device() else torch.device("tpu"):
        arguments.call(entry.op)
    torch.tpu.synchronize()


def run_example(name: str, *words: str) -> None:
    """A whole example, in this process; what it writes goes into a folder that is thrown away."""
    sys.argv = [name, *words]
    sys.path.insert(0, str(ROOT / "examples"))  # Where a script finds its neighbours.
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        try:
            runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"it ends with {end.code}") from None


if __name__ == "__main__":
    main(*sys.argv[1:])
