"""Autograd's threads end before Python does: one that still lets go of a graph would abort the process."""

import textwrap

from child_process import run

BACKWARD = """
    import atexit
    from pathlib import Path
    import torch
    def threads():
        names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
        return [name for name in names if name.startswith("pt_autograd")]
    weight = torch.ones(4, device="tpu", requires_grad=True)
    (weight * 2).sum().backward()
    print("running", len(threads()))
"""


def test_none_is_left_when_python_ends():
    # The first to be registered is the last to run: torch registers its own when it is imported.
    first = """
    import atexit
    atexit.register(lambda: print("left", threads()))
    """
    running, left = run(textwrap.dedent(first) + textwrap.dedent(BACKWARD)).stdout.splitlines()
    assert running != "running 0"
    assert left == "left []"


def test_without_a_backward_pass_nothing_is_ended():
    assert run("import torch; print((torch.ones(2, device='tpu') * 2).sum().item())").stdout == "4.0\n"
