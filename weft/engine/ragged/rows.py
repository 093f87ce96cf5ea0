"""`RaggedRows`: the rows of a tensor that lie where they were computed, and not where its layout says; they are sent there when asked for.

A layout splits a dim evenly. What is looked up by an index, or computed by groups that devices have some of (experts), lies
elsewhere: on the device that had the row, or that has the group. Ops that treat every row for itself use rows where they are;
whatever else needs them where the layout says has them sent then. Each process knows where every row is, so that nothing but
rows has to travel, and each once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import torch

from ...caches import cached
from ...runtime.holding import Pieces
from ...runtime.machine import forget_with_residences
from ...runtime.route import Route
from ...runtime.rows import send_rows
from ...sharding.geometry import interval
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ...watch import comm_log, policy
from ..form import special
from ..memory import memory_of
from ..sharded import ShardedTensor, begins_at, made
from ..value import Value, value_from

if TYPE_CHECKING:
    from .alone import Home
    from .families import Family

__all__ = ["Groups", "RaggedRows", "along", "evenly", "held_rows", "ragged", "rows_of"]


@final
class Groups:
    """What rows were brought together for: groups, of which devices along some axes have some each."""

    __slots__ = ("axes", "home", "sizes")

    def __init__(self, axes: tuple[str, ...], sizes: tuple[int, ...], home: Home | None = None) -> None:
        self.axes, self.sizes, self.home = axes, sizes, home
        """`sizes`: how many rows each group has. `home`: where all rows are, if they are of one group."""


@final
class RaggedRows:
    """Where the rows of a tensor lie: `at` has the number of a device for each, along the axes that split the dim.

    In one memory the value is whole, and what would be sent is only told.
    """

    def __init__(
        self,
        pieces: Pieces,
        layout: Layout,
        shape: Sequence[int],
        dim: int,
        at: torch.Tensor,
        dtype: torch.dtype,
        groups: Groups | None = None,
    ) -> None:
        self.pieces, self.layout, self.shape, self.dim = pieces, layout, tuple(shape), dim
        self.at, self.dtype, self.groups = at, dtype, groups
        self.op = "a movement"
        """What rows are sent for, when they are asked for next."""
        self.family: Family | None = None
        """What shares its memory; None where it never had a view, and is none."""
        self.base: ShardedTensor | None = None
        """The tensor that it is a view of, where it is one."""
        self.read: Callable[[ShardedTensor], ShardedTensor] | None = None
        """Gives the view, of that tensor."""
        self._settled: Pieces | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the rows were sent to where the layout says, and lie there too."""
        return self._settled is not None

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that split the rows, major first."""
        return self.layout.splits[self.dim]

    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return True

    def wait(self) -> Pieces:
        """The pieces as the layout says."""
        self._settled = self._sent(evenly(self.layout.mesh, self.axes, self.shape[self.dim]), None, self.op)
        return self._settled

    def is_of(self, value: Value) -> bool:
        """Whether a value still is what these rows are."""
        return value.source is self or (value.is_made and value.pieces is self._settled)

    def bring(self, at: torch.Tensor, groups: Groups | None, op: str) -> Pieces:
        """The pieces with each row where it is wanted; from now on the rows are there."""
        if at is not self.at and not torch.equal(at, self.at):
            self.pieces = self._sent(at, groups, op)
        self.at, self.groups = at, groups
        return self.pieces

    def _sent(self, at: torch.Tensor, groups: Groups | None, op: str) -> Pieces:
        route = Route(self.at, at, self.layout.mesh.group_size(self.axes))
        self._note(route, groups, op)
        if self.family is not None:
            self.family.was_sent = True
        if not memory_of(self.layout).pieces_are_shards:
            return self.pieces
        return send_rows(self.pieces, self.layout, self.shape, self.dim, route, self.dtype, op)

    def _note(self, route: Route, groups: Groups | None, op: str) -> None:
        """Logs and reports the rows that are sent."""
        received = [route.received(number) for number in range(route.count)]
        if not sum(received) or not (comm_log.is_logging() or policy.watches()):
            return
        mesh, others = self.layout.mesh, [size for d, size in enumerate(self.shape) if d != self.dim]
        parts = math.prod(self.layout.split_count(d) for d in range(self.layout.rank) if d != self.dim)
        # What is not split evenly is largest on the first device.
        widest = math.prod(-(-size // self.layout.split_count(d)) for d, size in enumerate(self.shape) if d != self.dim)
        lines = mesh.num_devices // (route.count * parts)
        most = max(received) * widest * self.dtype.itemsize
        total = sum(received) * math.prod(others) * lines * self.dtype.itemsize
        policy.report_rearrangement(op, self.shape, self.layout, self.layout, most)
        loads = tuple(sum(row[number] for row in route.counts) for number in range(route.count))
        comm_log.log_step(
            "exchange",
            self.axes,
            self.layout,
            self.layout,
            self.shape,
            most,
            total,
            op,
            implicit=True,
            rows=loads,
            groups=() if groups is None else groups.sizes,
        )


@cached(4096, cleared_by=forget_with_residences)
def evenly(mesh: DeviceMesh, axes: tuple[str, ...], size: int) -> torch.Tensor:
    """Where rows lie that are split as layouts split them: a number for each, which nobody writes to.

    >>> from weft.sharding.mesh import make_mesh
    >>> evenly(make_mesh({"x": 2}), ("x",), 5)
    tensor([0, 0, 0, 1, 1])
    """
    sizes = [mesh.axis_size(axis) for axis in axes]
    count = math.prod(sizes)
    lengths = []
    for number in range(count):
        cuts, rest = [], number
        for size_of_axis in reversed(sizes):
            rest, index = divmod(rest, size_of_axis)
            cuts.append((size_of_axis, index))
        start, stop = interval(size, cuts[::-1])
        lengths.append(stop - start)
    return torch.repeat_interleave(torch.arange(count), torch.tensor(lengths, dtype=torch.int64))


def along(mesh: DeviceMesh, axes: tuple[str, ...], *known: tuple[tuple[str, ...], torch.Tensor | None]) -> torch.Tensor:
    """Numbers of devices along some axes; along each axis they are those of the first that knows it: (axes, numbers).

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> along(mesh, ("a", "b"), (("b",), torch.tensor([0, 1])), (("a", "b"), torch.tensor([3, 0])))
    tensor([2, 1])
    """
    result = torch.zeros((), dtype=torch.int64)
    for axis in axes:
        names, numbers = next((names, numbers) for names, numbers in known if axis in names)
        assert numbers is not None
        size, minor = mesh.axis_size(axis), mesh.group_size(names[names.index(axis) + 1 :])
        result = result * size + numbers // minor % size
    return result


def rows_of(x: object) -> RaggedRows | None:
    """The rows of a tensor that lie elsewhere than its layout says; None where they do not."""
    if not isinstance(x, ShardedTensor) or x._value.rows is None:
        return None
    return x._value.rows if x._value.rows.is_of(x._value) else None


def held_rows(x: ShardedTensor, dim: int) -> RaggedRows:
    """The rows of a tensor along a split dim, wherever they lie."""
    rows = rows_of(x)
    if rows is not None and rows.dim == dim:
        return rows
    at = evenly(x.mesh, x._layout.splits[dim], x.shape[dim])
    return RaggedRows(x._value.pieces, x._layout, x.shape, dim, at, x.dtype)


def ragged(like: ShardedTensor, rows: RaggedRows, offset: int | None = None) -> ShardedTensor:
    """The tensor of some rows, in the form of another; `offset` where it begins elsewhere than that."""
    value = value_from(rows)
    value.rows = rows
    return made(special(like._form), value, begins_at(like) if offset is None else offset)
