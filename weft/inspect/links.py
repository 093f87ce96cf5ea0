"""Measuring the links between devices, as Weft's own messages use them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from ..devices import Device
from ..planning import Link, Tier, Topology, current_topology
from ..planning.topology import Processor
from ..planning.topology.topology import cells
from ..runtime.processes import world
from ..runtime.processes.communicating import communicating
from ..runtime.processes.current_call import CollectiveCall
from ..runtime.processes.group import group_of
from ..runtime.processes.mesh_processes import wire_device
from ..runtime.processes.transport.exchange import swap
from ..sharding import NamedMapping, P
from ..sharding.mesh import DeviceMesh, make_mesh
from ..tensor.creation import zeros

__all__ = ["agreed", "measured_links", "partners"]


def measured_links(size: int = 1 << 24, rounds: int = 9) -> Topology:
    """The topology of this program's devices, with links as they are: all devices send at once, tier by tier.

    >>> measured_links(1 << 12, 1).host.bandwidth > 0
    True
    """
    here = world.current()  # those that join find out how far apart they are
    found = current_topology()
    if here.count == 1:
        measured = Topology.measure(size)
        return replace(found, device=measured.device, host=measured.host)
    mesh = make_mesh({"d": here.count}, devices=_first_devices(here))
    links = {}
    for tier in (Tier.HOST, Tier.RACK, Tier.FABRIC):
        pairs = partners(mesh, found, tier)
        there = any(to is not None for to in pairs)
        links[tier] = _measured(mesh, pairs, size, rounds) if there else found.link(tier)
    measured = replace(found, host=links[Tier.HOST], rack=links[Tier.RACK], fabric=links[Tier.FABRIC])
    return replace(measured, processor=_measured_processor(mesh, measured, size, rounds))


def _measured_processor(mesh: DeviceMesh, topology: Topology, size: int, rounds: int) -> Processor | None:
    """What processors do with what arrives: all hosts gather and reduce inside themselves at once; None on accelerators."""
    hosts = cells(mesh, topology, Tier.HOST)
    if wire_device(mesh).type != "cpu" or min(map(hosts.count, hosts)) < 2:
        return None
    mine = hosts[world.current().process]
    devices = [device for device, host in zip(mesh.devices, hosts, strict=True) if host == mine]
    inside = make_mesh({"d": len(devices)}, devices=devices)
    rows, whole = NamedMapping(inside, P("d")), NamedMapping(inside, P())
    summed = NamedMapping(inside, P(), unreduced={"d": "sum"})
    columns = size // max(map(hosts.count, hosts)) // torch.float32.itemsize

    def slope(before: NamedMapping, after: NamedMapping) -> float:
        """How much longer a large tensor takes than one without elements to speak of."""
        large, small = (zeros((len(devices), length), mapping=before) for length in (columns, 1))
        took = [_slowest(partial(x.redistribute, after), rounds, torch.device("cpu")) for x in (large, small)]
        return max(took[0] - took[1], 1e-6)

    gathering, reducing = slope(rows, whole), slope(summed, rows)
    received = (len(devices) - 1) * columns * torch.float32.itemsize
    taking, adding = (min(agreed(received / each)) for each in (gathering, max(reducing - gathering, gathering / 20)))
    return Processor(taking, adding)


def _first_devices(here: world.World) -> list[Device]:
    devices = make_mesh({"d": here.count * here.devices_per_process}).devices
    return list(devices[:: here.devices_per_process])


def partners(mesh: DeviceMesh, topology: Topology, tier: Tier) -> tuple[int | None, ...]:
    """For each slot one that is just so far away, each at most once: the slot that it sends to.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh, hosts = make_mesh({"a": 4}), Topology(devices_per_host=2)
    >>> partners(mesh, hosts, Tier.HOST), partners(mesh, hosts, Tier.RACK)
    ((1, 0, 3, 2), (2, 3, 0, 1))
    """
    count = mesh.num_devices
    free = set(range(count))
    found: list[int | None] = []
    for slot in range(count):
        around = ((slot + turn) % count for turn in _turns(mesh, topology, tier))
        near = (to for to in around if to in free and topology.tier(mesh.devices[slot], mesh.devices[to]) is tier)
        to = next(near, None)
        free.discard(-1 if to is None else to)
        found.append(to)
    return tuple(found)


def _turns(mesh: DeviceMesh, topology: Topology, tier: Tier) -> Sequence[int]:
    """How far along the mesh partners are looked for: those that stand alike in the next host come first."""
    hosts = cells(mesh, topology, Tier.HOST)
    first = 1 if tier is Tier.HOST else hosts.count(hosts[0])
    return [*range(first, mesh.num_devices), *range(1, first)]


def _measured(mesh: DeviceMesh, to: Sequence[int | None], size: int, rounds: int) -> Link:
    """What messages take that all send at once: small ones for the latency, large ones for the bandwidth."""
    here, wire = world.current().process, wire_device(mesh)
    group = group_of(tuple(range(mesh.num_devices)))
    sender = to.index(here) if here in to else None

    def sent(length: int) -> Callable[[], None]:
        given, taken = (torch.zeros(length, dtype=torch.uint8, device=wire) for _ in range(2))
        outgoing = {} if to[here] is None else {int(to[here] or 0): given}
        incoming = {} if sender is None else {sender: taken}
        return lambda: swap(group, outgoing, incoming, wire)

    with communicating(CollectiveCall("weft bench --links", "bytes"), group.processes):
        latency, seconds = (_slowest(sent(length), rounds, wire) for length in (8, size))
    # Where something else has slowed the small ones down, the large ones did not take less time for their bytes than half of it.
    return Link(latency, size / max(seconds - latency, seconds / 2))


def _slowest(call: Callable[[], object], rounds: int, wire: torch.device) -> float:
    """The time of several rounds that a quarter of them comes below, on the process that took longest.

    Whatever else the machine does only makes them longer.
    """
    times = []
    for number in range(rounds + 2):
        agreed(0.0)
        start = time.perf_counter()
        call()
        if wire.type == "cuda":
            torch.cuda.synchronize()
        if number >= 2:  # what is first done once is not counted
            times.append(time.perf_counter() - start)
    return max(agreed(sorted(times)[len(times) // 4]))


def agreed(mine: float) -> list[float]:
    """What each process says, when all have said it.

    >>> agreed(1.5)
    [1.5]
    """
    here = world.current()
    if here.count == 1:
        return [mine]
    everyone = tuple(range(here.count))
    store, number = world.store(), group_of(everyone).next_number()
    store.set(f"links {number} {here.process}", json.dumps(mine))
    return [float(json.loads(store.get(f"links {number} {process}"))) for process in everyone]
