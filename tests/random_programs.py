"""Random programs over shared storages, run line by line on the CPU and on the device.

A program is Python text: every line creates a view, writes, copies, resizes, re-sets or reads. [`Program`]
draws the lines from a sequence of small integers (hypothesis shrinks those), looking only at the CPU's state;
[`Pair`] runs each line in two worlds and compares all live tensors after it. A failure prints the program,
which `replay` runs again.

What PyTorch leaves undefined is not drawn: values of uninitialised memory (tracked byte by byte), writes
through views that overlap themselves, operands that partly overlap what is written, conversions of floats out
of an integer's range.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from random_views import (
    DENSE,
    DTYPES,
    POOL,
    Defined,
    apply_suffixes,
    in_bounds,
    is_non_overlapping_and_dense,
    is_tame,
    overlaps_itself,
    raw_bytes,
    touched,
    transitions,
    values,
)

SCALARS = ("2", "-1", "3", "0.5", "True", "0", "torch.tensor(2)", "torch.tensor(0.5)")
MOST_TENSORS = 6

DEVICE = "tpu"


class Mismatch(AssertionError):
    """The device and the CPU differ."""


class World:
    """The variables of a program: t0, t1, ... on the device, h0, ... on the host, r a result."""

    def __init__(self, device: str, differentiates: bool = False) -> None:
        self.names: dict[str, object] = {"torch": torch, "values": values, "device": device}
        self.differentiates = differentiates

    def run(self, line: str) -> type[Exception] | None:
        self.names.pop("r", None)
        try:
            with torch.set_grad_enabled(self.differentiates), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(line, self.names)
        except Exception as error:
            self.error = error
            return type(error)
        return None

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: t for name, t in self.names.items() if isinstance(t, torch.Tensor) and name[0] in "thr"}


def same_storages(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    """Per tensor, the position of the first one with the same storage."""
    seen: dict[int, int] = {}
    return {name: seen.setdefault(t.untyped_storage()._cdata, len(seen)) for name, t in tensors.items()}


def history(t: torch.Tensor) -> tuple[bool, str | None] | str:
    """What autograd knows of a tensor. Some views may not be asked any more once their base was written."""
    try:
        return t.is_leaf, t.grad_fn and t.grad_fn.name()
    except RuntimeError as error:
        return str(error)


@dataclass
class Pair:
    """Both worlds and the lines they have run."""

    device: str = DEVICE
    lines: list[str] = field(default_factory=list)
    differentiates: bool = False

    def __post_init__(self) -> None:
        self.cpu = World("cpu", self.differentiates)
        self.tpu = World(self.device, self.differentiates)
        self.defined = Defined()

    def run(self, line: str, effect: Callable[[], None] = lambda: None) -> bool:
        """Runs the line in both worlds and compares them; `effect` follows if it succeeds."""
        self.lines.append(line)
        expected = self.cpu.run(line)
        actual = self.tpu.run(line)
        if expected is not actual:
            self.fail(
                f"CPU: {self.outcome(self.cpu, expected)}\n{self.device}: {self.outcome(self.tpu, actual)}"
            )
        if expected is None:
            self.defined.follow_sizes()
            effect()
            self.forget_nans()
        self.compare()
        return expected is None

    def forget_nans(self) -> None:
        """Which NaN a bfloat16 is may change when it moves: XLA's CPU compiler moves them as float32."""
        for t in self.cpu.tensors().values():
            if t.dtype == torch.bfloat16 and in_bounds(t):
                self.defined.set(t, self.defined.of(t) & ~t.isnan().numpy())

    @staticmethod
    def outcome(world: World, raised: type[Exception] | None) -> str:
        return "no exception" if raised is None else f"{raised.__name__}: {world.error}"

    def fail(self, message: str) -> None:
        raise Mismatch(f"after the last line of\n\n{chr(10).join(self.lines)}\n\n{message}")

    def compare(self) -> None:
        cpu, tpu = self.cpu.tensors(), self.tpu.tensors()
        self.equal("names", list(cpu), list(tpu))
        self.equal("storages", same_storages(cpu), same_storages(tpu))
        # Complex tensors first: see `forget_signs_of_zeros`.
        for name, expected in sorted(cpu.items(), key=lambda item: not item[1].is_complex()):
            self.compare_tensor(name, expected, tpu[name])
        if not isinstance(cpu.get("r"), torch.Tensor):
            self.equal("the result", self.cpu.names.get("r"), self.tpu.names.get("r"))

    def compare_tensor(self, name: str, expected: torch.Tensor, actual: torch.Tensor) -> None:
        self.equal(f"{name}.device", self.device if name[0] != "h" else "cpu", actual.device.type)
        for what in ("dtype", "shape", "_version"):
            self.equal(f"{name}.{what}", getattr(expected, what), getattr(actual, what))
        for what in ("stride", "storage_offset", "is_conj", "is_neg"):
            self.equal(f"{name}.{what}()", getattr(expected, what)(), getattr(actual, what)())
        self.equal(f"{name}'s history", *map(history, (expected, actual)))
        storages = expected.untyped_storage(), actual.untyped_storage()
        self.equal(f"{name}'s storage, bytes", *(s.nbytes() for s in storages))
        if expected.numel():
            starts = (t.data_ptr() - s.data_ptr() for t, s in zip((expected, actual), storages, strict=True))
            self.equal(f"{name}.data_ptr() in its storage", *starts)
        if not in_bounds(expected):
            return
        mask = self.defined.of(expected)
        if not mask.any():
            return
        try:
            on_host = actual.detach().cpu()
        except Exception as error:
            self.fail(f"{name}.cpu() raises {type(error).__name__}: {error}")
        if expected.is_complex():
            mask = self.forget_signs_of_zeros(expected.detach(), on_host, mask)
        if not (self.same_elements(expected.detach(), on_host) | ~mask).all():
            self.fail(f"{name} is\n{on_host}\non {self.device}, but on the CPU\n{expected.resolve_conj()}")

    def forget_signs_of_zeros(
        self, expected: torch.Tensor, actual: torch.Tensor, mask: np.ndarray
    ) -> np.ndarray:
        """What of `mask` is left. They depend on how the CPU's vector code computes with complex numbers."""
        signs = (expected == actual).numpy() & ~self.same_elements(expected, actual)
        if (signs & mask).any():
            self.defined.set(expected, mask & ~signs)
        return mask & ~signs

    def same_elements(self, expected: torch.Tensor, actual: torch.Tensor) -> np.ndarray:
        return (raw_bytes(expected) == raw_bytes(actual)).all(-1)

    def equal(self, what: str, expected: object, actual: object) -> None:
        if expected != actual:
            self.fail(f"{what}: {expected} on the CPU, {actual} on {self.device}")


