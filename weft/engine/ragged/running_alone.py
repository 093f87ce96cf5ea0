"""Ops on values that only some devices have: they run there, and rows that all have some of are sent there first.

rows (s/ep, k), matrix (k, n) at one of ep -> (s/ep, n), all rows there      a product with what is selected of a stack
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from ...rules.call import BoundCall, each_of
from ...rules.registry import Spec, rule_for
from ...runtime.holding import Pieces, holding
from ...runtime.reduction import neutral
from ...runtime.strides import Strides, in_order, row_major
from ...runtime.traced import is_traced
from ...sharding.geometry import resized
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ..execute import brought
from ..memory import held_whole, memory_of
from ..moves.movement import from_plain
from ..op_kind import kind_of
from ..op_plan import OpPlan, decided
from ..running.once import is_foreseen, is_random
from ..sharded import ShardedTensor, Stand, as_sharded, stand_of, wrap
from ..strides.whole_results import whole_results
from ..views.copy_views import Told, refresh
from ..views.view import View, beginning
from ..views.view_results import ViewOp, tell_whole
from .alone import Alone, Home, Values, alone, alone_of, holders
from .rows import Groups, RaggedRows, along, evenly, held_rows, ragged, rows_of
from .running import MARKS, factor_places, goes_elsewhere

__all__ = ["of_alone"]

aten = torch.ops.aten
_KEEP_PLACES = {aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default}
"""Ops whose results begin where their tensor does in its memory: their handlers see to that."""

Given = Alone | RaggedRows | ShardedTensor
OfNothing = Callable[[Slot, Sequence[torch.Tensor]], list[torch.Tensor] | None]
"""(device, what it has of each input) -> its results, where it has nothing of one and need not compute."""


def of_alone(call: BoundCall) -> object:
    """What an op gives of values that only some devices have, where it can run there; else NotImplemented."""
    held = [alone_of(x) for x in call.tensors]
    first = next((each for each in held if each is not None), None)
    if first is None or not _may_run(call, first.home, held):
        return NotImplemented
    refresh(call.tensors)
    plan, home = decided(call), first.home
    if plan.once or plan.outputs is None:
        return NotImplemented
    if any(each is None and need.pending for each, need in zip(held, plan.inputs, strict=True)):
        return NotImplemented
    if not all(each is None or _lies_in(each, need) for each, need in zip(held, plan.inputs, strict=True)):
        return NotImplemented
    dims = [None if each is not None else _rows_dim(need, home) for each, need in zip(held, plan.inputs, strict=True)]
    specs = whole_results(call)
    if -1 in dims or None in specs or len(specs) != len(plan.outputs):
        return NotImplemented
    known = cast("tuple[Spec, ...]", specs)
    if all(dim is None for dim in dims):
        return _run_there(call, plan, held, home, known)
    return _run_on_rows(call, plan, held, dims, home, known)


def _may_run(call: BoundCall, home: Home, held: Sequence[Alone | None]) -> bool:
    """Whether an op does no more than compute, and all values are on the same devices."""
    kind, rule = kind_of(call.func), rule_for(call.func)
    if is_traced() or kind.written or kind.outs or is_random(call.func) or not is_foreseen(call.func):
        return False
    if call.func in MARKS or call.func in _KEEP_PLACES or goes_elsewhere(call):
        return False
    if rule is None or rule.local is not None or rule.local_args is not None or rule.local_op is not None:
        return False
    if kind.viewed is not None and held[0] is None:
        return False
    return all(each is None or each.home.is_as(home) for each in held)


def _lies_in(value: Alone, need: Layout) -> bool:
    """Whether a value is there as an op needs it; a sum to which only its devices contribute is what they have."""
    waiting = {axis: kind for axis, kind in value.layout.pending if axis not in value.home.axes}
    return value.layout is need or value.layout.with_pending(waiting) is need


def _rows_dim(need: Layout, home: Home) -> int | None:
    """Along which dim devices along the axes of a home have different parts of a tensor; -1: not along just one."""
    dims = [dim for dim, axes in enumerate(need.splits) if set(axes) & set(home.axes)]
    if not dims and not set(need.pending_axes) & set(home.axes):
        return None
    return dims[0] if len(dims) == 1 and set(home.axes) <= set(need.splits[dims[0]]) else -1


def _run_there(
    call: BoundCall, plan: OpPlan, held: Sequence[Alone | None], home: Home, specs: tuple[Spec, ...]
) -> object:
    """All that the op needs is where the value is, and so is what it gives."""
    op, layouts = str(call), cast("tuple[Layout, ...]", plan.outputs)
    if any(set(layout.split_axes) & set(home.axes) for layout in layouts):
        return NotImplemented
    given: list[Given] = [
        as_sharded(brought(x, need, op, False)) if each is None else each
        for x, need, each in zip(call.tensors, plan.inputs, held, strict=True)
    ]
    is_view = kind_of(call.func).viewed is not None
    stand = stand_of(as_sharded(call.tensors[0])) if is_view else None  # which stays as it is when the tensor is turned
    of_nothing = partial(_of_nothing, call, layouts, specs)
    made = {} if is_view else _computed(call, given, home, layouts[0], of_nothing)

    def values(position: int) -> Values:
        # What a view shows may be written to until somebody reads it, and be with all devices then.
        if stand is None:
            found = made
        else:
            found = _computed(call, [_as_it_is(stand.tensor, given[0])], home, layouts[0], of_nothing)
        return {slot: results[position] for slot, results in found.items()}

    results: list[torch.Tensor] = []
    for position, (layout, spec) in enumerate(zip(layouts, specs, strict=True)):
        strides = row_major(spec.shape) if spec.strides is None else spec.strides
        pieces = None if stand is None else partial(_pieces_of_view, call, stand, position, layout, strides)
        value = Alone(home, layout, spec.shape, spec.dtype, strides, partial(values, position), op, pieces)
        device = call.tensors[0].device
        results.append(_shown(call, value, position, device) if is_view else alone(value, strides, device))
    return (
        results
        if "List" in str(call.func._schema.returns[0].type)
        else results[0]
        if len(results) == 1
        else tuple(results)
    )


def _as_it_is(x: ShardedTensor, given: Given) -> Given:
    """What a call was given, or the tensor itself where that has pieces by now."""
    return x if isinstance(given, Alone) and alone_of(x) is None else given


def _shown(call: BoundCall, value: Alone, position: int, device: torch.device) -> ShardedTensor:
    """A view of a value, as a tensor."""
    x, op = as_sharded(call.args[0]), ViewOp.of(call, position)
    strides, offset = op.geometry(x)
    view = View(op.read, op.write_whole, lambda: Told(op.tell_read, partial(tell_whole, call.func)))
    return memory_of(value.layout).show(alone(value, strides, device, beginning(x, value.dtype) + offset), x, view)


def _pieces_of_view(call: BoundCall, base: Stand, position: int, layout: Layout, strides: Strides) -> Pieces:
    """What a view shows of each piece of its base; with memories apart as a copy, which is read again or written back."""
    x = base.tensor
    views = [_listed(call.on([piece]))[position] for piece in x._value.pieces]
    if not memory_of(layout).pieces_are_shards:
        return tuple(views)
    at = holding(x._layout).piece_of
    return tuple(in_order(views[at[slot]].clone(), strides) for slot in holding(layout).slots)


def _listed(result: object) -> Sequence[torch.Tensor]:
    return cast("Sequence[torch.Tensor]", each_of(result))


def _computed(
    call: BoundCall, given: Sequence[Given], home: Home, layout: Layout, of_nothing: OfNothing
) -> dict[Slot | None, Sequence[torch.Tensor]]:
    """What the op gives on each device of this process that has the value."""
    found: dict[Slot | None, Sequence[torch.Tensor]] = {}
    values = [x.values() if isinstance(x, Alone) else x for x in given]
    for slot in holders(layout, home):
        local = [x[slot] if isinstance(x, dict) else _held(x, slot) for x in values]
        known = None if slot is None or all(t.numel() for t in local) else of_nothing(slot, local)
        found[slot] = _listed(call.on(local)) if known is None else known
    return found


def _of_nothing(
    call: BoundCall, layouts: Sequence[Layout], specs: Sequence[Spec], slot: Slot, local: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    """The results of a device that has nothing of an input, where torch refuses to compute of nothing; else None."""
    rule = rule_for(call.func)
    if rule is None or rule.of_nothing is None:
        return None
    shapes = [
        holding(layout).piece_shape(holding(layout).piece_of[slot], spec.shape)
        for layout, spec in zip(layouts, specs, strict=True)
    ]
    return [
        torch.full(shape, neutral(rule.of_nothing, spec.dtype), dtype=spec.dtype, device=local[0].device)
        for shape, spec in zip(shapes, specs, strict=True)
    ]


def _held(x: RaggedRows | ShardedTensor, slot: Slot | None) -> torch.Tensor:
    """What a device has of a tensor; None: the one memory of all."""
    pieces, layout = (x.pieces, x.layout) if isinstance(x, RaggedRows) else (x._value.pieces, x._layout)
    if slot is not None:
        return pieces[holding(layout).piece_of[slot]]
    whole = pieces[0] if isinstance(x, RaggedRows) else held_whole(x)
    assert whole is not None
    return whole


def _run_on_rows(
    call: BoundCall,
    plan: OpPlan,
    held: Sequence[Alone | None],
    dims: Sequence[int | None],
    home: Home,
    specs: tuple[Spec, ...],
) -> object:
    """Rows that devices have some of each are sent to where the value is."""
    rule, layouts, op = rule_for(call.func), cast("tuple[Layout, ...]", plan.outputs), str(call)
    factors = None if rule is None or kind_of(call.func).viewed is not None else rule.factors(call)
    if factors is None or any(each is None for each in factors.outputs):
        return NotImplemented
    names = {factors.inputs[at][dim] for at, dim in enumerate(dims) if dim is not None}
    if len(names) != 1 or len(name := next(iter(names))) != 1:
        return NotImplemented
    places = factor_places(name[0], factors)
    if places is None or places[0] != tuple(dims) or None in places[1]:
        return NotImplemented
    given: list[Given] = []
    for x, need, dim, each in zip(call.tensors, plan.inputs, dims, held, strict=True):
        if each is not None:
            given.append(each)
        else:
            given.append(as_sharded(brought(x, need, op, False)) if dim is None else _sent(x, need, dim, home, op))
    leader = next(x for x in given if isinstance(x, RaggedRows))
    if any(isinstance(x, RaggedRows) and x.axes != leader.axes for x in given):
        return NotImplemented
    made_along = [dim for dim in places[1] if dim is not None]

    def of_nothing(slot: Slot, local: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        count = next(t.shape[x.dim] for x, t in zip(given, local, strict=True) if isinstance(x, RaggedRows))
        rows = [resized(spec.shape, dim, count) for spec, dim in zip(specs, made_along, strict=True)]
        kept = [layout.with_split(dim, ()) for layout, dim in zip(layouts, made_along, strict=True)]
        return _of_nothing(call, kept, [replace(s, shape=r) for s, r in zip(specs, rows, strict=True)], slot, local)

    found = _computed(call, given, home, layouts[0], of_nothing)
    results = []
    for position, (layout, spec) in enumerate(zip(layouts, specs, strict=True)):
        dim, strides = made_along[position], row_major(spec.shape) if spec.strides is None else spec.strides
        own = {slot: each[position] for slot, each in found.items()}
        pieces = _with_none_elsewhere(own, layout, spec, dim, strides)
        rows = RaggedRows(pieces, layout, spec.shape, dim, leader.at, spec.dtype, leader.groups)
        results.append(_of_rows(rows, strides, op))
    return results[0] if len(results) == 1 else tuple(results)


def _of_rows(rows: RaggedRows, strides: Strides, op: str) -> ShardedTensor:
    """The tensor of some rows; where a sum is pending, what comes next resolves it where the layout says."""
    layout = rows.layout
    if not layout.pending:
        return ragged(wrap(rows.pieces, layout, rows.shape, dtype=rows.dtype, strides=strides), rows)
    pieces = rows.bring(evenly(layout.mesh, rows.axes, rows.shape[rows.dim]), None, op)
    if not memory_of(layout).pieces_are_shards:
        return from_plain(pieces[0], layout)
    return wrap(pieces, layout, rows.shape, dtype=rows.dtype, strides=strides)


def _with_none_elsewhere(own: Values, layout: Layout, spec: Spec, dim: int, strides: Strides) -> Pieces:
    """The rows that some devices have, and none of the others."""
    if None in own:
        return (own[None],)
    here = holding(layout)
    return tuple(
        in_order(own[slot], strides)
        if slot in own
        else torch.empty(resized(here.piece_shape(k, spec.shape), dim, 0), dtype=spec.dtype, device=device)
        for k, (slot, device) in enumerate(zip(here.slots, here.devices, strict=True))
    )


def _sent(x: torch.Tensor, need: Layout, dim: int, home: Home, op: str) -> RaggedRows:
    """The rows of a tensor, all with the devices of a home."""
    rows = rows_of(x)
    if rows is None or rows.dim != dim or rows.layout is not need:
        rows = held_rows(as_sharded(brought(x, need, op, False)), dim)
    there = torch.full_like(rows.at, home.number)
    at = along(home.mesh, rows.axes, (home.axes, there), (rows.axes, rows.at))
    sizes = [0] * home.groups
    sizes[home.group] = len(at)
    rows.bring(at, Groups(home.axes, tuple(sizes), home), op)
    return rows
