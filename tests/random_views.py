"""The tensors of random programs: sizes and strides, the views between them, and what their memory holds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

# Sizes and strides of every tensor that a program keeps. Few of them, chosen so that most views of one are
# another: programs meet the same signatures again.
POOL: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((24,), (1,)),
    ((4, 6), (6, 1)),
    ((6, 4), (1, 6)),
    ((4, 3), (6, 2)),
    ((2, 6), (12, 1)),
    ((2, 6), (6, 1)),
    ((6,), (1,)),
    ((4,), (6,)),
    ((4,), (7,)),
    ((2, 2, 6), (12, 6, 1)),
    ((4, 12), (12, 1)),
    ((4, 3), (3, 1)),
    ((5, 2), (1, 1)),
    ((4, 6), (0, 1)),
    ((2, 2, 6), (0, 6, 1)),
    ((4, 3), (1, 0)),
    ((4, 3), (2, 1)),
    ((4, 6, 2), (12, 2, 1)),
    ((4, 6), (12, 2)),
    ((6,), (2,)),
    ((1, 2, 3, 4), (24, 1, 8, 2)),
    ((), ()),
)


def is_non_overlapping_and_dense(t: torch.Tensor) -> bool:
    expected = 1
    for n, stride in sorted(
        ((n, s) for n, s in zip(t.shape, t.stride(), strict=True) if n != 1), key=lambda d: d[1]
    ):
        if stride != expected:
            return False
        expected *= n
    return True


DENSE = tuple(g for g in POOL if is_non_overlapping_and_dense(torch.empty_strided(*g, device="meta")))
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64, torch.int32, torch.bool)


def values(sizes: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A host tensor of small, exactly representable numbers."""
    count = math.prod(sizes)
    numbers = (torch.arange(count) * 7 + seed * 5) % 13
    if dtype.is_complex:
        return torch.complex(numbers.float(), (numbers - 4).float()).to(dtype).view(sizes)
    if dtype == torch.bool:
        return (numbers % 2 == 0).view(sizes)
    if dtype != torch.uint8:
        numbers = numbers - 3
    return numbers.to(dtype).view(sizes)


def view_expressions(t: torch.Tensor) -> Iterator[str]:
    """Suffixes that make a view of `t`; some of them raise."""
    rank = t.dim()
    for d in range(rank):
        prefix = ":, " * d
        n = t.shape[d]
        for i in range(min(n, 6)):
            yield f"[{prefix}{i}]"
        yield f".select({d}, -1)"
        for text in ("::2", "1::2", "1:3", "2:4", f"{n // 2}:", f":{n // 2}", "0:1", "1:", "-2:"):
            yield f"[{prefix}{text}]"
        yield f".narrow({d}, {min(1, n)}, {max(n - 2, 0)})"
        yield from (f".chunk(2, {d})[{k}]" for k in (0, 1))
        yield from (f".unfold({d}, {size}, {step})" for size, step in ((2, 1), (3, 3), (2, 2)) if size <= n)
        yield f".unsqueeze({d})"
        yield f".squeeze({d})"
        yield from (f".transpose({d}, {e})" for e in range(d + 1, rank))
    if rank == 2:
        yield ".t()"
        yield from (f".diagonal({k})" for k in (0, 1, -1))
    if rank == 3:
        yield ".permute(2, 0, 1)"
    if rank == 4:
        yield from (".permute(0, 2, 3, 1)", ".permute(0, 3, 1, 2)")
    yield from (
        f".view({sizes})" for sizes in ((24,), (4, 6), (2, 2, 6), (2, 6), (4, 3), (), (1, 2, 3, 4), (4, 12))
    )
    yield from (f".expand({sizes})" for sizes in ((4, 6), (2, 6), (4, 3), (2, 2, 6)))
    if t.dtype == torch.float32:
        yield "._neg_view()"
    if t.dtype.is_complex:
        yield from (".conj()", ".real", ".imag")
        yield "" if t.is_conj() else ".view_as_real()"
    yield ".view_as_complex()"
    yield from (f".view({dtype})" for dtype in (*DTYPES, torch.float64, torch.int16))


FUNCTIONS = (".view_as_real()", ".view_as_complex()")


def apply_suffixes(name: str, suffixes: tuple[str, ...]) -> str:
    for suffix in suffixes:
        # These two are functions only.
        name = f"torch{suffix[:-2]}({name})" if suffix in FUNCTIONS else name + suffix
    return name


