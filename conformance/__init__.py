"""PyTorch's operator samples (`op_db`) on the device `tpu` against the CPU: `python -m conformance --help`.

Parent and children: `runner` gives pairs of operator and dtype to child processes (`worker`), which survive nothing
themselves: a crash or a hang is recorded by the parent. `judge` compares one sample. What is not compared as it
stands is listed in `rules`, each entry with its reason, and counted in the report.
"""
