"""Bringing a tensor that ops only read: once, where the op before has needed it in the same layout."""

from __future__ import annotations

from operator import is_

import torch

from ...runtime.holding import Pieces, holding
from ...runtime.memory.memory_limit import memory_limit
from ...runtime.strides import dense_strides, order_of
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...watch.notes import watchers
from ..kept import Kept, keep, last_kept, memory_of
from ..sharded import ShardedTensor, requires_grad, wrap
from ..total import known_total
from .asynchrony import is_issuing
from .movement import moved
from .telling import note_move

__all__ = ["brought_once"]


def brought_once(x: ShardedTensor, need: Layout, op: str) -> ShardedTensor:
    """A tensor in another layout, for an op that reads it; what the op before was brought of the same memory serves again."""
    if need.resolved is x._layout or _is_cut(x._layout, need):
        return moved(x, need, op, implicit=True)  # every device has what it needs, or nothing: it comes from nowhere
    if not _may_serve_again(x, need):
        keep(None)  # one at a time: what comes now is not to lie beside it
        return moved(x, need, op, implicit=True)
    order, shown = _order(x), _held(x)
    memory, key = memory_of(x, shown), _key(x, need, order, shown)
    kept, now = last_kept(), watchers()
    # The memory first: sizes in the key that a compiler left open in another program are not to be compared with those of this.
    again = _again(kept, x, need, order) if kept is not None and kept.is_from(memory) and kept.key == key else None
    if kept is not None and again is not None:
        if not all(map(is_, kept.watchers, now)):
            kept.watchers = now
            note_move(x, need, op)  # whoever looks on only now is told of it too
        return again
    keep(None)
    result = moved(x, need, op, implicit=True)
    keep(Kept(key, memory, order, result, now))
    return result


def _is_cut(source: Layout, need: Layout) -> bool:
    """Whether every device keeps a part of what it has."""
    if source.mesh != need.mesh or source.pending != need.pending:
        return False
    return all(axes == more[: len(axes)] for axes, more in zip(source.splits, need.splits, strict=True))


def _may_serve_again(x: ShardedTensor, need: Layout) -> bool:
    """Whether what is brought may be kept: not of parameters, which are large, nor of what lies elsewhere than it says."""
    if x._form.is_special or x._value.rows is not None or x._layout.mesh != need.mesh:
        return False
    if is_issuing() or memory_limit() is not None:
        return False
    base = x if x._base is None else x._base
    if requires_grad(base) and (base.is_leaf or (isinstance(base, ShardedTensor) and base._value.is_traced_leaf)):
        return False
    if is_traced() and any(type(piece.storage_offset()) is not int for piece in _held(x)):
        return False  # by where it begins it would be known, and to ask is to settle it
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _held(x: ShardedTensor) -> Pieces:
    """What the value of a tensor is read from."""
    total = known_total(x) if x._layout.pending else None
    return x._value.pieces if total is None else (total,)


def _order(x: ShardedTensor) -> tuple[int, ...]:
    """The dims of a tensor as they stand in memory: those of a transposed one stand as those of the tensor do."""
    return order_of(tuple(x.shape), x.stride()) or tuple(range(x.dim()))


def _key(x: ShardedTensor, need: Layout, order: tuple[int, ...], held: Pieces) -> object:
    """All that what is brought depends on beside the memory, with the dims in the order of memory."""
    # Of pieces without elements nothing can be read, and a process may have no others: the whole says it for them.
    places = [_place(each, order) for each in (x, *(piece for piece in held if piece.numel()))]
    stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
    return x.dtype, x._layout.permuted(order), need.permuted(order), places, torch.is_inference_mode_enabled(), stream


def _place(x: torch.Tensor, order: tuple[int, ...]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Where a tensor lies in its memory; dims of size 1 have any stride, and there are more of them in pieces."""
    return int(x.storage_offset()), tuple([(x.shape[d], x.stride(d) if x.shape[d] > 1 else 0) for d in order])


def _again(kept: Kept, x: ShardedTensor, need: Layout, order: tuple[int, ...]) -> ShardedTensor | None:
    """What was brought, for a tensor whose dims may have another order; None where it would not lie as if brought for it."""
    result = kept.result
    if result is None or order == kept.order:
        return result
    if need.pending:
        return None
    to = [kept.order[order.index(dim)] for dim in range(x.dim())]
    shape, strides = tuple(x.shape), dense_strides(tuple(x.shape), x.stride())
    pieces = tuple([piece.permute(to) for piece in result._value.pieces])
    whole = holding(need).shaped_whole(pieces)
    if whole is not None:
        if any(n > 1 and own != step for n, own, step in zip(shape, whole.stride(), strides, strict=True)):
            return None
        pieces = (whole.as_strided(shape, strides),)  # dims of size 1 have any
    return wrap(pieces, need, shape, dtype=x.dtype, strides=strides)
