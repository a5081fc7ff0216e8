"""Random programs of views and writes in place that autograd records: leaves a0, a1, ..., tensors t0, t1, ...

The tensors that are left at the end are weighted and summed, and the gradients of all leaves compared; now and
then the gradients of their squares, too. Numbers are small and exactly representable, so values agree to the bit,
and gradients do as far as they stay so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import random_programs
import torch
from random_programs import SCALARS, Pair, history
from random_views import DENSE, POOL, values

DTYPES = (torch.float32, torch.complex64)
# Beyond it, sums in another order may round.
LARGEST_EXACT = 2.0**20


def weighted_sum(t: torch.Tensor, seed: int) -> torch.Tensor:
    """A real number in which each element counts differently."""
    weights = values(tuple(t.shape), torch.float32, seed).to(t.device)
    total = (t * weights).sum()
    return total.real + 2 * total.imag if total.is_complex() else total


class GradientPair(Pair):
    def __init__(self, device: str) -> None:
        super().__init__(device, differentiates=True)
        for world in (self.cpu, self.tpu):
            world.names["weighted_sum"] = weighted_sum

    def same_elements(self, expected: torch.Tensor, actual: torch.Tensor) -> np.ndarray:
        """Zeros of both signs are the same: the CPU's vector code has rules of its own for complex ones."""
        return super().same_elements(expected, actual) | (expected == actual).numpy()

    def compare_gradients(self) -> None:
        for name in [name for name in self.cpu.names if name[0] == "g"]:
            theirs, ours = self.cpu.names[name], self.tpu.names[name]
            if theirs is None or ours is None:
                self.equal(name, theirs, ours)
                continue
            ours = ours.detach()
            for what in ("dtype", "shape", "requires_grad"):
                self.equal(f"{name}.{what}", getattr(theirs.detach(), what), getattr(ours, what))
            self.equal(f"{name}.stride()", theirs.stride(), ours.stride())
            theirs, ours = theirs.detach().resolve_conj(), ours.cpu().resolve_conj()
            exact = not theirs.numel() or bool(theirs.abs().max() <= LARGEST_EXACT)
            tolerance = 0.0 if exact else 1e-5
            if not torch.allclose(ours, theirs, rtol=tolerance, atol=0.0, equal_nan=True):
                self.fail(f"{name} is\n{ours}\non {self.device}, but on the CPU\n{theirs}")


class GradientProgram(random_programs.Program):
    """Draws lines that have a gradient, or that autograd refuses."""

    leaves = 0

    def readable(self) -> dict[str, torch.Tensor]:
        return {name: t for name, t in super().readable().items() if not isinstance(history(t), str)}

    def create(self, x: int, y: int, z: int) -> None:
        leaf, name = f"a{self.leaves}", self.new_name()
        self.leaves += 1
        sizes, strides = DENSE[(0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9)[z % 11]]
        made = f"values({sizes}, {DTYPES[y % 3 == 1]}, {x % 5})"
        if strides == (1, 6):
            made += ".t().contiguous().t()"
        self.pair.run(f"{leaf} = {made}.to(device, copy=True){'.requires_grad_()' if y % 5 else ''}")
        self.pair.run(
            f"{name} = {leaf}{('.view_as(' + leaf + ')', ' * 2', '.clone()')[x % 3]}", self.mark(name)
        )
        self.retire()

    def chains(self, t: torch.Tensor) -> Sequence[tuple[str, ...]]:
        """Without those that show the bits of a number, the sign of zero among them."""
        return [chain for chain in super().chains(t) if not any(".view(torch." in view for view in chain)]

    def alias(self, name: str, y: int, z: int) -> None:
        self.pair.run(f"{self.new_name()} = {name}{('.detach()', '.view_as(' + name + ')')[y % 2]}")

    def write_without_grad(self, name: str, y: int, z: int) -> None:
        t = self.cpu(name)
        if self.writable(t) and self.tame(t):
            self.pair.run(f"with torch.no_grad(): {name}.add_(2)")

    def compute(self, name: str, y: int, z: int) -> None:
        """A result whose gradient needs what it was computed from."""
        t = self.cpu(name)
        if t.dtype not in DTYPES or not self.exact(t):
            return
        form = (
            f"{name} * {name}",
            f"{name} * {SCALARS[z % 4]}",
            f"torch.relu({name})" if not t.is_complex() else f"{name}.conj() * {name}",
            f"{name} + {name}.conj()",
            f"torch.cat([{name}, {name}])" if t.dim() else f"{name} + 1",
            f"torch.where({name} == 2, {name}, 1)",
        )[y % 6]
        made = eval(form, {"torch": torch, name: t.detach()})
        if (tuple(made.shape), made.stride()) in POOL:
            new = self.new_name()
            self.pair.run(f"{new} = {form}", self.mark(new))

    def finish(self, twice: bool) -> None:
        results = [name for name, t in self.readable().items() if t.requires_grad and t.numel()]
        leaves = [
            name
            for name, t in self.pair.cpu.names.items()
            if isinstance(t, torch.Tensor) and name[0] == "a" and t.requires_grad
        ]
        if not (results and leaves):
            return
        total = " + ".join(f"weighted_sum({name}, {seed})" for seed, name in enumerate(results))
        gradients = ", ".join(f"g{leaf[1:]}" for leaf in leaves)
        wanted = f"[{', '.join(leaves)}], allow_unused=True, create_graph={twice}"
        if not self.pair.run(f"{gradients}, = torch.autograd.grad({total}, {wanted})"):
            return
        self.pair.compare_gradients()
        moving = [f"g{leaf[1:]}" for leaf in leaves]
        moving = [name for name in moving if (g := self.cpu(name)) is not None and g.requires_grad]
        if twice and moving:
            total = " + ".join(f"weighted_sum({name} * {name}, {seed})" for seed, name in enumerate(moving))
            if self.pair.run(f"{gradients}, = torch.autograd.grad({total}, {wanted})"):
                self.pair.compare_gradients()


KINDS = (
    *["view"] * 6,
    *["scalar_write"] * 2,
    *["tensor_write"] * 3,
    *["slice_write"] * 2,
    *["part_write"] * 2,
    *["compute"] * 3,
    "create",
    "as_strided",
    "alias",
    "write_without_grad",
    "drop",
)


def run(choices: list[tuple[str, int, int, int]], device: str = random_programs.DEVICE) -> None:
    """Draws and runs the program that the choices stand for; raises `random_programs.Mismatch`."""
    program = GradientProgram(GradientPair(device))
    for kind, x, y, z in choices:
        program.step(kind, x, y, z)
    program.finish(twice=choices[0][1] % 2 == 0)
