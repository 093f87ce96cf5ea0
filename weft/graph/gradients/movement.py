"""Gradients of movements and collectives: where a value went, its gradient comes back from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TypeAlias

from ...sharding.dims import Dim
from ..ops import allreduce, collectives
from ..ops import elementwise as ops
from ..ops.allreduce import ALLREDUCE
from ..ops.collectives import Buffers, Values, allgather, piece_of, ppermute
from ..ops.indexing import pad, slice_tensor
from ..ops.movement import SHARD_AND_STACK, TRANSFER
from ..ops.reducescatter import REDUCESCATTER
from ..ops.shaping import concat, rebind
from ..recording.device_ref import DeviceRef
from ..recording.distributed_value import LOCAL_SHARD, Cut
from ..recording.values import TensorValue
from .movement_rows import Backward, Contribution, row_of


def _added(grads: Iterable[TensorValue], device: DeviceRef) -> TensorValue | None:
    """The sum of gradients from several devices, on one of them."""
    here = [grad.to(device) for grad in grads]
    return reduce(ops.add, here) if here else None


def _window(value: TensorValue, axis: int, start: Dim, length: Dim) -> TensorValue:
    return slice_tensor(value, (*[slice(None)] * axis, slice(start, start + length)))


@row_of(TRANSFER)
def _transfer(back: Backward, x: TensorValue, _device: DeviceRef) -> Iterable[Contribution]:
    yield x, _added(back.present, x.device)


@row_of(LOCAL_SHARD)
def _local_shard(back: Backward, x: TensorValue, cuts: tuple[Cut, ...], _device: DeviceRef) -> Iterable[Contribution]:
    (grad,) = back.filled()
    grad = grad.to(x.device)
    for dim, start, _length in reversed(cuts):
        grad = pad(grad, dim, start, x.shape[dim])
    yield x, grad


@row_of(collectives.BROADCAST)
def _broadcast(back: Backward, x: TensorValue, _signals: Buffers) -> Iterable[Contribution]:
    yield x, _added(back.present, x.device)


@row_of(collectives.SCATTER)
def _scatter(back: Backward, chunks: Values, signals: Buffers) -> Iterable[Contribution]:
    each = len(signals) // len(chunks)
    for k, chunk in enumerate(chunks):
        grads = back.grads[k * each : (k + 1) * each]
        yield chunk, _added([grad for grad in grads if grad is not None], chunk.device)


@row_of(SHARD_AND_STACK)
def _shard_and_stack(
    back: Backward, inputs: Values, _devices: tuple[DeviceRef, ...], axis: int
) -> Iterable[Contribution]:
    grads = back.filled()
    for j, x in enumerate(inputs):
        yield x, rebind(concat([grad[j].to(x.device) for grad in grads], axis), x.shape)


@row_of(collectives.ALLGATHER)
def _allgather(back: Backward, inputs: Values, _signals: Buffers, axis: int) -> Iterable[Contribution]:
    start = Dim(0)
    for x in inputs:
        length = x.shape[axis]
        yield x, _added([_window(grad, axis, start, length) for grad in back.present], x.device)
        start = start + length


@row_of(collectives.ALLTOALL)
def _alltoall(back: Backward, inputs: Values, _signals: Buffers, split: int, join: int) -> Iterable[Contribution]:
    grads = back.filled()
    starts = [Dim(0)] * len(grads)
    for x in inputs:
        pieces = []
        for j, grad in enumerate(grads):
            length = piece_of(x.shape[split], len(grads), j)[1] if split == join else x.shape[join]
            pieces.append(_window(grad, join, starts[j], length).to(x.device))
            starts[j] = starts[j] + length
        yield x, rebind(concat(pieces, split), x.shape)


@row_of(collectives.PPERMUTE)
def _ppermute(
    back: Backward, inputs: Values, signals: Buffers, pairs: Sequence[tuple[int, int]]
) -> Iterable[Contribution]:
    yield from zip(inputs, ppermute(back.filled(), signals, [(b, a) for a, b in pairs]), strict=True)


Formula: TypeAlias = Callable[[Values, list[TensorValue], list[TensorValue], Buffers], list[TensorValue]]
"""On each device: from the inputs, the whole reduced value and the whole gradient of it, the gradient of the input."""


def _sum(_inputs: Values, _wholes: list[TensorValue], grads: list[TensorValue], _: Buffers) -> list[TensorValue]:
    return grads


def _mean(inputs: Values, _wholes: list[TensorValue], grads: list[TensorValue], _: Buffers) -> list[TensorValue]:
    return [grad / len(inputs) for grad in grads]


def _extreme(
    inputs: Values, wholes: list[TensorValue], grads: list[TensorValue], signals: Buffers
) -> list[TensorValue]:
    """To where the value came from, shared equally among ties."""
    here = [ops.equal(x, whole).cast(x.dtype) for x, whole in zip(inputs, wholes, strict=True)]
    ties = allreduce.sum(here, signals)
    return [grad * mine / count for grad, mine, count in zip(grads, here, ties, strict=True)]


def _prod(inputs: Values, _wholes: list[TensorValue], grads: list[TensorValue], _: Buffers) -> list[TensorValue]:
    """Times the product of the others, which is right also with zeros."""
    results = []
    for i, (x, grad) in enumerate(zip(inputs, grads, strict=True)):
        others = [other.to(x.device) for j, other in enumerate(inputs) if j != i]
        results.append(grad * reduce(ops.mul, others))
    return results


FORMULAS: dict[str, Formula] = {"sum": _sum, "mean": _mean, "max": _extreme, "min": _extreme, "prod": _prod}


def _reduction_rows(name: str, formula: Formula) -> None:
    @row_of(ALLREDUCE[name])
    def everywhere(back: Backward, inputs: Values, signals: Buffers) -> Iterable[Contribution]:
        grads = allreduce.sum(back.filled(), signals)
        return zip(inputs, formula(inputs, list(back.results), grads, signals), strict=True)

    @row_of(REDUCESCATTER[name])
    def in_pieces(back: Backward, inputs: Values, signals: Buffers, axis: int) -> Iterable[Contribution]:
        wholes, grads = (
            [rebind(whole, inputs[0].shape) for whole in allgather(pieces, signals, axis)]
            for pieces in (back.results, back.filled())
        )
        return zip(inputs, formula(inputs, wholes, grads, signals), strict=True)


for _name, _formula in FORMULAS.items():
    _reduction_rows(_name, _formula)
