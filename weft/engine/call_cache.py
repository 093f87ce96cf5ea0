"""Repeated calls: what an op gives, found by one look-up, where its arguments already lie right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from ..runtime.machine import forget_with_residences
from ..sharding.layout import Layout
from .form import form_of
from .moves.resolving import is_expanded, note_computed, resolve
from .op_kind import OpKind
from .quick import Call, quick
from .recipe import Recipe
from .sharded import ShardedTensor, made, wrap_whole
from .strides.result_strides import ResultStrides, Strided
from .total import note_write
from .total_run import TotalCall
from .value import Value
from .views.view_results import noted

__all__ = [
    "NOT_REPEATED",
    "Signature",
    "is_known",
    "keep",
    "remember_call",
    "remember_other",
    "remember_recipe",
    "remember_resolving",
    "remember_shard_call",
    "repeated",
    "run_resolved",
    "signature_of",
]

Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]
Signature = tuple[object, ...]
Given = tuple[Layout, tuple[int, ...], tuple[int, ...], int]
"""The layout, shape, strides and offset of a whole result."""
Way = Callable[[Op, Args, Kwargs], object]
"""What to do when a call comes again; it may still give `NOT_REPEATED`."""

W = TypeVar("W", bound=Way)

_NUMBERS = (int, bool)

NOT_REPEATED = object()
"""What `repeated` gives for a call that has to be looked at."""

_ways: dict[Signature, Way] = {}
_MOST = 1 << 16
_MOST_PLACES = 256
forget_with_residences(_ways.clear)


def signature_of(func: Op, args: Args, kwargs: Kwargs) -> Signature | None:
    """All that the layouts of the results depend on.

    None for calls with lists of tensors, or plain or expanded ones, or those that show others.
    """
    # The hash of a number is quicker than that of an op; ops that are remembered are kept alive.
    signature: list[object] = [id(func)]
    for x in args:
        kind = type(x)
        if kind is ShardedTensor.final:
            value: Value = x._value  # type: ignore[attr-defined]
            if value.shown is not None or value.fold is not None or (value.turned is not None and is_expanded(x)):  # type: ignore[arg-type]
                return None
            signature += (x._layout, x.shape, x.dtype)  # type: ignore[attr-defined]
        elif kind is float:
            # What is linear for other numbers may not be for 0, infinity or what is not a number.
            signature.append(float if x and x - x == 0 else str(x))  # type: ignore[operator]
        elif kind is list:
            if x and type(x[0]) not in _NUMBERS:  # type: ignore[index]
                return None
            signature.append(tuple(x))  # type: ignore[arg-type]
        elif kind is torch.Tensor:
            return None
        else:
            signature += (kind, x)
    for name, x in kwargs.items():
        kind = type(x)
        if kind is list or kind is tuple or isinstance(x, torch.Tensor):
            return None
        signature += (name, kind, None if kind is float else x)
    return tuple(signature)


def repeated(func: Op, args: Args, kwargs: Kwargs, signature: Signature) -> object:
    """What a call gives that was made before with such arguments, or `NOT_REPEATED`."""
    way = _ways.get(signature)
    if way is None:
        return NOT_REPEATED
    try:
        return way(func, args, kwargs)
    except RuntimeError as error:
        # Some kernels cannot take lazy copies, which the long way knows to copy for them.
        if "COW.cpp" not in str(error) or func._schema.is_mutable:
            raise
    return NOT_REPEATED


def is_known(signature: Signature) -> bool:
    """Whether there is nothing more to learn about such calls."""
    way = _ways.get(signature)
    return way is not None and type(way) is not _ViewsOfShards


def remember_call(signature: Signature, func: Op, result: object, *, writes: bool) -> None:
    """Notes a call that took its arguments as they lie, in one memory."""
    if writes:
        _remember(signature, partial(_write, quick(func)))
    elif isinstance(result, ShardedTensor):
        _remember(signature, partial(_whole, result._layout, quick(func)))
    elif isinstance(result, (list, tuple)) and all(isinstance(value, ShardedTensor) for value in result):
        _remember(signature, partial(_wholes, [value._layout for value in result], quick(func)))


def remember_shard_call(
    signature: Signature, func: Op, result: object, kind: OpKind, args: Args, strides: ResultStrides
) -> None:
    """Notes a call that took its arguments as they lie and ran once, on the one shard of each that is stored here."""
    values = result if isinstance(result, (list, tuple)) else (result,)
    if not all(isinstance(value, ShardedTensor) for value in values):
        return
    if kind.written:
        _remember(signature, partial(_write, quick(func)))
    elif kind.is_pure:
        made = tuple((x._layout, tuple(x.shape)) for x in values)
        _remember(signature, partial(_on_shards, made, strides, quick(func)))
    else:
        given = tuple((x._layout, tuple(x.shape), x.stride(), int(x.storage_offset())) for x in values)
        x = args[0]
        assert isinstance(x, ShardedTensor)
        way = _ways.get(signature)
        if not isinstance(way, _ViewsOfShards):
            way = _remember(signature, _ViewsOfShards())
        if len(way.given) >= _MOST_PLACES:
            way.given.clear()
        way.given[x.stride(), int(x.storage_offset())] = given


def remember_recipe(signature: Signature, args: Args, total: TotalCall | None, recipe: Recipe | None) -> None:
    """Notes a call that took its arguments as they lie and ran at several places, or once for all of them."""
    waiting = tuple(at for at, x in enumerate(args) if isinstance(x, ShardedTensor) and x._layout.pending)
    _remember(signature, partial(_by_recipe, waiting, total, recipe))


def remember_resolving(signature: Signature, positions: tuple[int, ...]) -> None:
    """Notes a call that resolves some pending arguments, and then is as one with such arguments."""
    _remember(signature, partial(run_resolved, positions))


def remember_other(signature: Signature) -> None:
    """Notes a call that has to be looked at every time."""
    _remember(signature, _other)


_kept: dict[int, Op] = {}
"""The ops of the calls that are remembered, so that no other op gets the number of one that is gone; as many as there are."""


def keep(func: Op) -> None:
    """Keeps an op alive whose calls are remembered."""
    _kept[id(func)] = func


def _remember(signature: Signature, way: W) -> W:
    if len(_ways) >= _MOST:
        _ways.clear()
    _ways[signature] = way
    return way


def _whole(layout: Layout, call: Call, func: Op, args: Args, kwargs: Kwargs) -> object:
    """In one memory, a call that only reads or gives a view."""
    whole: Any = call(*[x._value.pieces[0] if isinstance(x, ShardedTensor) else x for x in args], **kwargs)
    return wrap_whole(whole, layout)


def _wholes(layouts: list[Layout], call: Call, func: Op, args: Args, kwargs: Kwargs) -> object:
    result: Any = call(*[x._value.pieces[0] if isinstance(x, ShardedTensor) else x for x in args], **kwargs)
    return type(result)([wrap_whole(value, layout) for value, layout in zip(result, layouts, strict=True)])


def _write(call: Call, func: Op, args: Args, kwargs: Kwargs) -> object:
    """A call that writes to its first argument."""
    note_write()
    call(*[x._value.pieces[0] if isinstance(x, ShardedTensor) else x for x in args], **kwargs)
    return args[0]


def _on_shards(
    made: tuple[tuple[Layout, tuple[int, ...]], ...],
    strides: ResultStrides,
    call: Call,
    func: Op,
    args: Args,
    kwargs: Kwargs,
) -> object:
    """A call that only reads, on tensors of which this process stores one shard each."""
    result: Any = call(*[x._value.pieces[0] if isinstance(x, ShardedTensor) else x for x in args], **kwargs)
    strided = strides.of(func, args, kwargs, [x for x in args if isinstance(x, ShardedTensor)])
    if isinstance(result, torch.Tensor):
        return _whose_shard(result, made[0], strided[0])
    return type(result)([_whose_shard(*each) for each in zip(result, made, strided, strict=True)])


def _whose_shard(shard: torch.Tensor, made: tuple[Layout, tuple[int, ...]], strided: Strided | None) -> ShardedTensor:
    assert strided is not None
    return _of_shard(strided.ordered((shard,))[0], (*made, strided.whole, 0))


class _ViewsOfShards:
    """The same for views, which also depend on the strides and the offset of what they are views of."""

    def __init__(self) -> None:
        self.given: dict[tuple[tuple[int, ...], int], tuple[Given, ...]] = {}

    def __call__(self, func: Op, args: Args, kwargs: Kwargs) -> object:
        x = args[0]
        if not isinstance(x, ShardedTensor) or x._value.resolved is not None:
            return NOT_REPEATED
        given = self.given.get((x.stride(), int(x.storage_offset())))
        return NOT_REPEATED if given is None else _of_shards(func(x._value.pieces[0], *args[1:], **kwargs), given)


def _by_recipe(
    waiting: tuple[int, ...],
    total: TotalCall | None,
    recipe: Recipe | None,
    func: Op,
    args: Args,
    kwargs: Kwargs,
) -> object:
    """A call that runs at several places; in one memory once, where what is pending is known whole."""
    if total is not None and total.is_view and any(args[at]._value.resolved is not None for at in waiting):  # type: ignore[attr-defined]
        return NOT_REPEATED  # a view of what has been resolved is resolved too
    result = None if total is None else total.repeat(args, kwargs)
    if result is not None and total is not None and total.is_view:
        return noted(func, args, kwargs, result)
    if result is None:
        if recipe is None:
            return NOT_REPEATED
        result = recipe(args, kwargs)
    for at in waiting:
        if args[at]._value.resolved is not None or args[at]._value.turned is not None:  # type: ignore[attr-defined]
            note_computed(func, result, args, kwargs)
            break
    return result


def run_resolved(positions: tuple[int, ...], func: Op, args: Args, kwargs: Kwargs) -> object:
    """A call of which some pending arguments are resolved first."""
    here = list(args)
    for at in positions:
        here[at] = resolve(here[at], str(func))  # type: ignore[arg-type]
    return func(*here, **kwargs)


def _other(func: Op, args: Args, kwargs: Kwargs) -> object:
    return NOT_REPEATED


def _of_shards(result: object, given: tuple[Given, ...]) -> object:
    if isinstance(result, torch.Tensor):
        return _of_shard(result, given[0])
    assert isinstance(result, (list, tuple))
    return type(result)([_of_shard(value, each) for value, each in zip(result, given, strict=True)])


def _of_shard(shard: torch.Tensor, given: Given) -> ShardedTensor:
    layout, shape, strides, offset = given
    return made(form_of(layout, shape, strides, shard.dtype, shard.device), Value((shard,)), offset)
