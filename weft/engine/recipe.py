"""Repeated calls that run at several places: which pieces each run reads and which it makes, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import torch

from ..runtime.holding import Pieces, holding
from ..sharding.layout import Layout
from .form import form_of
from .schedule import Place, Read, Schedule
from .sharded import ShardedTensor, made
from .strides.result_strides import ResultStrides, Strided
from .value import Value

__all__ = ["Recipe", "recipe_for"]

Reader = Callable[[Pieces], Sequence[torch.Tensor]]
"""Gives what each run reads of one argument."""


@final
@dataclass(frozen=True, slots=True)
class Made:
    """One result: how it lies, and which run makes each of its pieces."""

    layout: Layout
    shape: tuple[int, ...]
    runs: tuple[int, ...]

    def put_together(self, values: Sequence[torch.Tensor], strided: Strided | None) -> ShardedTensor:
        """The tensor of what the runs gave."""
        assert strided is not None
        first = values[self.runs[0]]
        form = form_of(self.layout, self.shape, strided.whole, first.dtype, first.device)
        return made(form, Value(strided.ordered(tuple([values[run] for run in self.runs]))))


@final
@dataclass(frozen=True, slots=True)
class Recipe:
    """A call that only reads, takes its arguments as they lie, and does the same with every device's part of them."""

    func: torch._ops.OpOverload
    op: Callable[..., object]
    """What runs on each part."""
    readers: tuple[tuple[int, Reader], ...]
    """For the arguments that are tensors, by position."""
    count: int
    made: tuple[Made, ...]
    strides: ResultStrides

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Runs it on other arguments of the same kind."""
        here = list(args)
        columns = [(at, read(args[at]._value.pieces)) for at, read in self.readers]  # type: ignore[attr-defined]
        results: list[Any] = []
        for run in range(self.count):
            for at, column in columns:
                here[at] = column[run]
            results.append(self.op(*here, **kwargs))
        strided = self.strides.of(self.func, args, kwargs, [args[at] for at, _ in self.readers])  # type: ignore[misc]
        if isinstance(results[0], torch.Tensor):
            return self.made[0].put_together(results, strided[0])
        outputs = zip(self.made, zip(*results, strict=True), strided, strict=True)
        return type(results[0])([made.put_together(of, strides) for made, of, strides in outputs])


def recipe_for(
    func: torch._ops.OpOverload,
    op: Callable[..., object],
    args: tuple[object, ...],
    schedule: Schedule,
    contiguous: bool,
) -> Recipe | None:
    """The recipe of a call, or None where a run makes only a part of a piece, or has nothing to read."""
    places = schedule.places
    if not places or any(part is not None for place in places for part in place.parts):
        return None
    if any(0 in region.shape for place in places for region in (*place.inputs, *place.outputs)):
        return None
    made = [_made(k, schedule) for k in range(len(schedule.outputs))]
    if any(each is None for each in made):
        return None
    positions = [at for at, x in enumerate(args) if isinstance(x, torch.Tensor)]
    readers = [_reader([place.reads[k] for place in places]) for k in range(len(positions))]
    if contiguous:
        readers = [_contiguous(read) for read in readers]
    known = tuple(each for each in made if each is not None)
    return Recipe(func, op, tuple(zip(positions, readers, strict=True)), len(places), known, schedule.strides)


def _made(k: int, schedule: Schedule) -> Made | None:
    layout, spec = schedule.outputs[k], schedule.specs[k]
    if spec is None:
        return None
    there = holding(layout)
    runs = [_first(schedule.places, k, piece) for piece in range(there.count)]
    return Made(layout, spec.shape, tuple(runs))


def _first(places: Sequence[Place], k: int, piece: int) -> int:
    return next(run for run, place in enumerate(places) if place.makes[k] == piece)


def _reader(reads: Sequence[Read]) -> Reader:
    pieces = tuple(piece for piece, _ in reads)
    if all(part is None for _, part in reads):
        if pieces == tuple(range(len(reads))):
            return lambda given: given
        return lambda given: [given[piece] for piece in pieces]
    cut = _cut(reads)
    if cut is None:
        return lambda given: [given[piece] if part is None else given[piece][part] for piece, part in reads]
    piece, dim, sizes = cut
    return lambda given: given[piece].split_with_sizes(sizes, dim)


def _cut(reads: Sequence[Read]) -> tuple[int, int, list[int]] | None:
    """The piece, the dim and the sizes, where the runs read one part of one piece after another along one dim."""
    parts = [part for _, part in reads if part is not None]
    if len(parts) != len(reads) or len({piece for piece, _ in reads}) != 1:
        return None
    varying = [dim for dim, each in enumerate(zip(*parts, strict=True)) if len({(s.start, s.stop) for s in each}) > 1]
    if len(varying) != 1 or any(part[dim].start for part in parts for dim in range(len(part)) if dim != varying[0]):
        return None
    (dim,) = varying
    along = [part[dim] for part in parts]
    if along[0].start or any(one.stop != other.start for one, other in pairwise(along)):
        return None
    return reads[0][0], dim, [each.stop - each.start for each in along]


def _contiguous(read: Reader) -> Reader:
    return lambda given: [x.contiguous() for x in read(given)]
