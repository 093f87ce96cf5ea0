"""Measuring what processors do with what is sent: movements inside each host, and the figures by which their prices are right."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress, product
from typing import NamedTuple, final

import torch

from ..devices import Device
from ..planning import Link, Tier, Topology, plan_layouts
from ..planning.staging.link_load import LinkLoad
from ..planning.staging.step_loads import link_loads
from ..planning.topology import Processor
from ..planning.topology.topology import cells
from ..runtime.processes import world
from ..runtime.processes.mesh_processes import wire_device
from ..sharding import ReduceOp
from ..sharding.layout import Layout
from ..sharding.mapping import named_mapping
from ..sharding.mesh import DeviceMesh, make_mesh
from ..tensor.creation import zeros

__all__ = ["Calibration", "TimedMove", "fitted"]

PARTS = (128, 32, 8, 1)
"""The sizes that are measured, as parts of the largest: prices of others show whether the figures say enough."""
FLOAT = torch.float32.itemsize
FASTEST = 1e12
"""Bytes a second of what takes no time that could be measured."""


class TimedMove(NamedTuple):
    """What was measured of a movement: what devices do in its hops, and the seconds that these took together."""

    hops: tuple[LinkLoad, ...]
    seconds: float


class _MeasuredMove(NamedTuple):
    """A movement to measure, and which part of all processes takes part in it."""

    source: Layout
    target: Layout
    shape: tuple[int, int]
    busy: float

    def __str__(self) -> str:
        return f"{self.source} to {self.target} of {self.shape} by {self.busy}"

    def ready(self) -> Callable[[], object]:
        """What carries it out."""
        return partial(zeros(self.shape, mapping=named_mapping(self.source)).redistribute, named_mapping(self.target))

    def hops(self, topology: Topology) -> tuple[LinkLoad, ...]:
        """What devices do in its hops."""
        steps = plan_layouts(self.source, self.target, self.shape, FLOAT, topology=topology).steps
        return tuple(
            replace(hop, busy=self.busy) for step in steps if step.phases for hop in link_loads(step, topology)
        )


@final
class Calibration:
    """Movements inside each host, which all hosts make at once, and the figures that follow from what they took.

    There are none on accelerators, nor where a host has one process.
    """

    def __init__(self, mesh: DeviceMesh, links: Topology, size: int) -> None:
        self._links, self._count = links, mesh.num_devices
        self._moves: dict[str, _MeasuredMove] = {}
        hosts = cells(mesh, links, Tier.HOST)
        fewest = min(map(hosts.count, hosts))
        if wire_device(mesh).type != "cpu" or fewest < 2:
            return
        mine = _of_host(mesh, hosts, hosts[world.current().process])
        everyone = make_mesh({"d": fewest}, devices=mine[:fewest])
        few = make_mesh({"d": 2}, devices=_of_host(mesh, hosts, hosts[0])[:2])
        self._moves = {str(move): move for move in _moves(everyone, few, 2 / self._count, size)}

    def calls(self) -> dict[str, Callable[[], object]]:
        """What has to be timed, by name."""
        return {name: move.ready() for name, move in self._moves.items()}

    def topology(self, took: Mapping[str, float]) -> Topology:
        """The links with what processors do, by the seconds that each of the calls took.

        What processors take to begin is theirs then, and the latency of a link is what it adds to that.
        """
        links = self._links
        if not self._moves:
            return links
        counting = replace(links, processor=Processor(FASTEST, FASTEST, FASTEST))
        measured = [TimedMove(move.hops(counting), took[name]) for name, move in self._moves.items()]
        processor = fitted(measured, self._count)
        host, rack, fabric = (_beside(processor, links, tier) for tier in (Tier.HOST, Tier.RACK, Tier.FABRIC))
        return replace(links, processor=processor, host=host, rack=rack, fabric=fabric)


def _moves(everyone: DeviceMesh, few: DeviceMesh, busy: float, size: int) -> Iterator[_MeasuredMove]:
    """Gathers, an exchange and reductions that all take part in, and some of two processes while the others wait."""
    for mesh, part, kinds in ((everyone, 1.0, 4), (few, busy, 2)):
        rows, columns, whole = Layout(mesh, (("d",), ())), Layout(mesh, ((), ("d",))), Layout(mesh, ((), ()))
        summed = Layout(mesh, ((), ()), {"d": ReduceOp.SUM})
        ways = [(rows, whole), (summed, rows), (columns, whole), (rows, columns)]
        for less, (source, target) in product(PARTS, ways[:kinds]):
            yield _MeasuredMove(source, target, _square(mesh.num_devices, size // less), part)


def fitted(measured: Sequence[TimedMove], most: int) -> Processor:
    """The processor by which the prices of some movements are nearest to what they took, of so many that may be busy at once.

    Of all figures, none below zero, those by which they are least wrong altogether, relative to what was measured, and right on
    average.

    >>> hops = [LinkLoad(host=1e9), LinkLoad(host=2e9), LinkLoad(host=1e9, busy=0.25)]
    >>> seconds = [1.5, 2.5, 0.75]
    >>> found = fitted([TimedMove((hop,), each) for hop, each in zip(hops, seconds)], 4)
    >>> round(found.starting, 3), round(found.taking / 1e9, 3), found.alone
    (0.5, 1.0, 2.0)
    """
    tried = [1 + number / 10 for number in range(10 * (most - 1) + 1)]
    _, figures, alone = min(((*_least_wrong(measured, alone), alone) for alone in tried), key=lambda each: each[0])
    # What was slowed down by chance says most where errors are relative to it, so that prices would be too low.
    short = statistics.geometric_mean(
        each.seconds / sum(map(operator.mul, figures, _done(each.hops, alone))) for each in measured
    )
    starting, message, *per_byte = (short * each for each in figures)
    taking, adding, copying = (1 / max(each, 1 / FASTEST) for each in per_byte)
    return Processor(taking, adding, copying, message, alone, starting)


def _least_wrong(measured: Sequence[TimedMove], alone: float) -> tuple[float, list[float]]:
    """How wrong prices are at least, all together, and the figures by which they are."""
    rows = torch.tensor([_done(each.hops, alone) for each in measured], dtype=torch.float64)
    rows = rows / torch.tensor([[each.seconds] for each in measured], dtype=torch.float64)
    scale = rows.amax(0)
    done = [column for column, most in enumerate(scale) if most > 0]  # two processes send no second message
    best = math.inf, [0.0] * len(scale)
    for used in product((True, False), repeat=len(done)):
        kept = list(compress(done, used))
        part = rows[:, kept] / scale[kept]
        found = torch.linalg.lstsq(part, torch.ones(len(rows), 1, dtype=torch.float64), driver="gelsd").solution
        wrong = float((part @ found - 1).square().sum())
        if wrong < best[0] * (1 - 1e-9) and bool((found >= 0).all()):
            each = dict(zip(kept, (found[:, 0] / scale[kept]).tolist(), strict=True))
            best = wrong, [each.get(column, 0.0) for column in range(len(scale))]
    return best


def _done(hops: Sequence[LinkLoad], alone: float) -> list[float]:
    """What a processor does in some hops: begins them, begins further messages, takes, adds, copies."""
    each = [
        [max(hop.busy, 1 / alone) * amount for amount in (1, hop.messages - 1, hop.total, hop.added, hop.copied)]
        for hop in hops
    ]
    return [sum(column) for column in zip(*each, strict=True)]


def _beside(processor: Processor, links: Topology, tier: Tier) -> Link:
    """A link without what its processors do: how much one carries that keeps up with them all, nobody sees."""
    link = links.link(tier)
    # What processors take in was measured over the links of a host, so these keep up.
    keeps_up = tier is Tier.HOST or link.bandwidth > processor.taking / 1.5
    most = processor.taking * processor.alone if keeps_up else 0.0
    latency = max(0.0, link.latency - links.host.latency)
    return Link(latency, max(link.bandwidth, most), 1.0 if keeps_up else link.alone)


def _of_host(mesh: DeviceMesh, hosts: Sequence[int], which: int) -> list[Device]:
    return [device for device, host in zip(mesh.devices, hosts, strict=True) if host == which]


def _square(parts: int, nbytes: int) -> tuple[int, int]:
    """A shape of so many bytes whose dims can both be split into equal parts."""
    side = max(1, round(math.sqrt(nbytes / FLOAT)) // parts) * parts
    return side, side