@functools.cache
def view_function(suffix: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return eval(f"lambda t: {apply_suffixes('t', (suffix,))}", {"torch": torch})


@functools.cache
def transitions(sizes, strides, dtype, conj: bool, neg: bool) -> tuple[tuple[str, ...], ...]:
    """Chains of one or two views that lead from such a tensor to one of the pool's."""
    pool = set(POOL)
    found: dict[object, list[tuple[str, ...]]] = {}

    def start() -> torch.Tensor:
        t = torch.empty(128, dtype=dtype).as_strided(sizes, strides)
        t = t.conj() if conj else t
        return t._neg_view() if neg else t

    def views(t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        for suffix in view_expressions(t):
            try:
                yield suffix, view_function(suffix)(t)
            except Exception:
                continue

    def note(chain: tuple[str, ...], t: torch.Tensor) -> None:
        if (tuple(t.shape), t.stride()) in pool and t.dtype in (*DTYPES, torch.float64, torch.int16):
            key = (tuple(t.shape), t.stride(), t.dtype, t.is_conj(), t.is_neg())
            found.setdefault(key, []).append(chain)

    for first, middle in views(start()):
        note((first,), middle)
        if (tuple(middle.shape), middle.stride()) not in pool:
            for second, end in views(middle):
                note((first, second), end)
    # As many ways to each end as there are offsets, not as there are spellings: round robin over the ends.
    result: list[tuple[str, ...]] = []
    for round_ in range(6):
        result += [chains[round_ * len(chains) // 6] for chains in found.values() if round_ < len(chains)]
    return tuple(result)


def touched(t: torch.Tensor) -> np.ndarray:
    """Byte numbers in the storage of each element's first byte, in the tensor's sizes."""
    index = np.full(tuple(t.shape), t.storage_offset() * t.itemsize, dtype=np.int64)
    for d, stride in enumerate(t.stride()):
        steps = np.arange(t.shape[d], dtype=np.int64) * stride * t.itemsize
        index += steps.reshape([-1 if e == d else 1 for e in range(t.dim())])
    return index


def in_bounds(t: torch.Tensor) -> bool:
    if t.numel() == 0:
        return True
    last = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.itemsize <= t.untyped_storage().nbytes()


def overlaps_itself(t: torch.Tensor) -> bool:
    index = touched(t)
    return len(np.unique(index)) != index.size


class Defined:
    """Which bytes of each storage have been written since they were allocated."""

    def __init__(self) -> None:
        # The storages are kept alive: their identity must not be used again.
        self.storages: dict[int, tuple[torch.UntypedStorage, np.ndarray]] = {}

    def follow_sizes(self) -> None:
        """To be called after every line: bytes that a storage loses and gets back are undefined."""
        for storage, _ in list(self.storages.values()):
            self.bytes_of(storage)

    def bytes_of(self, storage: torch.UntypedStorage) -> np.ndarray:
        _, known = self.storages.get(storage._cdata, (storage, np.zeros(0, dtype=bool)))
        nbytes = storage.nbytes()
        if len(known) != nbytes:
            grown = np.zeros(nbytes, dtype=bool)
            grown[: min(nbytes, len(known))] = known[:nbytes]
            known = grown
        self.storages[storage._cdata] = (storage, known)
        return known

    def of(self, t: torch.Tensor) -> np.ndarray:
        """Per element, whether its value may be looked at."""
        known, index = self.bytes_of(t.untyped_storage()), touched(t)
        mask = np.ones(index.shape, dtype=bool)
        for k in range(t.itemsize):
            mask &= known[index + k]
        if t.dtype == torch.bool and t.numel():
            # A byte that is neither 0 nor 1 is no bool: C++ leaves it undefined.
            mask &= raw_bytes(t).reshape(mask.shape) <= 1
        return mask

    def set(self, t: torch.Tensor, mask: np.ndarray | bool = True) -> None:
        known, index = self.bytes_of(t.untyped_storage()), touched(t)
        mask = np.broadcast_to(mask, index.shape)
        for k in range(t.itemsize):
            known[index + k] = mask

    def all(self, t: torch.Tensor) -> bool:
        return bool(self.of(t).all())


def raw_bytes(t: torch.Tensor) -> np.ndarray:
    """The bytes of the value, row-major: [..., itemsize]."""
    # A copy: numpy() makes a storage unresizable.
    t = t.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return t.view(-1).view(torch.uint8).numpy().reshape(*t.shape, t.itemsize)


def is_tame(t: torch.Tensor, most: int | None = None) -> bool:
    """Whether arithmetic is exact in every order: floats are small multiples of 1/8, integers <= most."""
    if not (t.dtype.is_floating_point or t.dtype.is_complex):
        return most is None or bool(((t >= -most) & (t <= most)).all() if t.dtype != torch.bool else True)
    t = torch.view_as_real(t.resolve_conj()) if t.dtype.is_complex else t
    wide = t.to(torch.float64)
    return bool((wide.abs() <= 4096).all() and (wide * 8 == (wide * 8).round()).all())
