"""Measuring the links between devices, as Weft's own messages use them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..devices import Device
from ..planning import Link, Tier, Topology, current_topology
from ..planning.topology.topology import cells
from ..runtime.processes import world
from ..runtime.processes.communicating import communicating
from ..runtime.processes.current_call import CollectiveCall
from ..runtime.processes.group import group_of
from ..runtime.processes.mesh_processes import wire_device
from ..runtime.processes.transport.exchange import swap
from ..sharding.mesh import DeviceMesh, make_mesh

__all__ = ["agreed", "measured_links", "partners"]


def measured_links(size: int = 1 << 24, rounds: int = 5) -> Topology:
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
    return replace(found, host=links[Tier.HOST], rack=links[Tier.RACK], fabric=links[Tier.FABRIC])


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
    return Link(latency, size / max(seconds - latency, 1e-9))


def _slowest(call: Callable[[], None], rounds: int, wire: torch.device) -> float:
    """The median of several rounds, on the process that took longest."""
    times = []
    for number in range(rounds + 2):
        agreed(0.0)
        start = time.perf_counter()
        call()
        if wire.type == "cuda":
            torch.cuda.synchronize()
        if number >= 2:  # what is first done once is not counted
            times.append(time.perf_counter() - start)
    return max(agreed(statistics.median(times)))


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
