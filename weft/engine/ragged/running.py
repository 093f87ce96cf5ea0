"""Ops on rows where they lie: each device computes what it has, whichever rows these are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from ...rules.call import BoundCall, Op, each_of
from ...rules.factors import Dims, Factors
from ...rules.registry import Region, Rule, rule_for
from ...runtime.holding import holding
from ...runtime.route import line_of, places_among
from ...runtime.traced import is_traced
from ...sharding.geometry import box_at, resized
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ..execute import brought
from ..memory import memory_of
from ..op_kind import OpKind, for_each_result, kind_of
from ..op_plan import OpPlan, decided
from ..running.on_pieces import run_everywhere
from ..running.once import is_random
from ..running.schedule import OpSchedule, Place, schedule_for
from ..sharded import ShardedTensor, as_sharded, wrap
from ..total import known_total, note_write
from ..views.copy_views import refresh
from ..views.view import beginning
from ..views.view_results import ViewOp
from .alone import Alone, Values, alone, holders
from .families import add_view, may_write_there, settle
from .rows import RaggedRows, along, held_rows, ragged, rows_of

__all__ = ["MARKS", "brought_to", "factor_places", "goes_elsewhere", "of_rows", "on_device", "picked", "takes_rows"]

takes_rows: set[Op] = set()
"""The ops whose handlers see to rows themselves. Bound: the ops there are. Cleared: never."""

MARKS = frozenset({torch.ops.aten._conj.default, torch.ops.aten._neg_view.default})
"""The ops that mark a tensor as conjugate or negative, and leave its elements as they are."""


def of_rows(call: BoundCall) -> object:
    """What an op gives of tensors whose rows lie elsewhere, where it can use them there; else NotImplemented."""
    held = [rows_of(x) for x in call.tensors]
    if all(rows is None for rows in held):
        return NotImplemented
    for rows in held:
        if rows is not None:
            rows.op = str(call)  # whoever asks for the pieces has them sent for this op
    kind = kind_of(call.func)
    written = _written(call, kind)
    if call.func in takes_rows:
        for x in written:
            settle(x)
        return NotImplemented
    can_be = not (is_traced() or kind.outs or is_random(call.func) or call.func in MARKS or goes_elsewhere(call))
    there = all(x._value.rows is not None and may_write_there(x._value.rows) for x in written)
    split = _split(call, held, kind) if can_be and there else None
    if split is None:
        # What a view shows that is not of rows, and what is written to, is from now on what its layout says.
        shown = [] if kind.viewed is None else [x for x in call.tensors if isinstance(x, ShardedTensor)]
        for x in (*written, *shown):
            if x._value.rows is not None:
                settle(x)
        return NotImplemented
    refresh(call.tensors)
    if kind.written:
        note_write()
    return _run(call, split, held, kind)


def goes_elsewhere(call: BoundCall) -> bool:
    """Whether an op gives a tensor on another device than it was given, as one without memory."""
    device = call.kwargs.get("device")
    return isinstance(device, torch.device) and device.type != call.tensors[0].device.type


def _written(call: BoundCall, kind: OpKind) -> list[ShardedTensor]:
    given = [call.args[at] if at < len(call.args) else None for at in kind.written]
    given += [call.kwargs.get(name) for name in kind.outs]
    each = [x for value in given for x in each_of(value)]
    return [x for x in each if isinstance(x, ShardedTensor) and x._value.rows is not None]


@dataclass(frozen=True, slots=True)
class _Split:
    """How a call is computed row by row: the factor that rows are, and where it stands in each tensor."""

    plan: OpPlan
    rule: Rule
    inputs: tuple[int | None, ...]
    """For each input, the dim along which the rows stand."""
    outputs: tuple[int | None, ...]


def _split(call: BoundCall, held: Sequence[RaggedRows | None], kind: OpKind) -> _Split | None:
    """How a call is computed where the rows lie; None where it needs more than its own rows on a device."""
    rule = rule_for(call.func)
    if rule is None or len(kind.written) > 1 or (kind.written and held[0] is None):
        return None
    plan = decided(call)
    factors = None if plan.rule is None or plan.once else rule.factors(call)
    if factors is None or plan.outputs is None or any(dims is None for dims in factors.outputs):
        return None
    names = {factors.inputs[i][rows.dim] for i, rows in enumerate(held) if rows is not None}
    kept = all(
        rows is None
        or (set(rows.axes) <= set(need.splits[rows.dim]) and need.with_split(rows.dim, rows.axes) is rows.layout)
        for rows, need in zip(held, plan.inputs, strict=True)
    )
    if len(names) != 1 or len(name := next(iter(names))) != 1 or not kept:
        return None
    most = _leader([rows for rows in held if rows is not None])
    if any(rows is most and most.layout is not need for rows, need in zip(held, plan.inputs, strict=True)):
        return None
    places = factor_places(name[0], factors)
    if places is None or (rule.local is not None and None in places[1]) or _counts(rule, call, places[0][0]):
        return None
    return _Split(plan, rule, *places)


def _counts(rule: Rule, call: BoundCall, dim: int | None) -> bool:
    """Whether an op counts rows: by an index, or because it matters which of them is first."""
    bounds = () if rule.bounds is None else rule.bounds(call)
    rank = call.tensors[0].dim()
    return dim in {*(bound.dim for bound in bounds), *(rank + each for each in rule.counts_along)}


def factor_places(name: str, factors: Factors) -> tuple[tuple[int | None, ...], tuple[int | None, ...]] | None:
    """Where a factor stands in each input and output; None where it does not stand alone, or results repeat over it."""
    if any(factor == name for _, factor in factors.repeated):
        return None
    found: list[tuple[int | None, ...]] = []
    for tensors in (factors.inputs, cast("tuple[Dims, ...]", factors.outputs)):
        if any(len(dim) > 1 and name in dim for dims in tensors for dim in dims):
            return None
        found.append(tuple(dims.index((name,)) if (name,) in dims else None for dims in tensors))
    return found[0], found[1]


def _run(call: BoundCall, split: _Split, held: Sequence[RaggedRows | None], kind: OpKind) -> object:
    plan, op = split.plan, str(call)
    leader = _leader([rows for rows in held if rows is not None])
    given: list[RaggedRows | ShardedTensor] = []
    for x, need, dim, rows in zip(call.tensors, plan.inputs, split.inputs, held, strict=True):
        if rows is None and dim is None:
            given.append(as_sharded(brought(x, need, op, False)))
            continue
        if rows is None:
            assert dim is not None
            is_whole = not isinstance(x, ShardedTensor) or not x._layout.splits[dim]
            there = as_sharded(brought(x, need.with_split(dim, ()) if is_whole else need, op, False))
            if is_whole:
                given.append(there)
                continue
            rows = held_rows(there, dim)
        given.append(brought_to(leader, rows, op))
    result = _computed(call, split, given, leader)
    # What is added to a sum over rows is contributed by a device that may have none of these.
    is_added_to = any(dim is None and need.pending for need, dim in zip(plan.inputs, split.inputs, strict=True))

    def made(position: int, value: object) -> object:
        dim = split.outputs[position]
        if not isinstance(value, ShardedTensor) or any(value is x for x in call.tensors):
            return value
        if dim is None:
            return value if is_added_to else _contributed_alone(value, leader, op)
        rows = RaggedRows(value._value.pieces, value._layout, value.shape, dim, leader.at, value.dtype, leader.groups)
        x, shown = call.args[0], held[0]
        if kind.viewed is None or shown is None or not isinstance(x, ShardedTensor):
            return ragged(value, rows)
        view = ViewOp.of(call, position)
        tensor = ragged(value, rows, beginning(x, value.dtype) + view.geometry(x)[1])
        add_view(tensor, rows, x, shown, view.read)
        return tensor

    return for_each_result(result, made)


def _contributed_alone(x: ShardedTensor, leader: RaggedRows, op: str) -> ShardedTensor:
    """A sum over rows: where all of them are with some devices, only these contribute to it."""
    home = None if leader.groups is None else leader.groups.home
    if home is None or not set(home.axes) <= set(x._layout.pending_axes):
        return x
    total = None if memory_of(x._layout).pieces_are_shards else known_total(x)
    own: Values = {} if total is None else {None: total}
    if memory_of(x._layout).pieces_are_shards:
        at = holding(x._layout).piece_of
        own = {slot: x._value.pieces[at[slot]] for slot in holders(x._layout, home) if slot is not None}
    elif total is None:
        return x
    value = Alone(home, x._layout, x.shape, x.dtype, x.stride(), lambda: own, op)
    return alone(value, x.stride(), x.device)


def brought_to(leader: RaggedRows, rows: RaggedRows, op: str) -> RaggedRows:
    """Rows where the leader has its own; devices along axes that do not split them have the same, and each takes some."""
    if rows.axes == leader.axes:
        rows.bring(leader.at, leader.groups, op)
        return rows
    rows.bring(along(rows.layout.mesh, rows.axes, (leader.axes, leader.at)), None, op)
    return picked(rows, rows.dim, _like(leader, rows, rows.dim))


def _leader(held: Sequence[RaggedRows]) -> RaggedRows:
    """The rows that the others are brought to: those that more axes split, that lie by groups, or else the largest."""
    return max(held, key=lambda rows: (len(rows.axes), rows.groups is not None, torch.Size(rows.shape).numel()))


def _computed(
    call: BoundCall, split: _Split, given: Sequence[RaggedRows | ShardedTensor], leader: RaggedRows
) -> object:
    if not memory_of(leader.layout).pieces_are_shards:
        tensors = [_as_evenly_split(x) if isinstance(x, RaggedRows) else x for x in given]
        if not kind_of(call.func).written:
            return call.with_tensors(tensors)()
        call.with_tensors(tensors)()
        return call.args[0]
    pieces = [
        x if isinstance(x, RaggedRows) or dim is None else picked(x, dim, _like(leader, x, dim))
        for x, dim in zip(given, split.inputs, strict=True)
    ]
    laid = [wrap(x.pieces, x.layout, x.shape, dtype=x.dtype) if isinstance(x, RaggedRows) else x for x in pieces]
    result = run_everywhere(call, laid, _schedule(call, split, leader), split.rule)
    return call.args[0] if kind_of(call.func).written else result


def _as_evenly_split(rows: RaggedRows) -> ShardedTensor:
    """In one memory: the value of rows, as if they lay where the layout says."""
    return wrap(rows.pieces, rows.layout, rows.shape, dtype=rows.dtype)


def _like(leader: RaggedRows, x: RaggedRows | ShardedTensor, dim: int) -> RaggedRows:
    """Where the rows of a tensor are wanted that every device has, along some of the axes."""
    layout, dtype = (x.layout, x.dtype) if isinstance(x, RaggedRows) else (x._layout, x.dtype)
    return RaggedRows((), layout.with_split(dim, leader.axes), x.shape, dim, leader.at, dtype, leader.groups)


def picked(x: RaggedRows | ShardedTensor, dim: int, wanted: RaggedRows) -> RaggedRows:
    """The rows of a tensor where they are wanted, of which every device has those that it is to have, and others."""
    pieces, layout = (x.pieces, x.layout) if isinstance(x, RaggedRows) else (x._value.pieces, x._layout)
    if not memory_of(wanted.layout).pieces_are_shards:
        wanted.pieces = pieces
        return wanted
    places = places_among(x.at) if isinstance(x, RaggedRows) else None
    taken = []
    for slot in holding(wanted.layout).slots:
        piece, index = pieces[holding(layout).piece_of[slot]], on_device(wanted, slot)
        taken.append(piece.index_select(dim, (index if places is None else places[index]).to(piece.device)))
    wanted.pieces = tuple(taken)
    return wanted


def on_device(rows: RaggedRows, slot: Slot) -> torch.Tensor:
    """Which rows a device has."""
    return (rows.at == line_of(rows.layout, rows.dim, slot).index(slot)).nonzero().squeeze(1)


def _schedule(call: BoundCall, split: _Split, leader: RaggedRows) -> OpSchedule:
    """Where the op runs: on each device, with as many rows as it has, which count as all."""
    plan = split.plan
    assert plan.outputs is not None
    whole = schedule_for(call, plan.inputs, plan.outputs, plan.mesh)
    shapes = [tuple(x.shape) for x in call.tensors]
    specs = [() if spec is None else spec.shape for spec in whole.specs]
    places: dict[tuple[int, ...], Place] = {}
    for slot in holding(Layout.replicated(plan.mesh, 0)).residence.owned:
        count = len(on_device(leader, slot))
        given = [
            _region(need, shape, slot, dim, count)
            for need, shape, dim in zip(plan.inputs, shapes, split.inputs, strict=True)
        ]
        made = [
            _region(layout, shape, slot, dim, count)
            for layout, shape, dim in zip(whole.outputs, specs, split.outputs, strict=True)
        ]
        reads = tuple(holding(need).piece_of[slot] for need in plan.inputs)
        makes = tuple(holding(layout).piece_of[slot] for layout in whole.outputs)
        place = Place(
            tuple((piece, None) for piece in reads),
            makes,
            tuple(region.shape for region in made),
            tuple(given),
            tuple(made),
            (None,) * len(made),
        )
        places.setdefault((*reads, *makes), place)
    return OpSchedule(whole.outputs, whole.specs, lambda: tuple(places.values()))


def _region(layout: Layout, shape: tuple[int, ...], slot: Slot, dim: int | None, count: int) -> Region:
    box = box_at(layout, shape, layout.mesh.coords(slot))
    if dim is None:
        return Region(box, shape)
    return Region((*box[:dim], (0, count), *box[dim + 1 :]), resized(shape, dim, count))
