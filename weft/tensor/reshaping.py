"""Reshapes of any layout: dims that do not split alike before and after exchange stretches of their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from ..planning import move_cost
from ..planning.rearrangement import Part, Rearrangement, Run, Side
from ..rules.views import reshape_groups
from ..runtime.holding import holding
from ..runtime.machine import forget_with_residences
from ..runtime.process_group import execution
from ..runtime.rearranging import rearrange
from ..sharding.geometry import box_at, box_shape
from ..sharding.layout import Layout
from .aliasing import remember, remember_alias
from .dispatch import handler, layouts_for, run_by_rule
from .movement import moved, note_move
from .rearranging import note_rearrangement
from .tensor import Tensor, wrap
from .viewing import shown, view_geometry
from .writing import store

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Way:
    """How a reshape goes: the input in a layout, exchanged in the flattened form of runs of dims."""

    before: Layout
    after: Layout
    plan: Rearrangement


_ways: dict[object, _Way | None] = {}
forget_with_residences(_ways.clear)


@handler(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    may_be_direct=True,
)
def _reshape(func: Op, args: Args, kwargs: Kwargs) -> object:
    if func is aten._reshape_alias.default:
        func = aten.view.default
    x = cast(Tensor, args[0])
    shape = _full_shape(x, [int(s) for s in cast("Sequence[int]", args[1])])
    key = (x._layout, x.shape, shape, x.dtype)
    if key not in _ways:
        if len(_ways) > 1 << 14:
            _ways.clear()
        _ways[key] = _way(func, x, shape)
    way = _ways[key]
    if way is None:
        if holding(x._layout).unified:
            return run_by_rule(func, args[:2], kwargs)
        return _by_rule(func, x, shape)
    y = _exchanged(x, shape, way)
    return _as_view(func, x, y, shape)


def _full_shape(x: Tensor, size: list[int]) -> tuple[int, ...]:
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        if size.count(-1) > 1 or rest == 0 or x.numel() % rest:
            raise RuntimeError(f"shape '{size}' is invalid for input of size {x.numel()}")
        size[size.index(-1)] = x.numel() // rest
    if math.prod(size) != x.numel():
        raise RuntimeError(f"shape '{size}' is invalid for input of size {x.numel()}")
    return tuple(size)


def _way(func: Op, x: Tensor, shape: tuple[int, ...]) -> _Way | None:
    """The exchange, or None where the rule moves nothing, or less."""
    layout, old = x._layout, tuple(x.shape)
    need = layouts_for(func, (x, list(shape)), {})[0]
    if need is layout or not x.numel():
        return None
    before: list[tuple[str, ...]] = []
    after: list[tuple[str, ...]] = []
    flat: list[tuple[str, ...]] = []
    sizes: list[int] = []
    units: list[tuple[int, int]] = []
    start = 0
    for first, second in reshape_groups(old, shape):
        axes = tuple(axis for axes in layout.splits[start : start + len(first)] for axis in axes)
        start += len(first)
        count = math.prod(layout.mesh.axis_size(axis) for axis in axes)
        lead, unit = _lead(first)
        new_lead, new_unit = _lead(second)
        if axes and (not first or not second or second[new_lead] < count):
            return None
        before += [axes if i == lead else () for i in range(len(first))]
        after += [axes if i == new_lead else () for i in range(len(second))]
        flat.append(axes)
        sizes.append(math.prod(first))
        units.append((unit, new_unit))
    through = Layout(layout.mesh, before, layout.pending)
    if move_cost(layout, through, old, x.dtype.itemsize) > move_cost(layout, need, old, x.dtype.itemsize):
        return None
    between = Layout(layout.mesh, flat, layout.pending)
    plan = Rearrangement(
        (Side(between, tuple(sizes), tuple(unit for unit, _ in units)),),
        Side(between, tuple(sizes), tuple(unit for _, unit in units)),
        (Part(0, tuple(map(Run, sizes))),),
    )
    return _Way(through, Layout(layout.mesh, after, layout.pending), plan)


def _lead(run: Sequence[int]) -> tuple[int, int]:
    """The first dim of a run with more than one index, and how many elements each index of it has."""
    lead = next((i for i, size in enumerate(run) if size != 1), 0)
    return lead, math.prod(run[lead + 1 :])


def _exchanged(x: Tensor, shape: tuple[int, ...], way: _Way) -> Tensor:
    if holding(x._layout).unified:
        if x._layout is not way.before:
            note_move(x, way.before, "reshape")
        note_rearrangement(way.plan, x.dtype.itemsize, "reshape")
        return wrap(tuple(piece.reshape(shape) for piece in x._pieces), way.after, shape)
    there = x if x._layout is way.before else moved(x, way.before, "reshape", implicit=True)
    note_rearrangement(way.plan, x.dtype.itemsize, "reshape")
    flat = [
        piece.reshape([stop - start for start, stop in way.plan.sources[0].box(coords)])
        for piece, coords in zip(there._pieces, holding(way.before).coords, strict=True)
    ]
    made = rearrange([tuple(flat)], way.plan, x.dtype)
    pieces = tuple(
        piece.view(box_shape(box_at(way.after, shape, coords)))
        for piece, coords in zip(made, holding(way.after).coords, strict=True)
    )
    return wrap(pieces, way.after, shape, dtype=x.dtype)


def _by_rule(func: Op, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """In separate memories: shards that lie otherwise than the whole may have to be copied."""
    y = cast(Tensor, run_by_rule(func, (x, list(shape)), {}))
    if y._shown is None and any(
        new.untyped_storage()._cdata != old.untyped_storage()._cdata
        for new, old in zip(y._pieces, x._pieces, strict=True)
    ):
        return _as_view(func, x, y, shape)
    return y


def _as_view(func: Op, x: Tensor, y: Tensor, shape: tuple[int, ...]) -> Tensor:
    if holding(x._layout).unified:
        return remember_alias(y, x)
    y = shown(x, y, view_geometry(aten.view.default, (list(shape),), {}, x)[0])
    old = list(x.shape)

    def put_back(base: Tensor, view: Tensor) -> None:
        store(base, aten.reshape.default(view, old), "reshape")

    # An unsafe view mostly is of a tensor that nobody else has; it need not stay for its sake. When it goes, processes
    # may not agree on, and what they do then must not depend on that.
    weakly = func is aten._unsafe_view.default
    if weakly and execution.spans(x.mesh):
        return y
    return remember(y, x, lambda base: aten.reshape.default(base, list(shape)), put_back, weakly=weakly)
