"""`axis_cost`: about what a movement takes, axis by axis, in a closed form.

A planner looks for the steps of one movement and prices them as they are carried out, which takes milliseconds. Whoever weighs
layouts of whole programs asks for tens of thousands of prices, and goes by these: what is pending is reduced and scattered, what
changes dims is exchanged, what becomes whole is gathered, in this order: straight, which is best for little, or host by host or
rack by rack, nearest links first on the way down and last on the way up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...caches import cached
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ..topology import Tier, Topology
from ..topology.topology import cells, is_flat

__all__ = ["axis_cost"]


class _Hop(NamedTuple):
    """A part of a mesh axis whose devices are joined by links of one kind."""

    size: int
    tier: Tier


class _LinearCost(NamedTuple):
    """What a movement takes: something at least, and something for each byte of the whole tensor."""

    latency: float
    per_byte: float

    def time(self, nbytes: float) -> float:
        return self.latency + self.per_byte * nbytes


def axis_cost(source: Layout, target: Layout, nbytes: float, topology: Topology) -> float:
    """The seconds from one layout to another of a tensor that has so many bytes in all, on one mesh.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4})
    >>> rows, whole = Layout(mesh, (("tp",), ())), Layout(mesh, ((), ()))
    >>> axis_cost(rows, whole, 4e9, Topology()), axis_cost(whole, rows, 4e9, Topology())
    (0.30001, 0.0)
    """
    return 0.0 if source is target else min(line.time(nbytes) for line in _lines(source, target, topology))


@cached(1 << 16)
def _lines(source: Layout, target: Layout, topology: Topology) -> tuple[_LinearCost, ...]:
    """The prices of going straight, host by host and rack by rack, and of sharing among replicas what each would receive."""
    sharing = tuple(axis for axis in source.replicated_axes if axis in target.replicated_axes)
    found = [_line(source, target, (), topology, through) for through in _THROUGH]
    if sharing and found[0].per_byte:
        shared = [_line(source, target, sharing, topology, through) for through in _THROUGH]
        # Replicas of what is reduced receive less when each reduces a part, and plans are for the fewest bytes.
        is_total = any(axis in target.replicated_axes for axis in source.pending_axes)
        found = shared if is_total else found + shared
    return tuple(dict.fromkeys(found))


class _Changes(NamedTuple):
    """What becomes of the mesh axes that split a tensor, or along which it is pending."""

    reduced: list[str]
    sliced: list[str]
    """Those that split what every device has."""
    swapped: list[str]
    """Those that split another dim, or the same in another order."""
    turned: list[str]
    """The same where nothing else changes: each device takes the piece of another."""
    lost: list[str]
    """Those that no longer split a dim whose pieces lie elsewhere."""
    gathered: list[str]


def _changes(source: Layout, target: Layout, sharing: tuple[str, ...]) -> _Changes:
    before, after, turned = source.dim_of, target.dim_of, set(_turned(source, target))
    reduced = [axis for axis in source.pending_axes if axis not in target.pending_axes]
    swapped = [axis for axis, dim in before.items() if axis not in turned and after.get(axis, dim) != dim]
    changed = [axis for axis in turned if axis in before and axis in after]
    only_turned = not swapped and all(before[axis] == after[axis] for axis in changed)
    gathered = [axis for axis in before if axis not in after and axis not in turned]
    return _Changes(
        reduced,
        sliced=[axis for axis in after if axis not in before and axis not in reduced],
        swapped=swapped if only_turned else swapped + changed,
        turned=changed if only_turned else [],
        lost=[axis for axis in turned if axis in before and axis not in after],
        gathered=gathered + [axis for axis in (*reduced, *sharing) if axis not in after],
    )


def _line(
    source: Layout, target: Layout, sharing: tuple[str, ...], topology: Topology, through: Tier | None
) -> _LinearCost:
    stages = list(_priced(source, target, sharing, topology, through))
    return _LinearCost(sum(stage.latency for stage in stages), sum(stage.per_byte for stage in stages))


def _priced(
    source: Layout, target: Layout, sharing: tuple[str, ...], topology: Topology, through: Tier | None
) -> Iterator[_LinearCost]:
    """What each stage of a movement takes."""
    mesh, changes = source.mesh, _changes(source, target, sharing)

    def stage(hops: list[_Hop], per_byte: float) -> _LinearCost:
        return _LinearCost(topology.latency(hops[-1].tier), per_byte)

    held = 1.0
    for axis in (*source.dim_of, *changes.sliced, *sharing):
        held /= mesh.axis_size(axis)
    for hops in _stages(mesh, changes.reduced, topology, through):  # reduce-scatter
        yield stage(hops, held * _exchanged(hops, topology, adds=True))
        held /= _size(hops)
    foreign = 1
    for hops in _stages(mesh, changes.swapped, topology, None):  # all-to-all
        yield stage(hops, held * _exchanged(hops, topology))
        foreign *= _size(hops)
    for hops in _stages(mesh, changes.turned, topology, None):
        tiers = {hop.tier for hop in hops if hop.tier > Tier.HOST} or {hops[-1].tier}
        yield stage(hops, held * sum(1 / topology.link(tier).bandwidth for tier in tiers))
    for axis in changes.lost:
        held *= mesh.axis_size(axis)
    for hops in _stages(mesh, changes.lost, topology, None):  # every device takes all of its new piece
        yield stage(hops, held / topology.link(hops[-1].tier).bandwidth)
    for hops in reversed(list(_stages(mesh, changes.gathered, topology, through))):  # all-gather
        held *= _size(hops)
        # What a cell had before comes while it waits for the rest.
        yield stage(hops, held * _exchanged(hops, topology) * (1 - 1 / foreign if foreign > 1 else 1))
        foreign *= _size(hops)


_THROUGH = (None, Tier.HOST, Tier.RACK)
"""Straight, host by host, rack by rack."""


def _stages(mesh: DeviceMesh, axes: Iterable[str], topology: Topology, through: Tier | None) -> Iterator[list[_Hop]]:
    """The hops that are taken at once, nearest first: all of them, or those within a cell before those between cells."""
    hops = sorted((hop for axis in axes for hop in _hops(mesh, axis, topology)), key=lambda hop: (hop.tier, -hop.size))
    within = [hop for hop in hops if through is not None and hop.tier <= through]
    yield from (part for part in (within, hops[len(within) :]) if part)


def _size(hops: list[_Hop]) -> int:
    return math.prod(hop.size for hop in hops)


def _exchanged(hops: list[_Hop], topology: Topology, *, adds: bool = False) -> float:
    """The seconds for each byte that a device holds of which every device of a group takes an equal part.

    What leaves the host goes over one link, beside what stays there; a processor has to work for all of it.
    """
    left, near, beyond, total = 1.0, 0.0, 0.0, 0.0
    for hop in reversed(hops):
        share = left * (1 - 1 / hop.size)
        seconds = share / topology.link(hop.tier).bandwidth
        near, beyond = (near, beyond + seconds) if hop.tier > Tier.HOST else (near + seconds, beyond)
        total, left = total + share, left / hop.size
    processor = topology.processor
    if processor is None:
        return max(near, beyond)
    return max(near, beyond, total / processor.taking) + processor.after(total if adds else 0.0, 0.0)


def _turned(source: Layout, target: Layout) -> Iterator[str]:
    """The axes of dims whose axes do not simply come or go at the minor end: their pieces lie elsewhere afterwards."""
    for before, after in zip(source.splits, target.splits, strict=True):
        same = next((k for k, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
        if same is not None:
            yield from before[same:]
            yield from (axis for axis in after[same:] if axis not in before)


@cached(1024)
def _hops(mesh: DeviceMesh, axis: str, topology: Topology) -> tuple[_Hop, ...]:
    """A mesh axis as the hops within hosts, between hosts of a rack, and between racks."""
    size = mesh.axis_size(axis)
    if size == 1:
        return ()
    if mesh.is_simulated:
        return (_Hop(size, Tier.DEVICE),)
    if is_flat(topology, mesh):
        return (_Hop(size, Tier.HOST),)
    group = mesh.groups(axis)[0]
    hosts = len({cells(mesh, topology, Tier.HOST)[slot] for slot in group})
    racks = len({cells(mesh, topology, Tier.RACK)[slot] for slot in group})
    parts = (-(-size // hosts), Tier.HOST), (-(-hosts // racks), Tier.RACK), (racks, Tier.FABRIC)
    return tuple(_Hop(count, tier) for count, tier in parts if count > 1)
