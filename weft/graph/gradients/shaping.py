"""Transposes of views, joints and cuts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from weft.graph.gradients.table import Backward, Contribution, transpose_of, unbroadcast
from weft.graph.ops.indexing import pad
from weft.graph.ops.shaping import concat, flip, permute, rebind, reshape, split, tril, triu, unsqueeze
from weft.graph.recording.values import TensorValue
from weft.sharding.dims import Dim


@transpose_of("reshape")
def _reshape(back: Backward) -> Iterable[Contribution]:
    x = cast(TensorValue, back.call.args[0])
    yield x, reshape(back.grad, x.shape)


@transpose_of("rebind")
def _rebind(back: Backward) -> Iterable[Contribution]:
    x = cast(TensorValue, back.call.args[0])
    yield x, rebind(back.grad, x.shape)


@transpose_of("broadcast_to")
def _broadcast_to(back: Backward) -> Iterable[Contribution]:
    x = cast(TensorValue, back.call.args[0])
    yield x, unbroadcast(back.grad, x)


@transpose_of("permute")
def _permute(back: Backward) -> Iterable[Contribution]:
    x, order = cast("tuple[TensorValue, Sequence[int]]", back.call.args)
    yield x, permute(back.grad, sorted(range(len(order)), key=order.__getitem__))


@transpose_of("flip")
def _flip(back: Backward) -> Iterable[Contribution]:
    x, (axis,) = cast("tuple[TensorValue, tuple[int]]", back.call.args)
    yield x, flip(back.grad, axis)


@transpose_of("tril")
def _tril(back: Backward) -> Iterable[Contribution]:
    x, diagonal = cast("tuple[TensorValue, int]", back.call.args)
    yield x, tril(back.grad, diagonal)


@transpose_of("triu")
def _triu(back: Backward) -> Iterable[Contribution]:
    x, diagonal = cast("tuple[TensorValue, int]", back.call.args)
    yield x, triu(back.grad, diagonal)


@transpose_of("concat")
def _concat(back: Backward) -> Iterable[Contribution]:
    values, axis = cast("tuple[tuple[TensorValue, ...], int]", back.call.args)
    yield from zip(values, split(back.grad, [value.shape[axis] for value in values], axis), strict=True)


@transpose_of("stack")
def _stack(back: Backward) -> Iterable[Contribution]:
    values, axis = cast("tuple[tuple[TensorValue, ...], int]", back.call.args)
    for value, piece in zip(values, split(back.grad, [1] * len(values), axis), strict=True):
        yield value, reshape(piece, value.shape)


@transpose_of("split")
def _split(back: Backward) -> Iterable[Contribution]:
    x, _, axis = cast("tuple[TensorValue, object, int]", back.call.args)
    yield x, rebind(concat(back.filled(), axis), x.shape)


@transpose_of("select")
def _select(back: Backward) -> Iterable[Contribution]:
    x, axis, at = cast("tuple[TensorValue, int, Dim]", back.call.args)
    yield x, pad(unsqueeze(back.grad, axis), axis, at, x.shape[axis])


@transpose_of("slice")
def _slice(back: Backward) -> Iterable[Contribution]:
    x, axis, start, _, step = cast("tuple[TensorValue, int, Dim, Dim, int]", back.call.args)
    yield x, pad(back.grad, axis, start, x.shape[axis], step)


@transpose_of("pad")
def _pad(back: Backward) -> Iterable[Contribution]:
    x, axis, start, step, _ = cast("tuple[TensorValue, int, Dim, int, Dim]", back.call.args)
    stop = start + x.shape[axis] * step - (step - 1)
    index = [slice(None)] * axis + [slice(start, stop, step)]
    yield x, rebind(back.grad[tuple(index)], x.shape)
