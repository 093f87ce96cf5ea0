"""`Arrival`: what a device receives in a call of a graph, and from whom; and the seconds that takes by the links in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ...planning import Tier, Topology
from ...planning.staging.link_load import LinkLoad
from ..recording.arguments import tensor_at, tensors_at
from ..recording.device_ref import DeviceRef
from ..recording.op import RecordedCall
from ..recording.sizes import value_of
from ..recording.types import BufferType, TensorType

__all__ = ["Arrival", "Sizes", "arrivals", "bytes_of", "receiving_times"]

Sizes = Mapping[str, int]


class Arrival(NamedTuple):
    """Bytes that a device receives, from some others as much each; those of a later hop begin when the others are there."""

    to: DeviceRef
    nbytes: int
    sources: tuple[DeviceRef, ...]
    hop: int = 0


def arrivals(call: RecordedCall, sizes: Sizes) -> Iterator[Arrival]:
    """What each device receives: the least that the call can do with."""
    rule = _ARRIVALS.get(call.op.name)
    if rule is None and call.op.name.startswith(("allreduce_", "reducescatter_")):
        rule = _reduced
    return iter(()) if rule is None else rule(call, sizes)


def receiving_times(arrived: Iterable[Arrival], topology: Topology) -> dict[DeviceRef, float]:
    """The seconds until each device has received what is for it, by the links that it comes over.

    >>> near, far = DeviceRef.CPU(0), DeviceRef.CPU(2)
    >>> links = Topology.preset("h100")
    >>> receiving_times([Arrival(DeviceRef.CPU(1), 4000, (near,))], links)[DeviceRef.CPU(1)] == 8e-6 + 4000 / 400e9
    True
    """
    loads: dict[tuple[DeviceRef, int], LinkLoad] = {}
    for to, nbytes, sources, hop in arrived:
        for source in sources:
            load = loads.get((to, hop), LinkLoad()) + _load(source, to, nbytes / len(sources), topology)
            loads[to, hop] = load
    seconds: dict[DeviceRef, float] = {}
    for (to, _), load in loads.items():
        seconds[to] = seconds.get(to, 0.0) + load.time(topology)
    return seconds


def _load(source: DeviceRef, to: DeviceRef, nbytes: float, topology: Topology) -> LinkLoad:
    tier = topology.tier(source.device, to.device)
    return LinkLoad(*(nbytes if tier is each else 0.0 for each in (Tier.HOST, Tier.RACK, Tier.FABRIC)))


def bytes_of(kind: TensorType | BufferType, sizes: Sizes) -> int:
    """The bytes of a value when names have these sizes."""
    return value_of(kind.num_elements(), sizes) * kind.dtype.itemsize


def _from_one(call: RecordedCall, sizes: Sizes) -> Iterator[Arrival]:
    """From one device to others: what arrives there, nothing where it already is."""
    first = tensors_at(call, 0)[0] if isinstance(call.args[0], tuple) else tensor_at(call, 0)
    for kind in call.types:
        if kind.device != first.device:
            yield Arrival(kind.device, bytes_of(kind, sizes), (first.device,))


def _gathered(call: RecordedCall, sizes: Sizes) -> Iterator[Arrival]:
    inputs = tensors_at(call, 0)
    for own in inputs:
        for value in inputs:
            if value is not own:
                yield Arrival(own.device, bytes_of(value.type, sizes), (value.device,))


def _others(call: RecordedCall, at: int) -> tuple[DeviceRef, ...]:
    return tuple(value.device for number, value in enumerate(tensors_at(call, 0)) if number != at)


def _exchanged(call: RecordedCall, sizes: Sizes) -> Iterator[Arrival]:
    count = len(tensors_at(call, 0))
    for at, kind in enumerate(call.types):
        yield Arrival(kind.device, bytes_of(kind, sizes) * (count - 1) // count, _others(call, at))


def _permuted(call: RecordedCall, sizes: Sizes) -> Iterator[Arrival]:
    inputs, pairs = tensors_at(call, 0), call.args[2]
    assert isinstance(pairs, tuple)
    for source, target in pairs:
        if source != target:
            yield Arrival(inputs[target].device, bytes_of(inputs[target].type, sizes), (inputs[source].device,))


def _reduced(call: RecordedCall, sizes: Sizes) -> Iterator[Arrival]:
    """Contributions to a share of the result, and then the other shares where all of it is wanted."""
    inputs = tensors_at(call, 0)
    hops = 1 if call.op.name.startswith("reducescatter_") else 2
    for at, value in enumerate(inputs):
        share = bytes_of(value.type, sizes) * (len(inputs) - 1) // len(inputs)
        yield from (Arrival(value.device, share, _others(call, at), hop) for hop in range(hops))


_ARRIVALS: dict[str, Callable[[RecordedCall, Sizes], Iterator[Arrival]]] = {
    "transfer_to": _from_one,
    "distributed_broadcast": _from_one,
    "distributed_scatter": _from_one,
    "shard_and_stack": _from_one,
    "allgather": _gathered,
    "alltoall": _exchanged,
    "ppermute": _permuted,
}
