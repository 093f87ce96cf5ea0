"""What an op runs at every place that has pieces of its arguments, and what each run reads of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, final

import torch

from ...rules.call import Args, BoundCall, Known, Kwargs, Op
from ...runtime.holding import Pieces, holding
from ...runtime.memory.accelerator import Lanes, turns
from ..op_kind import expects_contiguous, kind_of
from ..op_plan import OpPlan
from ..sharded import ShardedTensor, as_sharded
from .quick import Call, as_taken, converting, quick, takes_number
from .schedule import OpSchedule, Place, Read

__all__ = ["Runs", "made_by", "on_first_pieces", "reader_of", "runs_of"]

Reader = Callable[[Pieces], Sequence[torch.Tensor]]
"""Gives what each run reads of one argument."""
Results = list[Any]
"""What each run gives."""
AllRuns = Callable[[Known, Kwargs], Results]


@final
@dataclass(frozen=True, slots=True)
class Runs:
    """What an op runs, given the arguments."""

    everywhere: AllRuns
    """At every place."""
    alone: Call | None
    """At the one place that there is, where it reads all that is here of each tensor: the quickest way to the one result."""


def runs_of(call: BoundCall, plan: OpPlan, schedule: OpSchedule) -> Runs | None:
    """What an op runs; None where a place has nothing to read."""
    if any(0 in region.shape for place in schedule.places for region in (*place.inputs, *place.outputs)):
        return None
    everywhere = _everywhere(call, plan, schedule)
    return None if everywhere is None else Runs(everywhere, _alone(call, plan, schedule))


def _everywhere(call: BoundCall, plan: OpPlan, schedule: OpSchedule) -> AllRuns | None:
    rule, places = plan.rule, schedule.places
    assert rule is not None
    positions = [at for at, x in enumerate(call.args) if isinstance(x, torch.Tensor)]
    readers = [reader_of([place.reads[k] for place in places]) for k in range(len(positions))]
    if expects_contiguous(call.func):
        readers = [_contiguous(read) for read in readers]
    reading = list(zip(positions, readers, strict=True))
    op = quick(call.func) if rule.local_op is None else rule.local_op
    if kind_of(call.func).viewed is not None:
        op = quick(call.func)  # a copy is no view
    if rule.local_args is None:
        convert = converting(call.func, call.kwargs)
        if convert is not None and call.kwargs.get("device") is None and rule.local_op is None:
            return _mapped(convert, [readers[0]], len(places), has_number=False)
        if call.kwargs:
            return _alike(op, reading, len(places))
        by_position = dict(reading)
        return _mapped(
            op, [by_position.get(at) for at in range(len(call.args))], len(places), takes_number(call.func, call.args)
        )
    if any(isinstance(x, float) for x in (*call.args, *call.kwargs.values())):
        return None  # what a place is called with is worked out once, so it must not be of numbers that may differ
    return _told_apart(
        op, reading, [_localized(call, rule.local_args, positions, readers, place, k) for k, place in enumerate(places)]
    )


def _alone(call: BoundCall, plan: OpPlan, schedule: OpSchedule) -> Call | None:
    """What runs an op once: so it is in each of many processes with a device of its own."""
    rule, places, func = plan.rule, schedule.places, call.func
    assert rule is not None
    is_view = kind_of(func).viewed is not None
    if len(places) != 1 or any(read != (0, None) for read in places[0].reads):
        return None
    if call.kwargs.get("device") is not None or (rule.local_op is not None and not is_view):
        return None
    if rule.local_args is None:
        return _on_first_contiguous(func) if expects_contiguous(func) else on_first_pieces(func, call.args, call.kwargs)
    if not is_view or len(call.tensors) != 1:
        return None
    pieces, op = as_sharded(call.args[0])._value.pieces, quick(func)
    here = rule.local_args(call.with_tensors(pieces), places[0].out_shapes)
    others, kwargs = here.args[1:], here.kwargs
    return lambda args, _: op(args[0]._value.pieces[0], *others, **kwargs)


def _alike(op: Call, reading: Sequence[tuple[int, Reader]], count: int) -> AllRuns:
    """The op at so many places, which differ in the tensors that are there only."""

    def run(args: Known, kwargs: Kwargs) -> Results:
        here, columns, results = list(args), _columns(args, reading), []
        for k in turns(count) if Lanes.now else range(count):
            for at, column in columns:
                here[at] = column[k]
            results.append(op(*here, **kwargs))
        return results

    return run


def _mapped(op: Call, readers: Sequence[Reader | None], count: int, has_number: bool) -> AllRuns:
    """The same where nothing has a name; what has no reader is given to all places as it is."""

    def run(args: Known, _: Kwargs) -> Results:
        columns: list[Iterable[object]] = [
            repeat(x) if read is None else read(x._value.pieces) for read, x in zip(readers, args, strict=True)
        ]
        if has_number:
            columns[1] = repeat(as_taken(args[1], args[0]._value.pieces[0]))
        if not Lanes.now:
            return list(map(op, *columns))
        rows = list(zip(*columns, strict=False))
        return [op(*rows[k]) for k in turns(count)]

    # Most ops read one tensor or two, as they lie.
    if readers == [_as_they_lie]:
        return lambda args, kwargs: run(args, kwargs) if Lanes.now else list(map(op, args[0]._value.pieces))
    if readers == [_as_they_lie, _as_they_lie]:
        return lambda args, kwargs: (
            run(args, kwargs) if Lanes.now else list(map(op, args[0]._value.pieces, args[1]._value.pieces))
        )
    return run


def _told_apart(op: Call, reading: Sequence[tuple[int, Reader]], others: Sequence[tuple[Args, Kwargs]]) -> AllRuns:
    """The op at places each of which has other arguments, too."""

    def run(args: Known, _: Kwargs) -> Results:
        columns, results = _columns(args, reading), []
        for k in turns(len(others)) if Lanes.now else range(len(others)):
            template, kwargs = others[k]
            here = list(template)
            for at, column in columns:
                here[at] = column[k]
            results.append(op(*here, **kwargs))
        return results

    return run


def _columns(args: Known, reading: Sequence[tuple[int, Reader]]) -> list[tuple[int, Sequence[torch.Tensor]]]:
    """For the arguments that are tensors, by position, what each run reads of them."""
    return [(at, read(args[at]._value.pieces)) for at, read in reading]


def _localized(
    call: BoundCall,
    local_args: Callable[..., BoundCall],
    positions: Sequence[int],
    readers: Sequence[Reader],
    place: Place,
    k: int,
) -> tuple[Args, Kwargs]:
    local = [read(as_sharded(call.args[at])._value.pieces)[k] for at, read in zip(positions, readers, strict=True)]
    here = local_args(call.with_tensors(local), place.out_shapes)
    # Not the tensors, which what repeats a call would keep in memory as long as it is known.
    return tuple([None if isinstance(x, torch.Tensor) else x for x in here.args]), here.kwargs


def made_by(k: int, schedule: OpSchedule) -> list[int]:
    """For each piece of a result, the run that makes it."""
    return [
        next(run for run, place in enumerate(schedule.places) if place.makes[k] == piece)
        for piece in range(holding(schedule.outputs[k]).count)
    ]


def reader_of(reads: Sequence[Read]) -> Reader:
    """What gives the runs what they read of one argument, in their order."""
    pieces = tuple(piece for piece, _ in reads)
    if all(part is None for _, part in reads):
        if pieces == tuple(range(len(reads))):
            return _as_they_lie
        return lambda given: [given[piece] for piece in pieces]
    cut = _cut(reads)
    if cut is None:
        return lambda given: [given[piece] if part is None else given[piece][part] for piece, part in reads]
    piece, dim, sizes = cut
    return lambda given: given[piece].split_with_sizes(sizes, dim)


def _as_they_lie(given: Pieces) -> Pieces:
    return given


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


def sliced_by(func: Op, args: Args) -> tuple[slice, ...] | None:
    """The index that says a slice of every element from one on: torch takes a third less for it than for the op.

    >>> sliced_by(torch.ops.aten.slice.Tensor, (torch.zeros(2, 3), 1, 0, 2))
    (slice(None, None, None), slice(0, 2, None))
    """
    if func is not torch.ops.aten.slice.Tensor or len(args) != 4 or any(type(x) is not int for x in args[1:]):
        return None
    x, dim, start, stop = args
    assert isinstance(x, torch.Tensor)
    assert isinstance(dim, int)
    return (*(slice(None),) * (dim % x.dim()), slice(start, stop))


def _contiguous(read: Reader) -> Reader:
    return lambda given: [x.contiguous() for x in read(given)]


def on_first_pieces(func: Op, args: Args, kwargs: Kwargs) -> Call:
    """What runs an op on the one piece that each tensor has, in the quickest way for arguments like these."""
    convert = converting(func, kwargs)
    if convert is not None:
        return lambda args, _: convert(args[0]._value.pieces[0])
    op, kind = quick(func), ShardedTensor.final
    is_tensor = [isinstance(x, ShardedTensor) for x in args]
    index = None if kwargs else sliced_by(func, args)
    if index is not None:
        return lambda args, _: args[0]._value.pieces[0][index]
    if kwargs or not is_tensor[0]:
        return lambda args, kwargs: op(*[x._value.pieces[0] if type(x) is kind else x for x in args], **kwargs)
    if len(is_tensor) == 1:
        return lambda args, _: op(args[0]._value.pieces[0])
    if is_tensor == [True, True]:
        return lambda args, _: op(args[0]._value.pieces[0], args[1]._value.pieces[0])
    if takes_number(func, args):
        return lambda args, _: op(whole := args[0]._value.pieces[0], as_taken(args[1], whole))
    if is_tensor == [True, False, False]:
        return lambda args, _: op(args[0]._value.pieces[0], args[1], args[2])
    if not any(is_tensor[1:]):
        return lambda args, _: op(args[0]._value.pieces[0], *args[1:])
    return lambda args, _: op(*[x._value.pieces[0] if type(x) is kind else x for x in args])


def _on_first_contiguous(func: Op) -> Call:
    op, kind = quick(func), ShardedTensor.final
    return lambda args, kwargs: op(*[x._value.pieces[0].contiguous() if type(x) is kind else x for x in args], **kwargs)
