"""What a view op gives: strides as of the whole tensor, and the memory of what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch

from ...caches import BoundedCache
from ...rules.call import Args, BoundCall, Kwargs
from ...runtime.holding import Pieces, holding
from ...runtime.lazy_copy import may_overlap
from ...runtime.strides import in_order
from ...sharding.layout import Layout
from ..moves.movement import note_move, to_plain
from ..moves.resolving import note_turned
from ..op_plan import layouts_for
from ..sharded import ShardedTensor, wrap
from ..writes.copying import copy_once
from ..writes.writing import store
from .copy_views import Told, is_current, is_observed, remember, remember_alias, remember_told

__all__ = ["Geometry", "noted", "shown", "tell_whole", "view_geometry", "viewed", "write_whole"]

aten = torch.ops.aten
Geometry = tuple[tuple[int, ...], int]
"""Strides and storage offset."""


def viewed(
    call: BoundCall,
    result: object,
    *,
    is_alias: bool,
    is_moved: bool = False,
    tell_read: Callable[[ShardedTensor], None] | None = None,
) -> object:
    """The results of a view op; where they are no alias of the first argument's memory, they remember what they show.

    `is_moved`: with memories apart, the argument is moved for them; `tell_read` tells how, where the rule does not.
    """
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    unified = holding(x._layout).unified
    # Elements that are one may lie on several devices: a write to a view of such a copy is to change them all.
    repeats = x._value.shown is not None and may_overlap(x)
    is_told = is_alias and unified and (is_moved or repeats) and is_observed()
    is_alias = is_alias and (unified or not repeats)
    if (
        is_alias
        and unified
        and x._value.shown is None
        and x._value.resolved is None
        and not x._layout.pending
        and not is_told
    ):
        return result
    outs = cast("list[ShardedTensor]", list(result) if isinstance(result, (list, tuple)) else [result])
    if not unified:
        outs = _with_strides(call, outs, is_alias)
    for i, y in enumerate(outs):
        if is_told:
            remember_told(y, x, _told(call, tell_read))
        elif is_alias:
            remember_alias(y, x)
            note_turned(func, y, x, partial(_read, func, args[1:], kwargs, i))
        else:
            read = partial(_read, func, args[1:], kwargs, i)
            remember(y, x, read, partial(write_whole, func, args[1:], kwargs, i), told=_told(call, tell_read))
    if is_alias and x._value.resolved is not None and is_current(x):
        _share_resolved(call, outs)
    return type(result)(outs) if isinstance(result, (list, tuple)) else outs[0]


def noted(call: BoundCall, result: object) -> object:
    """The views of a pending tensor in one memory, which remember what they are views of."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    outs = cast("list[ShardedTensor]", list(result) if isinstance(result, (list, tuple)) else [result])
    for i, y in enumerate(outs):
        note_turned(func, y, x, partial(_read, func, args[1:], kwargs, i))
    if x._value.resolved is not None and is_current(x):
        _share_resolved(call, outs)
    return result


def shown(x: ShardedTensor, y: ShardedTensor, geometry: Geometry) -> ShardedTensor:
    """A copy of what a view shows of another tensor, as that view: with the strides and the offset that it has there."""
    return _at(x, y, tuple(in_order(piece, geometry[0]) for piece in y._value.pieces), geometry)


def _at(x: ShardedTensor, y: ShardedTensor, pieces: Pieces, geometry: Geometry) -> ShardedTensor:
    strides, offset = geometry
    return wrap(pieces, y._layout, y.shape, dtype=y.dtype, strides=strides, offset=int(x.storage_offset()) + offset)


def _with_strides(call: BoundCall, outs: list[ShardedTensor], is_alias: bool) -> list[ShardedTensor]:
    """In separate memories, a view has the strides that it would have if the tensor were whole: autograd uses them."""
    x = cast(ShardedTensor, call.args[0])
    places = zip(outs, view_geometry(call.func, call.args[1:], call.kwargs, x), strict=True)
    return [_at(x, y, y._value.pieces, geometry) if is_alias else shown(x, y, geometry) for y, geometry in places]


_geometries = BoundedCache[object, list[Geometry]](1 << 14)


def view_geometry(func: torch._ops.OpOverload, rest: Args, kwargs: Kwargs, x: ShardedTensor) -> list[Geometry]:
    """The strides of a view's results, and their offsets from where `x` begins."""
    key = (func, repr(rest), repr(kwargs), x.shape, x.stride())
    known = _geometries.get(key)
    if known is None:
        meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        result = func(meta, *rest, **kwargs)
        values = cast("Sequence[torch.Tensor]", result if isinstance(result, (list, tuple)) else [result])
        known = [(value.stride(), int(value.storage_offset())) for value in values]
        _geometries[key] = known
    return known


def _read(func: torch._ops.OpOverload, rest: Args, kwargs: Kwargs, i: int, base: ShardedTensor) -> ShardedTensor:
    result = _again(func, base, rest, kwargs)
    return cast(ShardedTensor, result[i] if isinstance(result, (list, tuple)) else result)


def _again(func: torch._ops.OpOverload, x: ShardedTensor, rest: Args, kwargs: Kwargs) -> object:
    """The values of a view, of a tensor that may have other strides than the one it was a view of."""
    return _op_again(func)(x, *rest, **kwargs)


def _op_again(func: torch._ops.OpOverload) -> torch._ops.OpOverload:
    return aten.reshape.default if func is aten.view.default else func


def write_whole(
    func: torch._ops.OpOverload, rest: Args, kwargs: Kwargs, i: int, base: ShardedTensor, y: ShardedTensor
) -> None:
    """Writes a view of any kind back: into a whole copy of its base, which is stored."""
    whole = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=base.device)
    copy_once(whole, to_plain(base, str(func), implicit=True))
    result = func(whole, *rest, **kwargs)
    part = cast(torch.Tensor, result[i] if isinstance(result, (list, tuple)) else result)
    copy_once(part, to_plain(y, str(func), implicit=True))
    store(base, whole, str(func))


def tell_whole(func: torch._ops.OpOverload, base: ShardedTensor, y: ShardedTensor) -> None:
    """Logs and reports what `write_whole` moves."""
    for x in (base, y):
        note_move(x, Layout.replicated(x._layout.mesh, x.dim()), str(func))


def _told(call: BoundCall, tell_read: Callable[[ShardedTensor], None] | None) -> Told:
    func, args, kwargs = call.func, call.args, call.kwargs
    return Told(tell_read or partial(_tell_read, func, args[1:], kwargs), partial(tell_whole, func))


def _tell_read(func: torch._ops.OpOverload, rest: Args, kwargs: Kwargs, base: ShardedTensor) -> None:
    note_move(base, layouts_for(BoundCall(func, (base, *rest), kwargs))[0], str(_op_again(func)))


def _share_resolved(call: BoundCall, outs: list[ShardedTensor]) -> None:
    """A view of a pending tensor that was resolved already is resolved too."""
    x = cast(ShardedTensor, call.args[0])
    assert x._value.resolved is not None
    result = _again(call.func, x._value.resolved, call.args[1:], call.kwargs)
    for y, resolved in zip(outs, result if isinstance(result, (list, tuple)) else [result], strict=True):
        if y._layout.pending and cast(ShardedTensor, resolved)._layout is y._layout.resolved:
            y._value.resolved, y._value.resolved_at = cast(ShardedTensor, resolved), x._value.resolved_at
