"""Measuring the links between devices, as Weft's own messages use them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
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

FLOAT = torch.float32.itemsize
SMALL = 256 << 10
"""Bytes of a tensor that takes hardly longer than none, but goes as larger ones do."""


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
        links[tier] = (
            _measured(mesh, pairs, _one_of_each(mesh, found, pairs), size, rounds) if there else found.link(tier)
        )
    measured = replace(found, host=links[Tier.HOST], rack=links[Tier.RACK], fabric=links[Tier.FABRIC])
    return _with_processor(mesh, measured, size, rounds)


def _with_processor(mesh: DeviceMesh, links: Topology, size: int, rounds: int) -> Topology:
    """What processors do with what arrives: all hosts gather and reduce inside themselves at once; nothing on accelerators.

    The latency of a link is that of a whole movement then, with all that this program does for one.
    """
    hosts = cells(mesh, links, Tier.HOST)
    fewest = min(map(hosts.count, hosts))
    if wire_device(mesh).type != "cpu" or fewest < 2:
        return links
    mine = hosts[world.current().process]
    inside = make_mesh({"d": fewest}, devices=_of_host(mesh, hosts, mine)[:fewest])
    rows, columns, whole = NamedMapping(inside, P("d")), NamedMapping(inside, P(None, "d")), NamedMapping(inside, P())
    summed = NamedMapping(inside, P(), unreduced={"d": "sum"})
    small, large = (_square(fewest, nbytes) for nbytes in (SMALL, size))

    def moving(shape: tuple[int, int], before: NamedMapping, after: NamedMapping) -> Callable[[], object]:
        return partial(zeros(shape, mapping=before).redistribute, after)

    first = make_mesh({"d": 2}, devices=_of_host(mesh, hosts, hosts[0])[:2])
    moves = {
        "started": moving(small, rows, whole),
        "gathered": moving(large, rows, whole),
        "joined": moving(large, columns, whole),
        "reduced": moving(large, summed, rows),
        "by two": moving(_square(2, size), NamedMapping(first, P("d")), NamedMapping(first, P())),
    }
    took = _in_turns(moves, rounds, torch.device("cpu"))
    own = [math.prod(shape) * FLOAT // fewest for shape in (small, large)]
    received = [each * (fewest - 1) for each in own]
    gathered = max(took["gathered"] - took["started"], 1e-6)
    # Joined, all of the result is copied to its place; gathered by rows, what a device had.
    copying = received[1] / max(took["joined"] - took["gathered"], gathered / 20)
    taking = (received[1] - received[0]) / max(gathered - (own[1] - own[0]) / copying, gathered / 2)
    adding = received[1] / max(took["reduced"] - took["gathered"] + own[1] / copying, gathered / 20)
    message = _message(mesh, rounds)
    latency = took["started"] - received[0] / taking - own[0] / copying - message * (fewest - 2)
    alone = size / 2 * (1 / taking + 1 / copying) / max(took["by two"] - latency, 1e-6)
    processor = Processor(taking, adding, copying, message, max(1.0, alone))
    more = max(0.0, latency - links.host.latency)
    host, rack, fabric = (_beside(processor, links.link(tier), more) for tier in (Tier.HOST, Tier.RACK, Tier.FABRIC))
    return replace(links, processor=processor, host=host, rack=rack, fabric=fabric)


def _beside(processor: Processor, link: Link, more: float) -> Link:
    """A link without what its processors do: how much one carries that keeps up with them all, nobody sees."""
    keeps_up = link.bandwidth > processor.taking / 1.5
    most = processor.taking * processor.alone if keeps_up else 0.0
    return Link(link.latency + more, max(link.bandwidth, most), 1.0 if keeps_up else link.alone)


def _of_host(mesh: DeviceMesh, hosts: Sequence[int], which: int) -> list[Device]:
    return [device for device, host in zip(mesh.devices, hosts, strict=True) if host == which]


def _square(parts: int, nbytes: int) -> tuple[int, int]:
    """A shape of so many bytes whose dims can both be split into equal parts."""
    side = max(1, round(math.sqrt(nbytes / FLOAT)) // parts) * parts
    return side, side


def _message(mesh: DeviceMesh, rounds: int) -> float:
    """What each further message of a hop takes: all send to all others, beside each to one other."""
    count, here = mesh.num_devices, world.current().process
    if count == 2:
        return 0.0
    group, wire = group_of(tuple(range(count))), wire_device(mesh)

    def sent(turns: Sequence[int]) -> Callable[[], None]:
        given = {(here + turn) % count: torch.zeros(8, dtype=torch.uint8) for turn in turns}
        taken = {(here - turn) % count: torch.zeros(8, dtype=torch.uint8) for turn in turns}
        return lambda: swap(group, given, taken, wire)

    few, many = max(1, (count - 1) // 3), count - 1
    calls = {"few": sent(range(1, few + 1)), "many": sent(range(1, count))}
    with communicating(CollectiveCall("weft bench --links", "messages"), group.processes):
        took = _in_turns(calls, rounds, wire)
    return max(0.0, took["many"] - took["few"]) / (many - few)


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
        took = _in_turns(calls, rounds, wire)
    # Where something else has slowed the small ones down, the large ones did not take less time for their bytes than half of it.
    all_, alone = (max(took[name] - took["started"], took[name] / 2) for name in ("all", "few"))
    return Link(took["started"], size / all_, max(1.0, all_ / alone))


def _in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, wire: torch.device) -> dict[str, float]:
    """For each of several things, the time of several rounds that a quarter of them comes below, on the slowest process.

    Whatever else the machine does only makes them longer. All have their turn in each round, so that it does so to all alike.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name, call in calls.items():
            agreed(0.0)
            start = time.perf_counter()
            call()
            if wire.type == "cuda":
                torch.cuda.synchronize()
            spent = max(agreed(time.perf_counter() - start))
            if number >= 2:  # what is first done once is not counted
                times[name].append(spent)
    return {name: sorted(each)[len(each) // 4] for name, each in times.items()}


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