def replay(text: str, device: str = DEVICE) -> None:
    """Runs a program that a failure printed. Uninitialised values that it leaves are compared as zeros."""
    pair = Pair(device)
    for line in text.strip().splitlines():
        pair.run(line.strip())


class Program:
    """Draws the next line from three small integers and the CPU's state."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.count = 0

    def step(self, kind: str, x: int, y: int, z: int) -> None:
        """Runs one line, or none when this one would be undefined."""
        tensors = self.readable()
        if kind == "create" or not tensors:
            self.create(x, y, z)
            return
        names = list(tensors)
        getattr(self, kind)(names[x % len(names)], y, z)
        self.retire()

    def readable(self) -> dict[str, torch.Tensor]:
        return {name: t for name, t in self.tensors().items() if in_bounds(t)}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: t for name, t in self.pair.cpu.tensors().items() if name[0] == "t"}

    def cpu(self, name: str) -> torch.Tensor:
        return self.pair.cpu.names[name]

    def new_name(self) -> str:
        self.count += 1
        return f"t{self.count - 1}"

    def retire(self) -> None:
        names = list(self.tensors())
        if len(names) > MOST_TENSORS:
            self.pair.run(f"del {names[0]}")

    def other(self, y: int) -> str:
        names = list(self.readable())
        return names[y % len(names)]

    def writable(self, t: torch.Tensor) -> bool:
        # Stride 0 raises on both sides; other overlap is undefined.
        return 0 in [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] or not overlaps_itself(t)

    @staticmethod
    def scalar(t: torch.Tensor, z: int) -> str:
        # A CPU tensor fills one of an accelerator but is copied to one of the CPU: expanded ones refuse that.
        return SCALARS[z % (6 if overlaps_itself(t) else len(SCALARS))]

    def can_write_from(self, dst: torch.Tensor, src: torch.Tensor) -> bool:
        if dst.untyped_storage()._cdata != src.untyped_storage()._cdata or not dst.numel() or not src.numel():
            return True
        exactly = (dst.storage_offset(), dst.stride(), dst.shape, dst.dtype)
        if exactly == (src.storage_offset(), src.stride(), src.shape, src.dtype):
            return True
        # PyTorch raises if both are dense, and computes something otherwise.
        dense = all(is_non_overlapping_and_dense(t) for t in (dst, src))
        written = (touched(dst)[..., None] + np.arange(dst.itemsize)).ravel()
        read = (touched(src)[..., None] + np.arange(src.itemsize)).ravel()
        return dense or not np.intersect1d(written, read).size

    def exact(self, *tensors: torch.Tensor, dtypes: tuple[torch.dtype, ...] = ()) -> bool:
        """Whether arithmetic among the tensors and others of `dtypes` has one answer."""
        mixed = {d.is_floating_point or d.is_complex for d in (*dtypes, *(t.dtype for t in tensors))}
        # The CPU rounds integers to the dtype of the floats that they meet, XLA not before the end.
        most = 256 if len(mixed) == 2 else None
        return all(self.pair.defined.all(t) and is_tame(t, most) for t in tensors)

    def tame(self, t: torch.Tensor) -> bool:
        """Of the elements that are defined."""
        return is_tame(t.masked_fill(~torch.from_numpy(self.pair.defined.of(t)), 0))

    def converts(self, src: torch.Tensor, dst: torch.dtype) -> bool:
        if src.dtype == dst:
            return True
        if not self.exact(src, dtypes=(dst,)):
            return False
        unsigned = dst == torch.uint8 and (src.dtype.is_floating_point or src.dtype.is_complex)
        return not (
            unsigned
            and bool((torch.view_as_real(src.resolve_conj()) if src.is_complex() else src).lt(0).any())
        )

    def mark(self, name: str, mask: np.ndarray | bool = True) -> Callable[[], None]:
        return lambda: self.pair.defined.set(self.cpu(name), mask)

    def masks(self, *tensors: torch.Tensor) -> np.ndarray | bool:
        masks = [self.pair.defined.of(t) for t in tensors]
        try:
            return np.logical_and.reduce(np.broadcast_arrays(*masks))
        except ValueError:
            return True  # sizes that do not broadcast: the line raises

    def create(self, x: int, y: int, z: int) -> None:
        name = self.new_name()
        dtype = DTYPES[(0, 0, 1, 2, 3, 4, 0, 5, 6)[y % 9]]
        if x % 4 == 0:
            sizes, strides = POOL[z % len(POOL)]
            if 0 in strides:
                sizes, strides = POOL[0]
            line = f"{name} = torch.empty_strided({sizes}, {strides}, dtype={dtype}, device=device)"
            self.pair.run(line)
        else:
            sizes, strides = DENSE[(0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9)[z % 11]]
            made = f"values({sizes}, {dtype}, {x % 5})"
            if len(sizes) == 4:
                made += ".contiguous(memory_format=torch.channels_last)"
            elif strides == (1, 6):
                made += ".t().contiguous().t()"
            self.pair.run(f"{name} = {made}.to(device)", self.mark(name))
        self.retire()

    def view(self, name: str, y: int, z: int) -> None:
        chains = self.chains(self.cpu(name))
        if chains:
            new = self.new_name()
            self.pair.run(f"{new} = {apply_suffixes(name, chains[(y * 64 + z) % len(chains)])}")

    def chains(self, t: torch.Tensor) -> Sequence[tuple[str, ...]]:
        return transitions(tuple(t.shape), t.stride(), t.dtype, t.is_conj(), t.is_neg())

    def as_strided(self, name: str, y: int, z: int) -> None:
        t = self.cpu(name)
        sizes, strides = POOL[y % len(POOL)]
        span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        room = t.untyped_storage().nbytes() // t.itemsize - span
        if room >= 0:
            self.pair.run(f"{self.new_name()} = {name}.as_strided({sizes}, {strides}, {z % (room + 1)})")

    def alias(self, name: str, y: int, z: int) -> None:
        self.pair.run(f"{self.new_name()} = {name}{('.detach()', '.data', '.view_as(' + name + ')')[y % 3]}")

    def scalar_write(self, name: str, y: int, z: int) -> None:
        t = self.cpu(name)
        if not self.writable(t):
            return
        method = ("add_", "mul_", "sub_", "fill_", "add_", "fill_", "zero_")[y % 7]
        scalar = self.scalar(t, z)
        if method == "zero_":
            self.pair.run(f"{name}.zero_()", self.mark(name))
        elif method == "fill_" or not self.tame(t):
            self.pair.run(f"{name}.fill_({'7' if t.dtype == torch.uint8 else scalar})", self.mark(name))
        else:
            self.pair.run(f"{name}.{method}({scalar})")

    def tensor_write(self, name: str, y: int, z: int) -> None:
        dst, source = self.cpu(name), self.other(y)
        src = self.cpu(source)
        if not self.writable(dst) or not self.can_write_from(dst, src):
            return
        method = ("copy_", "add_", "mul_", "sub_", "copy_", "add_")[z % 6]
        if method == "copy_":
            if self.converts(src, dst.dtype):
                self.pair.run(f"{name}.copy_({source})", self.mark(name, self.masks(src)))
        elif self.exact(src, dtypes=(dst.dtype,)) and self.tame(dst):
            extra = ", alpha=2" if method == "add_" and z % 4 == 1 and dst.dtype != torch.bool else ""
            self.pair.run(f"{name}.{method}({source}{extra})")

    def slice_write(self, name: str, y: int, z: int) -> None:
        t = self.cpu(name)
        if not t.dim() or not self.writable(t):
            return
        index = ("[1:3]", "[0]", "[..., 1::2]", "[-1]", "[..., 1]", "[1:]")[y % 6]
        if z % 3 == 0:
            line = f"{name}{index}.add_({SCALARS[z % 4]})" if self.tame(t) else f"{name}{index} = 1"
        else:
            line = f"{name}{index} = {5 if t.dtype == torch.uint8 else self.scalar(t, z)}"

        def effect() -> None:
            if ".add_" not in line:
                self.pair.defined.set(eval(f"t{index}", {"t": t}))

        self.pair.run(line, effect)

    def part_write(self, name: str, y: int, z: int) -> None:
        """Through the parts, the conjugate or the negative of a tensor."""
        t = self.cpu(name)
        if not self.writable(t) or not self.tame(t) or not (t.is_complex() or t.dtype == torch.float32):
            return
        scalar = ("2", "-1", "3", "0.5")[z % 4]
        if not t.is_complex():
            self.pair.run(f"{name}._neg_view().{('add_', 'mul_')[y % 2]}({scalar})")
            return
        line = (
            f"{name}.real = {scalar}",
            f"{name}.imag.mul_({scalar})",
            f"{name}.conj().imag.add_({scalar})",
            f"{name}.conj().mul_({scalar}j)",
            f"{name}.conj_physical_()",
            f"{name}._neg_view().add_({scalar})",
            f"{name}.imag = {name}.real",
        )[y % 7]
        self.pair.run(line)

    def from_host(self, name: str, y: int, z: int) -> None:
        t = self.cpu(name)
        if not self.writable(t):
            return
        dtype = t.dtype if y % 3 else DTYPES[z % len(DTYPES)]
        sizes = tuple(t.shape)
        made = f"values({sizes}, {dtype}, {z % 5})"
        if y % 4 == 1 and sizes:
            made = f"values({(*sizes, 2)}, {dtype}, {z % 5})[..., 1]"
        elif y % 4 == 2 and sizes:
            made = f"values({sizes[1:]}, {dtype}, {z % 5})"
        if self.converts(eval(made, {"values": values, "torch": torch}), t.dtype):
            self.pair.run(f"{name}.copy_({made})", self.mark(name))

    def to_host(self, name: str, y: int, z: int) -> None:
        t = self.cpu(name)
        dtype = t.dtype if y % 2 else DTYPES[z % len(DTYPES)]
        if self.converts(t, dtype):
            made = (
                f"torch.zeros({tuple(t.shape)}, dtype={dtype})" if z % 2 else f"{name}.to('cpu', copy=True)"
            )
            masks = self.masks(t)
            self.pair.run(f"h0 = {made}", self.mark("h0", masks if not z % 2 else True))
            if z % 2:
                self.pair.run(f"h0.copy_({name})", self.mark("h0", masks))
            self.pair.run("del h0")

    def convert(self, name: str, y: int, z: int) -> None:
        t = self.cpu(name)
        dtype = DTYPES[y % len(DTYPES)]
        if self.converts(t, dtype):
            form = (f"to({dtype})", f"to({dtype}, copy=True)", "clone()", "contiguous()")[z % 4]
            made = eval(f"t.{form}", {"torch": torch, "t": t})
            new = self.new_name() if (tuple(made.shape), made.stride()) in POOL else "r"
            self.pair.run(f"{new} = {name}.{form}", self.mark(new, self.masks(t)))

    def set(self, name: str, y: int, z: int) -> None:
        t, source = self.cpu(name), self.other(y)
        src = self.cpu(source)
        form = z % 5
        if form == 0:
            self.pair.run(f"{name}.set_({source})")
        elif form == 1 and src.untyped_storage().nbytes() // t.itemsize in (0, 1, 24, 48):
            self.pair.run(f"{name}.set_({source}.untyped_storage())")
        elif form == 4 and z % 4 == 0:
            self.pair.run(f"{name}.set_()")
        else:
            sizes, strides = POOL[y % len(POOL)]
            span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
            room = src.untyped_storage().nbytes() // t.itemsize - span
            # Beyond the end PyTorch resizes the storage.
            offset = z % (room + 1) if room >= 0 else 0
            self.pair.run(f"{name}.set_({source}.untyped_storage(), {offset}, {sizes}, {strides})")

    def resize(self, name: str, y: int, z: int) -> None:
        sizes, _ = POOL[y % len(POOL)]
        if y % 7 == 0:
            sizes = (0,)
        form = ", memory_format=torch.channels_last" if len(sizes) == 4 and z % 2 else ""
        self.pair.run(f"{name}.resize_({sizes}{form})")

    def resize_storage(self, name: str, y: int, z: int) -> None:
        storage = f"{name}.untyped_storage()"
        nbytes = self.cpu(name).untyped_storage().nbytes()
        if y % 3 == 0:
            self.pair.run(f"{storage}.resize_({nbytes // 2})")
        elif y % 3 == 1:
            self.pair.run(f"{storage}.resize_({nbytes * 2 if nbytes < 400 else nbytes})")
            return
        else:
            self.pair.run(f"{storage}.resize_(0)")
        self.pair.run(f"{storage}.resize_({nbytes})")

    def out(self, name: str, y: int, z: int) -> None:
        """`name` is the output."""
        dst, source = self.cpu(name), self.other(y)
        src = self.cpu(source)
        second = self.other(y + z % 2)
        other = self.cpu(second)
        if not self.writable(dst) or not self.exact(src, other, dtypes=(dst.dtype,)):
            return
        if dst.shape != src.shape and not all(self.apart(dst, t) for t in (src, other)):
            return  # resized, it may overlap what is read
        if not all(self.can_write_from(dst, t) for t in (src, other)):
            return
        form = z % 6
        if form in (0, 1):
            function = ("add", "mul")[form]
            self.pair.run(f"torch.{function}({source}, {second}, out={name})", self.mark(name))
        elif form == 2 and src.dtype == dst.dtype and src.dtype != torch.bool and not src.dtype.is_complex:
            self.pair.run(f"torch.neg({source}, out={name})", self.mark(name))
        elif form == 3 and src.dim() and self.apart(dst, src):
            self.pair.run(f"torch.sum({source}, 0, out={name})", self.mark(name))
        elif form == 4:
            self.pair.run(f"torch.add({source}, 2, out={name})", self.mark(name))
        elif src.dim() and self.apart(dst, src):
            new = self.new_name()
            self.pair.run(f"{new} = torch.empty(0, dtype={src.dtype}, device=device)")
            self.pair.run(f"torch.mul({source}, 2, out={new})", self.mark(new))

    @staticmethod
    def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a.untyped_storage()._cdata != b.untyped_storage()._cdata

    def read(self, name: str, y: int, z: int) -> None:
        t = self.cpu(name)
        if not self.exact(t, dtypes=(torch.float32,)):
            return
        form = y % 5
        if form == 0:
            self.pair.run(f"r = {name}.sum()", self.mark("r"))
        elif form == 4 and (t.is_complex() or t.dtype == torch.float32):
            made = ("resolve_conj()", "resolve_neg()", "conj().sum()", "real.sum()", "clone()", "conj() * 2")[
                z % 6
            ]
            self.pair.run(f"r = {name}.{made}", self.mark("r"))
        elif form == 1 and t.dim():
            self.pair.run(f"r = {name}.sum({z % t.dim()})", self.mark("r"))
        elif form == 2 and t.numel():
            index = "".join(f"[{z % n}]" for n in t.shape)
            self.pair.run(f"r = {name}{index}.item()")
        else:
            self.pair.run(f"r = {name} * {SCALARS[z % len(SCALARS)]}", self.mark("r"))

    def swap(self, name: str, y: int, z: int) -> None:
        self.pair.run(f"{name}.data = {self.other(y)}")

    def drop(self, name: str, y: int, z: int) -> None:
        if len(self.tensors()) > 1:
            self.pair.run(f"del {name}")


KINDS = (
    *["view"] * 6,
    *["scalar_write"] * 2,
    *["tensor_write"] * 3,
    *["slice_write"] * 2,
    *["part_write"] * 2,
    *["read"] * 2,
    *["out"] * 2,
    "create",
    "as_strided",
    "alias",
    "from_host",
    "to_host",
    "convert",
    "set",
    "resize",
    "resize_storage",
    "swap",
    "drop",
)


def run(choices: list[tuple[str, int, int, int]], device: str = DEVICE) -> Pair:
    """Draws and runs the program that the choices stand for; raises [`Mismatch`]."""
    pair = Pair(device)
    program = Program(pair)
    for kind, x, y, z in choices:
        program.step(kind, x, y, z)
    return pair
