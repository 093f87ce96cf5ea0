"""Running one op on what devices hold, once the layouts are chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import cast

import torch

from ..rules.registry import Call, Rule, Spec
from ..runtime.holding import Holding, holding, slices
from ..sharding.geometry import box_at, box_shape
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .tensor import Tensor, wrap

__all__ = ["run_everywhere", "run_whole"]

Args = tuple[object, ...]
Kwargs = dict[str, object]


def run_whole(
    func: torch._ops.OpOverload,
    args: Args,
    kwargs: Kwargs,
    laid: Sequence[torch.Tensor],
    outputs: tuple[Layout, ...] | None,
    mesh: DeviceMesh,
) -> object:
    """Runs an op once, on whole values: one memory, nothing pending."""
    inner = iter([x._pieces[0] if isinstance(x, Tensor) else x for x in laid])
    result = func(*cast(Args, _swapped(args, inner)), **cast(Kwargs, _swapped(kwargs, inner) if kwargs else kwargs))
    return _wrapped_whole(func, result, args, kwargs, outputs, mesh)


def _wrapped_whole(
    func: torch._ops.OpOverload,
    result: object,
    args: Args,
    kwargs: Kwargs,
    outputs: tuple[Layout, ...] | None,
    mesh: DeviceMesh,
) -> object:
    layouts = iter(outputs) if outputs is not None else None

    def one(value: object, position: int) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        layout = next(layouts) if layouts is not None else Layout.replicated(mesh, value.dim())
        same = written_argument(func, position, args, kwargs)
        if same is not None:
            return same
        return wrap((value,), layout, value.shape)

    if isinstance(result, (tuple, list)):
        return type(result)(one(value, i) for i, value in enumerate(result))
    return one(result, 0)


@lru_cache(maxsize=4096)
def _aliases(func: torch._ops.OpOverload) -> tuple[int | str | None, ...]:
    """For each output, which argument it is (position, or name for keyword-only ones) when the op writes in place."""
    found: list[int | str | None] = []
    for output in func._schema.returns:
        where: int | str | None = None
        if output.alias_info is not None and output.alias_info.is_write:
            for i, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.before_set & output.alias_info.before_set:
                    where = argument.name if argument.kwarg_only else i
        found.append(where)
    return tuple(found)


def written_argument(func: torch._ops.OpOverload, position: int, args: Args, kwargs: Kwargs) -> object | None:
    """The argument that an output is, when the op writes in place."""
    aliases = _aliases(func)
    where = aliases[position] if position < len(aliases) else None
    if where is None:
        return None
    return kwargs[where] if isinstance(where, str) else args[where]


def run_everywhere(
    func: torch._ops.OpOverload,
    args: Args,
    kwargs: Kwargs,
    laid: Sequence[torch.Tensor],
    outputs: tuple[Layout, ...] | None,
    mesh: DeviceMesh,
    rule: Rule | None,
) -> object:
    """Runs an op on every device that holds something of its own."""
    inputs = [cast(Tensor, x) for x in laid]
    shapes = _global_outputs(func, args, kwargs, inputs)
    if outputs is None:
        outputs = tuple(Layout.replicated(mesh, len(spec.shape)) for spec in shapes)
    places = _places(inputs, outputs, mesh)
    done: dict[tuple[int, ...], tuple[object, ...]] = {}
    collected: list[dict[int, torch.Tensor]] = [{} for _ in outputs]
    template: object = None
    for coords, slot in places:
        local = [_read(x, coords, slot, places.iterated) for x in inputs]
        key = tuple(id(t) for t in local) if not places.iterated else (len(done),)
        if key not in done:
            local_args, local_kwargs = _local_args(func, args, kwargs, local, shapes, outputs, coords, rule, places)
            replacements = iter(local)
            template = func(
                *cast(Args, _swapped(local_args, replacements)), **cast(Kwargs, _swapped(local_kwargs, replacements))
            )
            done[key] = tuple(_flat(template))
        tensors = [value for value in done[key] if isinstance(value, torch.Tensor)]
        for k, (layout, value) in enumerate(zip(outputs, tensors, strict=True)):
            collected[k].setdefault(holding(layout).piece_of[slot], value)
    wrapped = []
    for k, (layout, spec) in enumerate(zip(outputs, shapes, strict=True)):
        pieces = tuple(collected[k][i] for i in range(holding(layout).count))
        same = written_argument(func, k, args, kwargs)
        wrapped.append(same if same is not None else wrap(pieces, layout, spec.shape, dtype=spec.dtype))
    return _shaped(template, iter(wrapped))


class _Places:
    """Where an op runs: in one memory, once per coordinate of the pending axes; else once per owned slot."""

    def __init__(self, where: Holding | None, iterated: tuple[str, ...], mesh: DeviceMesh) -> None:
        self.iterated, self.mesh, self.where = iterated, mesh, where

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], int]]:
        mesh = self.mesh
        if self.where is not None:
            for slot in self.where.residence.owned:
                yield mesh.coords(slot), slot
            return
        ranges = [
            range(n) if axis in self.iterated else range(1)
            for axis, n in zip(mesh.axis_names, mesh.mesh_shape, strict=True)
        ]
        for coords in product(*ranges):
            yield coords, mesh.slot(coords)


def _places(inputs: Sequence[Tensor], outputs: Sequence[Layout], mesh: DeviceMesh) -> _Places:
    layouts = [x._layout for x in inputs] + list(outputs)
    where = holding(layouts[0])
    if not where.unified:
        return _Places(where, (), mesh)
    pending = {axis for layout in layouts for axis in layout.pending_axes}
    return _Places(None, tuple(axis for axis in mesh.axis_names if axis in pending), mesh)


def _read(x: Tensor, coords: tuple[int, ...], slot: int, iterated: tuple[str, ...]) -> torch.Tensor:
    """What an input is at one place: its shard, or in one memory its slice along the iterated axes."""
    here = holding(x._layout)
    piece = x._pieces[here.piece_of[slot]]
    if not here.unified:
        return piece
    return piece[slices(_iterated_box(x._layout, tuple(x.shape), coords, iterated))]


def _iterated_box(
    layout: Layout, shape: tuple[int, ...], coords: tuple[int, ...], iterated: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    kept = [tuple(axis for axis in axes if axis in iterated) for axes in layout.splits]
    return box_at(Layout(layout.mesh, kept), shape, coords)


def _global_outputs(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, inputs: Sequence[Tensor]) -> list[Spec]:
    """The shapes and dtypes of the whole results."""
    key = (
        func,
        tuple((tuple(x.shape), x.dtype) for x in inputs),
        repr(_swapped((args, kwargs), iter(["T"] * len(inputs)))),
    )
    known = _known_outputs.get(key)
    if known is None:
        metas = iter([torch.empty(x.shape, dtype=x.dtype, device="meta") for x in inputs])
        result = func(*cast(Args, _swapped(args, metas)), **cast(Kwargs, _swapped(kwargs, metas)))
        known = [Spec(tuple(value.shape), value.dtype) for value in _flat(result) if isinstance(value, torch.Tensor)]
        if len(_known_outputs) > 1 << 14:
            _known_outputs.clear()
        _known_outputs[key] = known
    return known


_known_outputs: dict[object, list[Spec]] = {}


def _local_args(
    func: torch._ops.OpOverload,
    args: Args,
    kwargs: Kwargs,
    local: Sequence[torch.Tensor],
    shapes: Sequence[Spec],
    outputs: Sequence[Layout],
    coords: tuple[int, ...],
    rule: Rule | None,
    places: _Places,
) -> tuple[Args, Kwargs]:
    if rule is None or rule.local_args is None:
        return args, kwargs
    if places.where is None:
        out = [
            box_shape(_iterated_box(layout, spec.shape, coords, places.iterated))
            for layout, spec in zip(outputs, shapes, strict=True)
        ]
    else:
        out = [box_shape(box_at(layout, spec.shape, coords)) for layout, spec in zip(outputs, shapes, strict=True)]
    specs = tuple(Spec(tuple(t.shape), t.dtype) for t in local)
    placed = iter(specs)
    call = Call(func, cast(Args, _swapped(args, placed)), cast(Kwargs, _swapped(kwargs, placed)), specs)
    return rule.local_args(call, [spec.shape for spec in specs], out)


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _shaped(template: object, values: Iterator[object]) -> object:
    """The values in the structure of a result."""
    if isinstance(template, torch.Tensor):
        return next(values)
    if isinstance(template, (list, tuple)):
        return type(template)(_shaped(item, values) for item in template)
    return template


def _swapped(value: object, replacements: Iterator[object]) -> object:
    if isinstance(value, (torch.Tensor, Spec)):
        return next(replacements)
    if isinstance(value, (list, tuple)):
        return type(value)(_swapped(item, replacements) for item in value)
    if isinstance(value, dict):
        return {name: _swapped(item, replacements) for name, item in value.items()}
    return value


def elements(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return math.prod(shape)
