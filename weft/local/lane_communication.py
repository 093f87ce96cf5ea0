"""Communication between lanes: what they hold becomes one tensor and goes through the same op as anywhere else.

lifted        other axes, group axes, local dims…      the first two dims are split, each device is one index
split by dim  other axes, local dims…                  and one local dim is split by the group's axes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from ..engine.moves.shards import shards_of
from ..errors import MismatchError
from ..runtime.processes.agreement.own_faults import tell_others
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping, NamedMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.named import SpecEntry
from ..sharding.placements import ReduceOp
from ..tensor.collectives import all_gather, all_reduce, all_to_all, ppermute, reduce_scatter
from ..tensor.creation import of_shards
from ..tensor.lane import Lane, Request
from ..tensor.movements import redistribute
from ..tensor.tensor import Tensor
from ..watch import comm_log

__all__ = ["answered", "together", "told"]


def together(
    shards: Sequence[torch.Tensor], mapping: DeviceMapping, check: Callable[[torch.Tensor], None] = lambda _: None
) -> Tensor:
    """The tensor that these shards, one per device of this process, are part of; all processes of the mesh call this.

    `check` looks at the sizes of all shards, a row for each device, where other processes hold others.

    >>> from weft.sharding import P, make_mesh
    >>> together([torch.zeros(2), torch.ones(1)], NamedMapping(make_mesh({"tp": 2}), P("tp"))).tolist()
    [0.0, 0.0, 1.0]
    """
    layout = mapping.layout(shards[0].dim())
    if len(shards) == layout.mesh.num_devices or shards[0].is_meta:
        return of_shards(shards, mapping, asks=False)
    return of_shards(shards, mapping, shape=_agreed_shape(shards, layout, check), asks=False)


def _agreed_shape(
    shards: Sequence[torch.Tensor], layout: Layout, check: Callable[[torch.Tensor], None]
) -> tuple[int, ...]:
    """The global shape when other processes hold other shards: they tell each other their sizes."""
    mesh, rank = layout.mesh, shards[0].dim()
    sizes = [torch.tensor(shard.shape, dtype=torch.int64).reshape(1, rank) for shard in shards]
    with comm_log.paused():  # in one process nobody asks
        table = told(sizes, mesh)
    check(table)
    return tuple(
        sum(int(table[slot, dim]) for slot in (mesh.groups(axes)[0] if axes else (0,)))
        for dim, axes in enumerate(layout.splits)
    )


def told(rows: Sequence[torch.Tensor], mesh: DeviceMesh) -> torch.Tensor:
    """The rows of all devices of a mesh, of which this process gives those of its own; processes without any do not call this."""
    shape = (mesh.num_devices, rows[0].shape[1])
    own = of_shards(rows, NamedMapping(mesh, [mesh.axis_names]), shape=shape, asks=False)
    whole = redistribute(own, NamedMapping(mesh, []), op="local_map")
    assert isinstance(whole, Tensor)
    return shards_of(whole)[0].cpu()


@dataclass(frozen=True, slots=True)
class _LaneValues:
    """What the lanes hold, the mesh axes they communicate along by default, and what the first of them asks for."""

    mesh: DeviceMesh
    axes: tuple[str, ...]
    shards: tuple[torch.Tensor, ...]
    asked: Request

    def group(self, named: str | Iterable[str] | None) -> tuple[str, ...]:
        """The axes of the groups, in mesh order."""
        names = self.axes if named is None else {named} if isinstance(named, str) else set(named)
        for name in names:
            self.mesh.axis_index(name)
        return tuple(axis for axis in self.mesh.axis_names if axis in names)

    def others(self, group: Sequence[str]) -> tuple[str, ...]:
        """The axes that tell the groups apart."""
        return tuple(axis for axis in self.mesh.axis_names if axis not in group)

    def lifted(self, group: Sequence[str]) -> Tensor:
        """One tensor with the groups and the devices of a group as leading dims."""
        mapping = NamedMapping(self.mesh, [self.others(group), tuple(group)])
        return together([shard[None, None] for shard in self.shards], mapping, self.check)

    def split(self, dim: int, group: Sequence[str]) -> Tensor:
        """One tensor with the groups as leading dim, and dim `dim` of what they hold split over a group."""
        entries: list[SpecEntry] = [self.others(group), *[None] * self.shards[0].dim()]
        entries[dim + 1] = tuple(group)
        return together([shard[None] for shard in self.shards], NamedMapping(self.mesh, entries), self.check)

    def check(self, sizes: torch.Tensor) -> None:
        """Raises where a device of another process holds another shape, as where it is of this one."""
        rank = self.shards[0].dim()
        first, *others = (tuple(row[len(row) - rank :]) for row in sizes.tolist())
        for slot, shape in enumerate(others, 1):
            _check_shapes(self.asked, (Lane(self.mesh, 0, self.axes), first), (Lane(self.mesh, slot, self.axes), shape))

    def dim(self, axis: int, op: str) -> int:
        """A tensor dim of what a device holds, counted from the front."""
        rank = self.shards[0].dim()
        if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
            raise ValueError(f"{op}: dim {axis!r} is out of range for what each device holds, of rank {rank}")
        return axis % rank


def _lowered(x: torch.Tensor, leading: int) -> list[torch.Tensor]:
    """What each lane holds of a tensor whose leading dims, of local size 1, stand for the devices."""
    assert isinstance(x, Tensor)
    return [shard[(0,) * leading] for shard in shards_of(x)]


def _all_reduce(
    held: _LaneValues, reduce_op: str | ReduceOp = "sum", reduce_axes: str | Iterable[str] | None = None
) -> list[torch.Tensor]:
    group = held.group(reduce_axes)
    return _lowered(all_reduce(held.lifted(group), reduce_op, group), 2)


def _reduce_scatter(
    held: _LaneValues, axis: int, reduce_op: str | ReduceOp = "sum", reduce_axes: str | Iterable[str] | None = None
) -> list[torch.Tensor]:
    group, dim = held.group(reduce_axes), held.dim(axis, "reduce_scatter")
    return _lowered(reduce_scatter(held.lifted(group), dim + 2, reduce_op, group), 2)


def _all_gather(held: _LaneValues, axis: int | None = None) -> list[torch.Tensor]:
    if axis is None:
        raise TypeError(
            "all_gather inside local_map needs axis=, the dim to put together: what a device holds does not say how it is split"
        )
    dim = held.dim(axis, "all_gather")
    return _lowered(all_gather(held.split(dim, held.axes), dim + 1), 1)


def _all_to_all(held: _LaneValues, split_axis: int, concat_axis: int, tiled: bool = True) -> list[torch.Tensor]:
    split, concat = held.dim(split_axis, "all_to_all split_axis"), held.dim(concat_axis, "all_to_all concat_axis")
    count = held.mesh.group_size(held.axes)
    size = held.shards[0].shape[split]
    if size % count or (not tiled and size != count):
        need = "be divisible by" if tiled else "have the size of"
        raise ValueError(
            f"all_to_all: dim {split} (size {size} on each device) must {need} the group, {count} devices along {', '.join(map(repr, held.axes))}"
        )
    if tiled and split != concat:
        return _lowered(all_to_all(held.split(concat, held.axes), split + 1, concat + 1), 1)
    # The index of the part and the index of the device change places; what was the device's then goes to `concat`.
    x: torch.Tensor = held.lifted(held.axes)
    x = x.unflatten(split + 2, (count, size // count)).transpose(1, split + 2)
    x = x.flatten(split + 2, split + 3) if tiled else x.squeeze(split + 3).movedim(split + 2, concat + 2)
    target = NamedMapping(held.mesh, [held.others(held.axes), held.axes])
    return _lowered(redistribute(x, target, op="all_to_all"), 2)


def _ppermute(held: _LaneValues, permutation: Iterable[tuple[int, int]]) -> list[torch.Tensor]:
    everything = NamedMapping(held.mesh, [held.mesh.axis_names])
    whole = together([shard[None] for shard in held.shards], everything, held.check)
    return _lowered(ppermute(whole, permutation), 1)


_OPS: dict[str, Callable[..., list[torch.Tensor]]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "reduce_scatter": _reduce_scatter,
}


def answered(lanes: Sequence[Lane]) -> list[torch.Tensor]:
    """Does what all lanes ask for, and gives each its part."""
    requests = [lane.request for lane in lanes]
    first = requests[0]
    assert first is not None
    try:
        for lane, request in zip(lanes, requests, strict=True):
            assert request is not None
            _check_alike(lanes[0], first, lane, request)
    except MismatchError as error:  # between devices of this process, which others do not see
        tell_others(error)
        raise
    shards = tuple(request.x for request in requests if request is not None)
    held = _LaneValues(lanes[0].mesh, lanes[0].axes, shards, first)
    with torch.set_grad_enabled(first.with_grad):
        return _OPS[first.op](held, *first.args, **first.kwargs)


def _check_alike(one: Lane, first: Request, lane: Lane, request: Request) -> None:
    """Raises when two lanes ask for different things."""
    if (request.op, request.args, request.kwargs) != (first.op, first.args, first.kwargs):
        raise MismatchError(
            f"{one} calls {_shown(first)} at {first.call_site}, but {lane} calls {_shown(request)} at {request.call_site}: "
            "every device must make the same calls in the same order"
        )
    _check_shapes(first, (one, tuple(first.x.shape)), (lane, tuple(request.x.shape)), request.x.dtype)


_Held = tuple[Lane, tuple[int, ...]]
"""A lane, and the shape of what it holds."""


def _check_shapes(first: Request, one: _Held, other: _Held, dtype: torch.dtype | None = None) -> None:
    """Raises when two lanes hold other shapes or dtypes, where the op cannot take them together."""
    kind = first.x.dtype if dtype is None else dtype
    may_differ = first.op == "all_gather" and len(one[1]) == len(other[1])
    if kind != first.x.dtype or (one[1] != other[1] and not may_differ):
        raise MismatchError(
            f"{first.op} at {first.call_site}: {one[0]} holds {one[1]} of {first.x.dtype}, but {other[0]} holds "
            f"{other[1]} of {kind}: pad the tensor so that it splits evenly, and convert it to one dtype"
        )


def _shown(request: Request) -> str:
    named = [*map(repr, request.args), *(f"{name}={value!r}" for name, value in request.kwargs.items())]
    return f"{request.op}({', '.join(['x', *named])})"
