"""One sample on both devices, and the verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from . import compare, refusals, values
from .aspects import Aspect, Call
from .compare import Mismatch, flatten
from .operands import Arguments
from .rules import host, like_cuda, nonunique, placement, policies, random_numbers, tolerances, uninitialized
from .verdict import Verdict

DEVICE = "tpu"
# A random result that is the same for so many seeds does not depend on the seed.
SEEDS = range(1, 25)


@dataclass
class Run:
    """What a call returned and what became of its arguments, or how it failed."""

    arguments: Arguments
    result: Any = None
    failure: Exception | None = None
    counted: dict[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> list[torch.Tensor]:
        return self.arguments.tensors()


class Asked(NamedTuple):
    """A sample, and what is called with its arguments."""

    sample: Any
    call: Call


class Judge:
    """Compares what is asked of one entry in one dtype. samples: all there are, for the CPU's own error."""

    def __init__(self, name: str, entry: Any, dtype: torch.dtype, aspect: Aspect, samples: list[Any]) -> None:
        self.name, self.entry, self.dtype, self.aspect = name, entry, dtype, aspect
        self._samples = samples
        self._unique = nonunique.OPERATORS.get(name)

    def judge(self, asked: Asked) -> Verdict:
        theirs = self._run(asked, "cpu")
        ours = self._run(asked, DEVICE)
        if theirs.failure and self.aspect.refusals:
            verdict = refusals.judge(ours.failure, theirs.failure, asked.sample)
            if verdict.status == "green" and self.aspect.atomic and self._has_changed(asked, ours):
                return Verdict("wrong", f"refusal: {refusals.said(ours.failure)}; the arguments have changed")
            return verdict
        if theirs.failure:
            status = "raises too" if ours.failure else "answers"
            return Verdict("unjudged", f"the CPU raises {refusals.said(theirs.failure)}; the device {status}")
        if isinstance(ours.failure, NotImplementedError):
            return Verdict("notimpl", str(ours.failure))
        if ours.failure:
            return Verdict("error", refusals.said(ours.failure))
        notes: Counter[str] = Counter()
        try:
            mismatches = list(self._compare(asked, ours, theirs, notes))
        except NotImplementedError as failure:
            return Verdict("notimpl", f"reading the result: {failure}")
        if mismatches:
            return Verdict("wrong", "; ".join(map(str, mismatches)), notes)
        if ours.counted["fallbacks"]:
            operators = ", ".join(sorted(ours.counted["fallback_ops"]))
            return Verdict("notimpl", f"{operators}: ran on the host, with the right values", notes)
        return Verdict("green", notes=notes)

    def _run(
        self, asked: Asked, device: str, seed: int = 1, convert: Callable[[Any], Any] = lambda leaf: leaf
    ) -> Run:
        torch.manual_seed(seed)
        try:
            arguments = Arguments(asked.sample, device, convert, only_input=self.name in placement.OPERATORS)
        except Exception as failure:
            return Run(None, failure=failure)  # type: ignore[arg-type]
        run = Run(arguments)
        before = torch.tpu.stats()
        try:
            # A factory that is given no device makes its tensor where the context says.
            with nullcontext() if arguments.name_a_device() else torch.device(device):
                run.result = asked.call(arguments)
            if device == DEVICE:
                torch.tpu.synchronize()
        except Exception as failure:
            run.failure = failure
        run.counted = _since(before, torch.tpu.stats())
        return run

    def _has_changed(self, asked: Asked, run: Run) -> bool:
        """Whether the arguments are no longer those of the sample."""
        before = Arguments(asked.sample, "cpu").tensors()
        pairs = zip(run.inputs, before, strict=True)
        return not all(_identical(_on_cpu(now), _on_cpu(then)) for now, then in pairs)

    def _compare(self, asked: Asked, ours: Run, theirs: Run, notes: Counter[str]) -> Iterator[Mismatch]:
        wrong_structure = list(compare.structure(ours.result, theirs.result))
        if wrong_structure:
            yield from wrong_structure
            return
        yield from self._about_the_host(ours, notes)
        if self.name in policies.OPERATORS:
            notes["one policy"] += 1
        if self.name in placement.OPERATORS:
            notes["arguments on the CPU"] += 1
        outputs = [
            ("output", flatten(ours.result), flatten(theirs.result)),
            ("input", ours.inputs, theirs.inputs),
        ]
        if self.aspect.layout:
            yield from compare.aliasing(outputs[0][1], outputs[0][2], ours.inputs, theirs.inputs)
        comparable = True
        for kind, our_tensors, their_tensors in outputs:
            for where, our, their in _tensors(kind, our_tensors, their_tensors):
                device = DEVICE if kind == "output" else our.device.type
                for mismatch in compare.metadata(where, our, their, device):
                    if mismatch.kind == "strides" and not self.aspect.layout:
                        continue
                    if like_cuda.excuses(self.name, mismatch):
                        notes[f"as CUDA: {mismatch.kind}"] += 1
                    else:
                        yield mismatch
                        comparable = False
        if not comparable:
            return
        if self.name in uninitialized.OPERATORS:
            notes["metadata only"] += 1
        elif self.name in random_numbers.OPERATORS and self._is_random(asked, theirs):
            notes["random"] += 1
            yield from self._random(asked, ours)
        else:
            if self._unique:
                notes["what is unique"] += 1
            yield from self._values(asked, ours, theirs, notes)

    def _about_the_host(self, ours: Run, notes: Counter[str]) -> Iterator[Mismatch]:
        """Nothing may be computed on the host by the back door."""
        for operator in ours.counted["decomposed_ops"]:
            notes[f"decomposed {operator}"] += 1
        for operator in ours.counted["host_kernel_ops"]:
            notes[f"host kernel {operator}"] += 1
            if operator not in host.KERNELS:
                yield Mismatch("host", "operator", f"{operator} is no listed host kernel")
        if bytes_read := ours.counted["bytes_to_host"]:
            notes["reads on the host"] += 1
            allowed = (
                self.name in self.aspect.reads or ours.counted["fallbacks"] or ours.counted["host_kernels"]
            )
            if not allowed:
                yield Mismatch("host", "operator", f"{bytes_read} bytes are read while it runs")

    def _values(self, asked: Asked, ours: Run, theirs: Run, notes: Counter[str]) -> Iterator[Mismatch]:
        exact: Run | None = None

        def exactly(kind: str, index: int) -> torch.Tensor | None:
            nonlocal exact
            exact = exact or self._exact(asked)
            if exact.failure:
                return None
            tensors = self._outcome(exact, asked.sample)[kind]
            found = tensors[index] if index < len(tensors) else None
            return found.detach() if isinstance(found, torch.Tensor) else None

        our_outcome, their_outcome = self._outcome(ours, asked.sample), self._outcome(theirs, asked.sample)
        for kind in ("output", "input"):
            for where, our, their in _tensors(kind, our_outcome[kind], their_outcome[kind]):
                index = int(where.split()[-1])
                message = self._tensor(our, their, lambda kind=kind, index=index: exactly(kind, index), notes)
                if message:
                    yield Mismatch("value", where, message)

    def _outcome(self, run: Run, sample: Any) -> dict[str, list[Any]]:
        """What is compared of a run: its results, or what is unique of them, and its inputs afterwards."""
        result = tree_map(_on_cpu, run.result)
        if unique := self._unique:
            result = self.aspect.with_unique(lambda returned: unique.of(returned, sample), result)
        return {
            "output": flatten(result),
            "input": [_on_cpu(tensor) for tensor in run.inputs],
        }

    def _tensor(
        self,
        ours: torch.Tensor,
        theirs: torch.Tensor,
        exactly: Callable[[], torch.Tensor | None],
        notes: Counter[str],
    ) -> str | None:
        if ours.shape != theirs.shape:  # CUDA's shape: there is nothing to compare.
            return None
        if ours.dtype != theirs.dtype:  # CUDA's dtype: a wider one.
            exact = exactly()
            return values.difference(ours, (theirs if exact is None else exact).to(ours.dtype), None, None)
        if _identical(ours, theirs):
            return None
        if self.name in tolerances.EXACT:
            notes["exact"] += 1
            return values.difference(ours, theirs, 0, 0)
        message = values.difference(ours, theirs, None, None)
        if ours.dtype in values.HALF:
            exact = exactly()
            if exact is None or exact.shape != ours.shape or not exact.is_floating_point():
                notes["no float64 run"] += 1
                return message
            notes["half against float64"] += 1
            message = values.half_exceeds(ours, theirs, exact, lambda: self._error_of_cpu)
            allowed = tolerances.HALF.get(self.name, (0.0, ""))[0]
            if message and values.error_in_units(ours, exact) <= allowed:
                notes["half beyond the CPU's error"] += 1
                return None
            return message
        if message is None or not (ours.is_floating_point() or ours.is_complex()):
            return message
        own = tolerances.of_pytorch(self.entry, self.dtype)
        if own and values.difference(ours, theirs, *own) is None:
            notes["a tolerance of the OpInfo"] += 1
            return None
        if self.name in self.aspect.against_float64 and (exact := exactly()) is not None:
            notes["float32 against float64"] += 1
            return values.exceeds(ours, theirs, exact, lambda: self._error_of_cpu)
        return message

    def _exact(self, asked: Asked) -> Run:
        """The call in float64 on the CPU; integers that become floating-point become float64, too."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self._run(asked, "cpu", convert=values.widen)
        finally:
            torch.set_default_dtype(default)

    @cached_property
    def _error_of_cpu(self) -> float:
        """The largest error of the CPU's results over many samples, in units in the last place."""
        errors = [0.0]
        for sample in self._samples[:: math.ceil(len(self._samples) / values.SAMPLES_FOR_ERROR)]:
            asked = Asked(sample, next(iter(self.aspect.calls(self.entry, sample)))[1])
            theirs, exact = self._run(asked, "cpu"), self._exact(asked)
            if not (theirs.failure or exact.failure):
                outcomes = self._outcome(theirs, sample)["output"], self._outcome(exact, sample)["output"]
                errors += [
                    values.error_in_units(one, other) for _, one, other in _tensors("output", *outcomes)
                ]
        return max(error for error in errors if math.isfinite(error))

    def _is_random(self, asked: Asked, theirs: Run) -> bool:
        """Whether the CPU's results depend on the seed: a dropout with probability 0 is compared as it stands."""
        return any(not self._same(self._run(asked, "cpu", seed), theirs) for seed in SEEDS)

    def _random(self, asked: Asked, ours: Run) -> Iterator[Mismatch]:
        again = self._run(asked, DEVICE)
        if again.failure or not self._same(again, ours):
            yield Mismatch("randomness", "result", "the same seed does not repeat it")
        if all(self._same(self._run(asked, DEVICE, seed), ours) for seed in SEEDS):
            yield Mismatch("randomness", "result", "another seed does not change it")

    def _same(self, one: Run, other: Run) -> bool:
        pairs = zip([*flatten(one.result), *one.inputs], [*flatten(other.result), *other.inputs], strict=True)
        return all(_identical(_on_cpu(a), _on_cpu(b)) for a, b in pairs if isinstance(a, torch.Tensor))


def _tensors(
    kind: str, ours: list[Any], theirs: list[Any]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(our, torch.Tensor) and isinstance(their, torch.Tensor):
            yield f"{kind} {index}", our, their


def _on_cpu(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach().cpu()
    return leaf.resolve_conj().resolve_neg() if leaf.layout == torch.strided else leaf.to_dense()


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal, and NaN where the other is."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype == torch.complex32:  # Half the CPU's kernels are missing for it.
        one, other = one.to(torch.complex64), other.to(torch.complex64)
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    counted: dict[str, Any] = {}
    for key, value in after.items():
        if isinstance(value, dict):
            counted[key] = {name for name, count in value.items() if count != before[key].get(name, 0)}
        else:
            counted[key] = value - before[key]
    return counted
