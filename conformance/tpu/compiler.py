"""The child process that compiles: {"digest"} is the question, {"failure"} the answer: "" or the refusal.

libtpu may abort where a compiler should complain, which must not end anything but this process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch_pjrt import compile_for_topology

from ..child import serve
from .store import Programs


def main(descriptor: str, folder: str, topology: str) -> None:
    programs = Programs(Path(folder))

    def answer(question: dict[str, Any], tell: object) -> dict[str, str]:
        try:
            compile_for_topology(programs.read(question["digest"]), topology)
        except Exception as refusal:
            return {"failure": f"{type(refusal).__name__}: {refusal}"[:600]}
        return {"failure": ""}

    serve(descriptor, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
