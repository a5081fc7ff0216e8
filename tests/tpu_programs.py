"""The programs that eager operators run, and what a TPU compiler makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from torch_pjrt import _core, compile_for_topology


class Program(NamedTuple):
    """operator: "aten::mm"; text: StableHLO."""

    operator: str
    text: str


@contextmanager
def recorded() -> Iterator[list[Program]]:
    """The programs of the operators that run inside, known when it ends."""
    programs: list[Program] = []
    _core.record_programs(True)
    try:
        yield programs
    finally:
        programs += [Program(*program) for program in _core.record_programs(False)]


def run_recorded(call: Callable[[], Any]) -> tuple[Any, list[Program]]:
    """The result of `call`, and the programs that it ran."""
    with recorded() as programs:
        result = call()
    return result, programs


class Instruction(NamedTuple):
    """One instruction of an optimised module, as `_core.compile_for_topology` lists them."""

    computation: str
    name: str
    opcode: str
    shape: str
    operands: list[str]
    dimensions: list[int]
    calls: list[str]


@dataclass(frozen=True)
class Shape:
    """An array and its place: `bf16[8,128]{1,0:T(8,128)(2,1)S(1)}`.

    order: dimensions, slowest first. tiles: the tiling's text. space: 0 is HBM, others are on the chip.
    """

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...]
    tiles: str
    space: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        match = re.match(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?", text)
        assert match, text
        dtype, dims, order, notes = match.groups()
        space = re.search(r"S\((\d+)\)", notes or "")
        return cls(
            dtype,
            _numbers(dims),
            _numbers(order or "")[::-1],
            re.sub(r"S\(\d+\)", "", notes or ""),
            int(space[1]) if space else 0,
        )

    def tile(self) -> tuple[int, ...]:
        """The outermost tiling."""
        match = re.match(r"T\(([\d,]+)\)", self.tiles)
        return _numbers(match[1]) if match else ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def instructions(text: str, topology: str) -> list[Instruction]:
    """Compile StableHLO for a TPU and list the optimised module."""
    return [Instruction(*item) for item in compile_for_topology(text, topology)["instructions"]]


def movements(module: list[Instruction]) -> list[str]:
    """Instructions, inside fusions too, that rearrange or duplicate data: reshape, transpose and copy, as
    "opcode operand -> result". Those that move nothing are left out:

    - a bitcast is another name for the same bytes, and so is a reshape or a transpose that the layouts of its
      operand and result make one (inside fusions XLA leaves those as they are);
    - a copy that keeps the layout and changes the memory is a prefetch into the chip's memory, or the way
      back: the bytes had to be read or written anyway, once;
    - one element is no data: view offsets and numbers go to scalar memory.
    """
    shapes = {(i.computation, i.name): i.shape for i in module}
    found = []
    for instruction in module:
        if instruction.opcode not in ("reshape", "transpose", "copy", "copy-start"):
            continue
        # The result of a copy-start is (destination, source, context).
        shape = Shape.parse(instruction.shape.removeprefix("("))
        source = Shape.parse(shapes[instruction.computation, instruction.operands[0]])
        free = {"reshape": _same_rows, "transpose": _same_order}.get(instruction.opcode, _prefetches)
        if prod(shape.dims) > 1 and not free(source, shape, instruction.dimensions):
            opcode = instruction.opcode.removesuffix("-start")
            found.append(f"{opcode} {_without_space(source)} -> {_without_space(shape)}")
    return sorted(found)


def _without_space(shape: Shape) -> str:
    order = ",".join(str(dim) for dim in reversed(shape.order))
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]{{{order}}}"


def _prefetches(source: Shape, result: Shape, _: list[int]) -> bool:
    same = (source.order, source.tiles) == (result.order, result.tiles)
    return same and source.space != result.space


def _same_order(source: Shape, result: Shape, permutation: list[int]) -> bool:
    order = [permutation[dim] for dim in result.order]
    return [d for d in order if source.dims[d] != 1] == [d for d in source.order if source.dims[d] != 1] and (
        source.tiles == result.tiles
    )


def _same_rows(source: Shape, result: Shape, _: list[int]) -> bool:
    """Both lie in memory in logical order, and no tile holds rows that the other keeps apart."""

    def in_order(shape: Shape) -> bool:
        order = [dim for dim in shape.order if shape.dims[dim] != 1]
        return order == sorted(order)

    if not (in_order(source) and in_order(result) and source.tiles == result.tiles):
        return False
    if source.dims == result.dims:
        return True
    tile = source.tile()
    if len(tile) != 2 or len(source.dims) < 2 or len(result.dims) < 2:
        return False
    rows = (source.dims[-2], result.dims[-2])
    return source.dims[-1] == result.dims[-1] and all(count % tile[0] == 0 for count in rows)
