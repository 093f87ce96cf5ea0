"""How much goes over which links in a step: the bytes of one device, hop by hop and tier by tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from itertools import repeat

from ...caches import cached
from ...sharding.geometry import box, volume
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh, Slot
from ..across.reduce_across import ReduceAcross
from ..moving_steps import AllGather, AllToAll, Exchange, Permute
from ..owners import PlannedOwners, owners_of_step
from ..reducing_steps import AllReduce, ReduceExchange, ReduceScatter
from ..step import Step
from ..topology import Tier, Topology
from .delegation import delegation
from .handling import Handling, handling
from .link_load import LinkLoad
from .stages import Stages
from .vicinity import by_cell, evenly, held_nearby, load_from

__all__ = ["link_loads"]

MOST_SLOTS = 64
"""Meshes of up to so many devices are looked at device by device; of larger ones, a few devices that stand for the rest."""
SAMPLES = 4
LARGE = 128
"""On meshes of more devices, what comes in many different boxes is taken to come from all others of a group alike."""


Hops = tuple[LinkLoad, ...]


@cached(4096)
def link_loads(step: Step, topology: Topology) -> Hops:
    """For each hop of a step, the most that a device receives or sends over links of each tier."""
    if isinstance(step, ReduceAcross):
        return _from_mesh_to_mesh(step, topology)
    found = [_received(step, slot, topology) for slot in sample(step.target.mesh)]
    if step.stages is None and isinstance(step, Exchange):
        found += [(each,) for each in _sent(step, topology)]
    hops = tuple(map(_most, zip(*found, strict=True)))
    return hops if topology.has_links_apart else _shared(step, hops, topology)


def _shared(step: Step, hops: Hops, topology: Topology) -> Hops:
    """The hops, where devices share cables or cores: how busy all are, and what their processors do beside."""
    devices = len({*step.source.mesh.slot_ids, *step.target.mesh.slot_ids})
    most = max(step.bytes_received.max, *(hop.total for hop in hops))
    busy = step.bytes_received.total / (devices * most)
    handled = *(handling(step) if topology.processor is not None else ()), *repeat(Handling(1, 0), len(hops))
    return tuple(
        replace(hop, messages=max(1, each.messages), copied=each.copied, busy=busy)
        for hop, each in zip(hops, handled, strict=False)
    )


def _most(loads: Sequence[LinkLoad]) -> LinkLoad:
    host, rack, fabric = max(x.host for x in loads), max(x.rack for x in loads), max(x.fabric for x in loads)
    return LinkLoad(host, rack, fabric, max(x.added for x in loads))


def sample(mesh: DeviceMesh) -> Sequence[Slot]:
    """All slots of a mesh, or a few of a large one.

    >>> from weft.sharding.mesh import make_mesh
    >>> len(sample(make_mesh({"a": 4}))), len(sample(make_mesh({"a": 100})))
    (4, 5)
    """
    count = mesh.num_devices
    if count <= MOST_SLOTS:
        return range(count)
    return sorted({*(number * count // SAMPLES for number in range(SAMPLES)), count - 1})


@singledispatch
def _received(step: Step, slot: Slot, topology: Topology) -> Hops:
    raise NotImplementedError(f"what {step.kind} moves over which links")


@_received.register(AllGather)
@_received.register(AllToAll)
def _(step: AllGather | AllToAll, slot: Slot, topology: Topology) -> Hops:
    if step.stages is not None:
        return _multicast(step, slot, topology, step.stages)
    return (evenly(step, step.axes, slot, topology, step.received(slot)),)


@_received.register
def _(step: Permute, slot: Slot, topology: Topology) -> Hops:
    if step.stages is not None:
        return _multicast(step, slot, topology, step.stages)
    return (load_from(step.target.mesh, slot, [(step.source_of(slot), step.received(slot))], topology),)


@_received.register
def _(step: Exchange, slot: Slot, topology: Topology) -> Hops:
    if step.stages is not None:
        return _multicast(step, slot, topology, step.stages)
    if max(step.source.mesh.num_devices, step.target.mesh.num_devices) > LARGE:
        return (_from_everywhere(step, slot, topology, step.bytes_received.max),)
    given = [(each.source_slot, volume(each.box) * step.itemsize) for each in step.receives(slot)]
    return (load_from(step.target.mesh, slot, given, topology, step.source.mesh),)


@_received.register
def _(step: ReduceScatter, slot: Slot, topology: Topology) -> Hops:
    size = volume(box(step.target, step.shape, slot)) * step.itemsize
    if step.stages is not None:
        held = volume(box(_cut(step), step.shape, slot)) * step.itemsize
        return _collected(step, slot, step.stages, held, size)
    return (evenly(step, step.axes, slot, topology, size * (step.contributions - 1)).adding(),)


def _cut(step: ReduceScatter) -> Layout:
    """What a group reduces: the source, cut by the axes that were replicated."""
    return Layout(step.source.mesh, [[a for a in axes if a not in step.axes] for axes in step.target.splits])


@_received.register
def _(step: AllReduce, slot: Slot, topology: Topology) -> Hops:
    size = volume(box(step.source, step.shape, slot)) * step.itemsize
    part = size / step.contributions
    if step.stages is None:
        hop = evenly(step, step.axes, slot, topology, part * (step.contributions - 1))
        if topology.processor is not None and not owners_of_step(step, crowded=False).spreads:
            return (hop.times(step.contributions).adding(),)  # each reduces all of it
        return hop.adding(), hop
    inside, near, far = by_cell(step.source.mesh, step.axes, slot, step.stages)
    enters, passes = far.times(part / inside), near.times(part * (step.contributions - inside) / inside)
    return (*_collected(step, slot, step.stages, size, part), enters + near.times(part), passes)


@_received.register
def _(step: ReduceExchange, slot: Slot, topology: Topology) -> Hops:
    owners, mesh, size = PlannedOwners(step), step.source.mesh, step.itemsize
    if mesh.num_devices > LARGE:
        return _largely(step, slot, topology)
    if step.stages is None:
        hops = [owners.collects(slot)] + [owners.takes(slot)] * step.owners.spreads
        loads = [load_from(mesh, slot, [(t.source_slot, volume(t.box) * size) for t in hop], topology) for hop in hops]
        return loads[0].adding(), *loads[1:]
    work = delegation(owners, step.stages)
    tasks = [(m, volume(task.box) * size) for task in work.tasks(slot) for m in task.members]
    arriving = [(by, volume(where) * size) for where, delegates in work.arriving(slot) for by in delegates]
    given = [tasks, arriving]
    if step.owners.spreads:
        given += [[(t.source_slot, volume(t.box) * size) for t in work.takes(hop, slot)] for hop in (0, 1)]
    loads = [load_from(mesh, slot, hop, topology) for hop in given]
    return loads[0].adding(), loads[1].adding(), *loads[2:]


def _from_everywhere(step: Step, slot: Slot, topology: Topology, received: float) -> LinkLoad:
    """What comes from so many that it may as well come from all."""
    mesh = step.target.mesh
    return evenly(step, step.axes if step.source.mesh == mesh else mesh.axis_names, slot, topology, received)


def _largely(step: ReduceExchange, slot: Slot, topology: Topology) -> Hops:
    """A reduction on a large mesh, as if the groups of all results were alike."""
    collected, targets = step.contributions - 1, 1 if step.owners.spreads else 0
    part = step.bytes_received.max / (collected + targets)
    spread = (_from_everywhere(step, slot, topology, part),) * targets
    if step.stages is None:
        return (evenly(step, step.resolved, slot, topology, part * collected).adding(), *spread)
    inside, near, far = by_cell(step.source.mesh, step.resolved, slot, step.stages)
    return near.times(part * step.contributions / inside).adding(), far.times(part / inside).adding(), *spread


def _sent(step: Exchange, topology: Topology) -> Iterator[LinkLoad]:
    """What devices give: of small meshes, where a few may have to give everything."""
    source, target = step.source.mesh, step.target.mesh
    if max(source.num_devices, target.num_devices) <= MOST_SLOTS:
        for slot in range(source.num_devices):
            given = [(each.target_slot, volume(each.box) * step.itemsize) for each in step.sends(slot)]
            yield load_from(source, slot, given, topology, target)


def _from_mesh_to_mesh(step: ReduceAcross, topology: Topology) -> Hops:
    """The most that a device of either mesh receives in each round."""
    work = step.work
    where = [(topology.rack_of(device), topology.host_of(device)) for device in work.places.devices]
    rounds = [[[0.0, 0.0, 0.0] for _ in where] for _ in range(3)]
    near: dict[tuple[int, ...], tuple[Counter[int], Counter[tuple[int, int]]]] = {}
    """How many of some places are in each rack, and in each host: many sums are of the same contributions."""
    for number, givers, to, size in work.transfers():
        counts = near.get(givers)
        if counts is None:
            counts = Counter(where[giver][0] for giver in givers), Counter(where[giver] for giver in givers)
            near[givers] = counts
        in_rack, in_host = counts[0][where[to][0]], counts[1][where[to]]
        load, nbytes = rounds[number][to], size * step.itemsize
        load[0] += (in_host - givers.count(to)) * nbytes
        load[1] += (in_rack - in_host) * nbytes
        load[2] += (len(givers) - in_rack) * nbytes
    hops = [_most([LinkLoad(*load) for load in loads]) for loads in rounds]
    return hops[0].adding(), hops[1].adding(), hops[2]


def _multicast(step: Step, slot: Slot, topology: Topology, stages: Stages) -> Hops:
    """Into the cell once, shared among the replicas in it, then among these."""
    wanted = box(step.target, step.shape, slot)
    total = volume(wanted)
    in_host = held_nearby(step, slot, wanted, topology, Tier.HOST)
    in_rack = held_nearby(step, slot, wanted, topology, Tier.RACK)
    own = total - step.received(slot) // step.itemsize
    mesh, size = step.target.mesh, step.itemsize
    members, near, _ = by_cell(mesh, step.target.replicated_axes, slot, stages)
    if stages.tier is Tier.HOST:
        first = LinkLoad(in_host - own, (in_rack - in_host) / members, (total - in_rack) / members)
        return first.times(size), near.times((total - in_host) / members * size)
    first = LinkLoad(in_host - own, in_rack - in_host, (total - in_rack) / members)
    return first.times(size), near.times((total - in_rack) / members * size)


def _collected(step: AllReduce | ReduceScatter, slot: Slot, stages: Stages, held: float, part: float) -> Hops:
    """Inside the cell, in equal shares of what is held; then one from each other cell."""
    inside, near, far = by_cell(step.source.mesh, step.axes, slot, stages)
    return near.times(held / inside).adding(), far.times(part / inside).adding()
