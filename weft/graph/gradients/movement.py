"""Transposes of movements and collectives: where a value went, its gradient comes back from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import cast

from weft.graph.gradients.table import Backward, Contribution, transpose_of
from weft.graph.ops import allreduce
from weft.graph.ops import elementwise as ops
from weft.graph.ops.collectives import allgather, piece_of, ppermute
from weft.graph.ops.indexing import pad, slice_tensor
from weft.graph.ops.shaping import concat, rebind
from weft.graph.recording.device_ref import DeviceRef
from weft.graph.recording.distributed_value import Cut
from weft.graph.recording.values import BufferValue, TensorValue
from weft.sharding.dims import Dim

Values = tuple[TensorValue, ...]
Buffers = tuple[BufferValue, ...]


def _added(grads: Iterable[TensorValue], device: DeviceRef) -> TensorValue | None:
    """The sum of gradients from several devices, on one of them."""
    here = [grad.to(device) for grad in grads]
    return reduce(ops.add, here) if here else None


def _present(grads: Iterable[TensorValue | None]) -> list[TensorValue]:
    return [grad for grad in grads if grad is not None]


def _window(value: TensorValue, axis: int, start: Dim, length: Dim) -> TensorValue:
    return slice_tensor(value, (*[slice(None)] * axis, slice(start, start + length)))


@transpose_of("transfer_to")
def _transfer(back: Backward) -> Iterable[Contribution]:
    x, _ = cast("tuple[TensorValue, DeviceRef]", back.call.args)
    yield x, back.grad.to(x.device)


@transpose_of("local_shard")
def _local_shard(back: Backward) -> Iterable[Contribution]:
    x, cuts, _ = cast("tuple[TensorValue, tuple[Cut, ...], DeviceRef]", back.call.args)
    grad = back.grad.to(x.device)
    for dim, start, _length in reversed(cuts):
        grad = pad(grad, dim, start, x.shape[dim])
    yield x, grad


@transpose_of("distributed_broadcast")
def _broadcast(back: Backward) -> Iterable[Contribution]:
    x, _ = cast("tuple[TensorValue, Buffers]", back.call.args)
    yield x, _added(_present(back.grads), x.device)


@transpose_of("distributed_scatter")
def _scatter(back: Backward) -> Iterable[Contribution]:
    chunks, signals = cast("tuple[Values, Buffers]", back.call.args)
    each = len(signals) // len(chunks)
    for k, chunk in enumerate(chunks):
        yield chunk, _added(_present(back.grads[k * each : (k + 1) * each]), chunk.device)


@transpose_of("shard_and_stack")
def _shard_and_stack(back: Backward) -> Iterable[Contribution]:
    inputs, _, axis = cast("tuple[Values, tuple[DeviceRef, ...], int]", back.call.args)
    for j, x in enumerate(inputs):
        yield x, rebind(concat([grad[j].to(x.device) for grad in back.filled()], axis), x.shape)


@transpose_of("allgather")
def _allgather(back: Backward) -> Iterable[Contribution]:
    inputs, _, axis = cast("tuple[Values, Buffers, int]", back.call.args)
    start = Dim(0)
    for x in inputs:
        length = x.shape[axis]
        yield x, _added([_window(grad, axis, start, length) for grad in _present(back.grads)], x.device)
        start = start + length


@transpose_of("alltoall")
def _alltoall(back: Backward) -> Iterable[Contribution]:
    inputs, _, split, join = cast("tuple[Values, Buffers, int, int]", back.call.args)
    grads = back.filled()
    starts = [Dim(0)] * len(grads)
    for x in inputs:
        pieces = []
        for j, grad in enumerate(grads):
            length = piece_of(x.shape[split], len(grads), j)[1] if split == join else x.shape[join]
            pieces.append(_window(grad, join, starts[j], length).to(x.device))
            starts[j] = starts[j] + length
        yield x, rebind(concat(pieces, split), x.shape)


@transpose_of("ppermute")
def _ppermute(back: Backward) -> Iterable[Contribution]:
    inputs, signals, pairs = cast("tuple[Values, Buffers, Sequence[tuple[int, int]]]", back.call.args)
    yield from zip(inputs, ppermute(back.filled(), signals, [(b, a) for a, b in pairs]), strict=True)


Totals = Callable[[Backward], tuple[list[TensorValue], list[TensorValue]]]
"""On each device: the whole reduced value, and the whole gradient of it."""


def _everywhere(back: Backward) -> tuple[list[TensorValue], list[TensorValue]]:
    _, signals = cast("tuple[Values, Buffers]", back.call.args)
    return list(back.results), allreduce.sum(back.filled(), signals)


def _gathered(back: Backward) -> tuple[list[TensorValue], list[TensorValue]]:
    inputs, signals, axis = cast("tuple[Values, Buffers, int]", back.call.args)
    shape = inputs[0].shape
    wholes, grads = (allgather(parts, signals, axis) for parts in (back.results, back.filled()))
    return [rebind(v, shape) for v in wholes], [rebind(v, shape) for v in grads]


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


def _reduction_row(family: str, name: str, totals: Totals, formula: Callable[..., list[TensorValue]]) -> None:
    @transpose_of(f"{family}_{name}")
    def row(back: Backward) -> Iterable[Contribution]:
        inputs, signals = cast("tuple[Values, Buffers]", back.call.args[:2])
        wholes, grads = totals(back)
        yield from zip(inputs, formula(inputs, wholes, grads, signals), strict=True)


for _family, _totals in (("allreduce", _everywhere), ("reducescatter", _gathered)):
    for _name, _formula in (("sum", _sum), ("mean", _mean), ("max", _extreme), ("min", _extreme), ("prod", _prod)):
        _reduction_row(_family, _name, _totals, _formula)
