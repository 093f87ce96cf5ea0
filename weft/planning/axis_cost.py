"""`axis_cost`: about what a movement takes, axis by axis, in a closed form.

A planner looks for the steps of one movement and prices them as they are carried out, which takes milliseconds. Whoever weighs
layouts of whole programs asks for tens of thousands of prices, and goes by these: what is pending is reduced and scattered, what
changes dims is exchanged, what becomes whole is gathered, in this order, nearest links first on the way down and last on the
way up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..caches import cached
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .topology import Link, Tier, Topology
from .topology.topology import cells, is_flat

__all__ = ["axis_cost"]


class _Hop(NamedTuple):
    """A part of a mesh axis whose devices are joined by links of one kind."""

    size: int
    link: Link


class _Line(NamedTuple):
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
def _lines(source: Layout, target: Layout, topology: Topology) -> tuple[_Line, ...]:
    """The prices of going straight, and of sharing among replicas what each would receive."""
    straight = _line(source, target, (), topology)
    sharing = tuple(axis for axis in source.replicated_axes if axis in target.replicated_axes)
    if not sharing or not straight.per_byte:
        return (straight,)
    return straight, _line(source, target, sharing, topology)


def _line(source: Layout, target: Layout, sharing: tuple[str, ...], topology: Topology) -> _Line:
    mesh = source.mesh
    waiting, turned = set(target.pending_axes), set(_turned(source, target))
    reduced = [axis for axis in source.pending_axes if axis not in waiting]
    swapped = [a for a, dim in source.dim_of.items() if a not in turned and target.dim_of.get(a, dim) != dim]
    gathered = [axis for axis in source.dim_of if axis not in target.dim_of and axis not in turned]
    gathered += [axis for axis in (*reduced, *sharing) if axis not in target.dim_of]
    sliced = [axis for axis in target.dim_of if axis not in source.dim_of and axis not in reduced]

    held = 1.0
    for axis in (*source.dim_of, *sliced, *sharing):
        held /= mesh.axis_size(axis)
    latency = per_byte = 0.0
    for hop in _near_first(mesh, reduced, topology):  # reduce-scatter
        latency += hop.link.latency
        per_byte += held * (1 - 1 / hop.size) / hop.link.bandwidth
        held /= hop.size
    swapped += [axis for axis in turned if axis in source.dim_of and axis in target.dim_of]
    if swapped:  # all-to-all
        hops = list(_near_first(mesh, swapped, topology))
        latency += max((hop.link.latency for hop in hops), default=0.0)
        per_byte += held * _exchanged(hops)
    lost = [axis for axis in turned if axis in source.dim_of and axis not in target.dim_of]
    for axis in lost:
        held *= mesh.axis_size(axis)
    for hop in list(_near_first(mesh, lost, topology))[-1:]:  # every device takes all of its new piece
        latency += hop.link.latency
        per_byte += held / hop.link.bandwidth
    for hop in reversed(list(_near_first(mesh, gathered, topology))):  # all-gather
        held *= hop.size
        latency += hop.link.latency
        per_byte += held * (1 - 1 / hop.size) / hop.link.bandwidth
    return _Line(latency, per_byte)


def _exchanged(hops: list[_Hop]) -> float:
    """The seconds of an all-to-all for each byte that a device holds: links of different kinds are used at once."""
    left, by_link = 1.0, dict[Link, float]()
    for hop in reversed(hops):
        by_link[hop.link] = by_link.get(hop.link, 0.0) + left * (1 - 1 / hop.size)
        left /= hop.size
    return max(share / link.bandwidth for link, share in by_link.items())


def _turned(source: Layout, target: Layout) -> Iterator[str]:
    """The axes of dims whose axes do not simply come or go at the minor end: their pieces lie elsewhere afterwards."""
    for before, after in zip(source.splits, target.splits, strict=True):
        same = next((k for k, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
        if same is not None:
            yield from before[same:]
            yield from (axis for axis in after[same:] if axis not in before)


def _near_first(mesh: DeviceMesh, axes: Iterable[str], topology: Topology) -> Iterator[_Hop]:
    hops = [hop for axis in axes for hop in _hops(mesh, axis, topology)]
    yield from sorted(hops, key=lambda hop: (-hop.link.bandwidth, -hop.size))


@cached(1024)
def _hops(mesh: DeviceMesh, axis: str, topology: Topology) -> tuple[_Hop, ...]:
    """A mesh axis as the hops within hosts, between hosts of a rack, and between racks."""
    size = mesh.axis_size(axis)
    if size == 1:
        return ()
    if mesh.is_simulated:
        return (_Hop(size, topology.device),)
    if is_flat(topology, mesh):
        return (_Hop(size, topology.host),)
    group = mesh.groups(axis)[0]
    hosts = len({cells(mesh, topology, Tier.HOST)[slot] for slot in group})
    racks = len({cells(mesh, topology, Tier.RACK)[slot] for slot in group})
    parts = ((-(-size // hosts), topology.host), (-(-hosts // racks), topology.rack), (racks, topology.fabric))
    return tuple(_Hop(count, link) for count, link in parts if count > 1)
