"""Measuring the links between devices, as Weft's own messages use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..planning import Link, Tier, Topology, current_topology
from ..planning.topology.topology import cells
from ..runtime.processes import world
from ..runtime.processes.communicating import communicating
from ..runtime.processes.current_call import CollectiveCall
from ..runtime.processes.group import group_of
from ..runtime.processes.mesh_processes import wire_device
from ..runtime.processes.transport.exchange import swap
from ..sharding.mesh import DeviceMesh, make_mesh
from .processors import Calibration
from .turns import in_turns

__all__ = ["measured_links", "partners", "tiers_here"]


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
    mesh = _mesh_of(here)
    links = {}
    for tier in (Tier.HOST, Tier.RACK, Tier.FABRIC):
        pairs = partners(mesh, found, tier)
        links[tier] = (
            _measured(mesh, pairs, _one_of_each(mesh, found, pairs), size, rounds)
            if _any_sends(pairs)
            else found.link(tier)
        )
    measured = replace(found, host=links[Tier.HOST], rack=links[Tier.RACK], fabric=links[Tier.FABRIC])
    calibration = Calibration(mesh, measured, size)
    return calibration.topology(in_turns(calibration.calls(), rounds, wire_device(mesh)))


def tiers_here() -> frozenset[Tier]:
    """The links that this program's devices have between them, and `measured_links` measures.

    >>> sorted(tier.name for tier in tiers_here())
    ['DEVICE', 'HOST']
    """
    here = world.current()
    if here.count == 1:
        return frozenset({Tier.DEVICE, Tier.HOST})
    mesh, found = _mesh_of(here), current_topology()
    return frozenset(tier for tier in (Tier.HOST, Tier.RACK, Tier.FABRIC) if _any_sends(partners(mesh, found, tier)))


def _mesh_of(here: world.World) -> DeviceMesh:
    """The first device of each process."""
    devices = make_mesh({"d": here.count * here.devices_per_process}).devices
    return make_mesh({"d": here.count}, devices=list(devices[:: here.devices_per_process]))


def _any_sends(to: Sequence[int | None]) -> bool:
    """Whether there is anybody just so far away."""
    return any(each is not None for each in to)


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


def _one_of_each(mesh: DeviceMesh, topology: Topology, to: Sequence[int | None]) -> tuple[int | None, ...]:
    """The same partners, of which one in each host receives: the first."""
    hosts = cells(mesh, topology, Tier.HOST)
    return tuple(each if each is not None and hosts.index(hosts[each]) == each else None for each in to)


def _measured(mesh: DeviceMesh, to: Sequence[int | None], few: Sequence[int | None], size: int, rounds: int) -> Link:
    """What messages take that all send at once: small ones for the latency, large ones for the bandwidth; and large ones of a few."""
    here, wire = world.current().process, wire_device(mesh)
    group = group_of(tuple(range(mesh.num_devices)))

    def sent(to: Sequence[int | None], length: int) -> Callable[[], None]:
        sender = to.index(here) if here in to else None
        given, taken = (torch.zeros(length, dtype=torch.uint8, device=wire) for _ in range(2))
        outgoing = {} if to[here] is None else {int(to[here] or 0): given}
        incoming = {} if sender is None else {sender: taken}
        return lambda: swap(group, outgoing, incoming, wire)

    calls = {"started": sent(to, 8), "all": sent(to, size), "few": sent(few, size)}
    with communicating(CollectiveCall("weft bench --links", "bytes"), group.processes):
        took = in_turns(calls, rounds, wire)
    # Where something else has slowed the small ones down, the large ones did not take less time for their bytes than half of it.
    all_, alone = (max(took[name] - took["started"], took[name] / 2) for name in ("all", "few"))
    return Link(took["started"], size / all_, max(1.0, all_ / alone))
