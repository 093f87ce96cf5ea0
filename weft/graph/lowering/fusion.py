"""Neighbouring movements that are one movement: what the second needs is taken from before the first.

    transfer(transfer(x))                  ->  transfer(x)
    broadcast(transfer(x))                 ->  x sent to each device
    gather(pieces of x, each transferred)  ->  x sent to each device
    gather(reduce-scatter(xs))             ->  all-reduce(xs)
    concat(pieces of x)                    ->  x

The first stays where something else needs it; dead code goes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from ..ops.collectives import ALLGATHER, BROADCAST
from ..ops.movement import TRANSFER
from ..ops.reducescatter import REDUCESCATTER
from ..ops.shaping import CONCAT, SPLIT
from ..recording.arguments import number_at, tensor_at, tensors_at
from ..recording.device_ref import DeviceRef
from ..recording.emitter import Emitter
from ..recording.op import PART, Op, RecordedCall
from ..recording.values import TensorValue

__all__ = ["FUSIONS", "fused"]

Nodes = fx.Node | tuple[fx.Node, ...]
Values = tuple[TensorValue, ...]

REDUCTIONS = {op: how for how, op in REDUCESCATTER.items()}


def fused(emit: Emitter, call: RecordedCall) -> Nodes | None:
    """The call written together with what comes before it, or `None` where there is nothing to join."""
    rule = FUSIONS.get(call.op)
    return None if rule is None else rule(emit, call)


def _origin(value: TensorValue) -> tuple[RecordedCall | None, int, fx.Node]:
    """The call that made a value, which of its results it is, and the node of that call."""
    node = value.node
    call: RecordedCall | None = node.meta.get("call")
    if call is not None and call.op is PART:
        whole, index = node.args
        assert isinstance(whole, fx.Node)
        assert isinstance(index, int)
        return whole.meta["call"], index, whole
    return call, 0, node


def _before_transfers(value: TensorValue) -> TensorValue:
    call, _, _ = _origin(value)
    while call is not None and call.op is TRANSFER:
        value = tensor_at(call, 0)
        call, _, _ = _origin(value)
    return value


def _transfer(emit: Emitter, call: RecordedCall) -> Nodes | None:
    x, device = tensor_at(call, 0), call.args[1]
    assert isinstance(device, DeviceRef)
    source = _before_transfers(x)
    return None if source is x else emit.moved(emit.node(source), source.device, device)


def _broadcast(emit: Emitter, call: RecordedCall) -> Nodes | None:
    x, signals = tensor_at(call, 0), call.args[1]
    assert isinstance(signals, tuple)
    source = _before_transfers(x)
    if source is x:
        return None
    return tuple(emit.moved(emit.node(source), source.device, buffer.device) for buffer in signals)


def _call_of(results: Values) -> RecordedCall | None:
    """The call that gives just these results, in this order."""
    origins = [_origin(value) for value in results]
    call, _, node = origins[0]
    if call is None or len(call.types) != len(results):
        return None
    return call if all(origin is node and index == i for i, (_, index, origin) in enumerate(origins)) else None


def _whole_of(pieces: Values, axis: int) -> TensorValue | None:
    """What was cut into just these pieces, in this order, along this dim."""
    call = _call_of(pieces)
    return tensor_at(call, 0) if call is not None and call.op is SPLIT and number_at(call, 2) == axis else None


def _concat(emit: Emitter, call: RecordedCall) -> Nodes | None:
    whole = _whole_of(tensors_at(call, 0), number_at(call, 1))
    return None if whole is None else emit.node(whole)


def _gather(emit: Emitter, call: RecordedCall) -> Nodes | None:
    inputs, axis = tensors_at(call, 0), number_at(call, 2)
    whole = _whole_of(tuple(_before_transfers(value) for value in inputs), axis)
    if whole is not None:
        return tuple(emit.moved(emit.node(whole), whole.device, value.device) for value in inputs)
    return _reduced_everywhere(emit, inputs, axis)


def _reduced_everywhere(emit: Emitter, pieces: Values, axis: int) -> Nodes | None:
    call = _call_of(pieces)
    if call is None or call.op not in REDUCTIONS or number_at(call, 2) != axis:
        return None
    inputs = tensors_at(call, 0)
    if not all(emit.share(inputs[0].device, value.device) for value in inputs):
        # With memories of their own, each device reducing its piece and then gathering is the cheaper all-reduce.
        return None
    whole = emit.reduced(REDUCTIONS[call.op], [emit.node(value) for value in inputs])
    return (whole,) * len(pieces)


FUSIONS: dict[Op, Callable[[Emitter, RecordedCall], Nodes | None]] = {
    TRANSFER: _transfer,
    BROADCAST: _broadcast,
    ALLGATHER: _gather,
    CONCAT: _concat,
}
