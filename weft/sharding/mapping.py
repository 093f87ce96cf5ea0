"""Mappings: the two vocabularies in which users say how a tensor lies on a mesh."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self, final

from ..caches import cached
from ..errors import ConversionError
from ..frozen import Unchanging, Written
from .layout import Layout
from .mapping_arguments import (
    check_kept,
    check_mesh,
    checked_memory_kind,
    checked_priorities,
    checked_rank,
    checked_unreduced,
)
from .mesh import DeviceMesh
from .named import DimSpec, P, SpecEntry
from .placements import Partial, Placement, ReduceOp, Replicated, Sharded

__all__ = ["DeviceMapping", "NamedMapping", "PlacementMapping", "ShardingSpec", "named_mapping"]


class DeviceMapping(Unchanging, Written, ABC):
    """Abstract base for all sharding specifications.

    >>> from weft.sharding import make_mesh
    >>> isinstance(NamedMapping(make_mesh({"dp": 2}), P("dp")), DeviceMapping)
    True
    """

    __slots__ = ("__weakref__", "_hash", "_layouts", "mesh")

    mesh: DeviceMesh
    _hash: int

    _layouts: dict[int, Layout]

    def layout(self, rank: int) -> Layout:
        """The layout of a tensor of this rank under the mapping."""
        known = self._layouts.get(rank)
        if known is None:
            known = self._layouts[rank] = self._layout(rank)
        return known

    @abstractmethod
    def _layout(self, rank: int) -> Layout: ...

    @abstractmethod
    def to_placements(self) -> tuple[Placement, ...]:
        """One placement per mesh axis, or `ConversionError` where that would lose something."""

    @abstractmethod
    def to_named_sharding(self, tensor_rank: int) -> NamedMapping:
        """The same mapping in names, for a tensor of this rank."""

    @abstractmethod
    def to_mesh(self, mesh: DeviceMesh) -> DeviceMapping:
        """The same mapping on another mesh; axes that it does not have become replicated."""

    @property
    @abstractmethod
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole value; an axis of size 1 takes nothing from it."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether nothing is left open: no pending reduction, no open dim."""

    @property
    def is_fully_resolved(self) -> bool:
        """Whether `to_placements` says all of it, and nothing of that is pending."""
        try:
            return not any(isinstance(placement, Partial) for placement in self.to_placements())
        except ConversionError:
            return False

    @abstractmethod
    def _key(self) -> tuple[object, ...]: ...

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, DeviceMapping)
        return self._key() == other._key()

    def __hash__(self) -> int:
        return self._hash

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def _freeze(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_layouts", {})
        object.__setattr__(self, "_hash", hash((type(self), self._key())))


@final
class PlacementMapping(DeviceMapping):
    """Mesh-axis-indexed sharding (PyTorch DTensor style): one placement per mesh axis.

    >>> from weft.sharding import make_mesh
    >>> mapping = PlacementMapping(make_mesh({"dp": 2, "tp": 4}), (Sharded(0), Replicated()))
    >>> mapping.to_named_sharding(2).spec
    P('dp', None)
    """

    __slots__ = ("placements",)

    placements: tuple[Placement, ...]

    def __init__(self, mesh: DeviceMesh, placements: Iterable[Placement]) -> None:
        check_mesh(mesh)
        if isinstance(placements, Placement):
            raise TypeError(f"placements has one entry per mesh axis, but got {placements!r}: use ({placements!r},)")
        placements = tuple(placements)
        for placement in placements:
            if not isinstance(placement, Placement):
                raise TypeError(
                    f"a placement is Replicated(), Sharded(axis) or Partial(reduce_op), but got {placement!r}: "
                    "use for instance Sharded(0)"
                )
        if len(placements) != mesh.ndim:
            raise ValueError(
                f"a PlacementMapping needs one placement per mesh axis: the mesh {mesh} has {mesh.ndim}, "
                f"but got {len(placements)} in {placements!r}; use Replicated() for an axis that splits nothing"
            )
        self._freeze(mesh=mesh, placements=placements)

    def _key(self) -> tuple[object, ...]:
        return self.mesh, self.placements

    def _layout(self, rank: int) -> Layout:
        splits: list[list[str]] = [[] for _ in range(checked_rank(rank))]
        pending: dict[str, ReduceOp] = {}
        for axis, placement in zip(self.mesh.axis_names, self.placements, strict=True):
            match placement:
                case Sharded():
                    splits[placement.dim(rank, axis)].append(axis)
                case Partial(op):
                    pending[axis] = op
        return Layout(self.mesh, splits, pending)

    def to_placements(self) -> tuple[Placement, ...]:
        return self.placements

    def to_named_sharding(self, tensor_rank: int) -> NamedMapping:
        return named_mapping(self.layout(tensor_rank))

    def to_mesh(self, mesh: DeviceMesh) -> PlacementMapping:
        check_mesh(mesh)
        by_axis = dict(zip(self.mesh.axis_names, self.placements, strict=True))
        check_kept({a: p.reduce_op for a, p in by_axis.items() if isinstance(p, Partial)}, mesh)
        return PlacementMapping(mesh, (by_axis.get(axis, Replicated()) for axis in mesh.axis_names))

    @property
    def is_fully_replicated(self) -> bool:
        placed = zip(self.mesh.mesh_shape, self.placements, strict=True)
        return all(size == 1 or isinstance(placement, Replicated) for size, placement in placed)

    @property
    def is_settled(self) -> bool:
        return not any(isinstance(p, Partial) for p in self.placements)

    def __reduce__(self) -> tuple[type[PlacementMapping], tuple[object, ...]]:
        return PlacementMapping, (self.mesh, self.placements)

    def __repr__(self) -> str:
        return f"PlacementMapping({self.mesh!r}, {self.placements!r})"


@final
class NamedMapping(DeviceMapping):
    """Tensor-dimension-indexed sharding (JAX PartitionSpec style): one entry per tensor dim names the axes that split it.

    >>> from weft.sharding import make_mesh
    >>> mapping = NamedMapping(make_mesh({"dp": 2, "tp": 4}), P(None, "tp"), unreduced=["dp"])
    >>> mapping.to_placements()
    (Partial(ReduceOp.SUM), Sharded(1))
    """

    __slots__ = ("memory_kind", "open_dims", "priorities", "spec", "unreduced")

    spec: P
    unreduced: Mapping[str, ReduceOp]
    priorities: tuple[int, ...]
    memory_kind: str | None
    open_dims: frozenset[int]

    def __init__(
        self,
        mesh: DeviceMesh,
        spec: Iterable[SpecEntry | DimSpec],
        unreduced: Iterable[str] | Mapping[str, ReduceOp] = (),
        priorities: Iterable[int] = (),
        memory_kind: str | None = None,
    ) -> None:
        check_mesh(mesh)
        if isinstance(spec, str):
            raise TypeError(f"a spec has one entry per tensor dim, but got the string {spec!r}: use P({spec!r})")
        entries = tuple(spec)
        dims = [entry for entry in entries if isinstance(entry, DimSpec)]
        if any(d.priority for d in dims):
            if tuple(priorities):
                raise ValueError(
                    f"priorities are given twice, in {dims!r} and as {tuple(priorities)!r}: give them once"
                )
            priorities = [entry.priority if isinstance(entry, DimSpec) else 0 for entry in entries]
        names = P(*(entry.axes if isinstance(entry, DimSpec) else entry for entry in entries))
        self._freeze(
            mesh=mesh,
            spec=names,
            unreduced=MappingProxyType(checked_unreduced(mesh, unreduced)),
            priorities=checked_priorities(priorities, names),
            memory_kind=checked_memory_kind(memory_kind),
            open_dims=frozenset(i for i, entry in enumerate(entries) if isinstance(entry, DimSpec) and entry.is_open),
        )
        self.layout(len(names))

    def _key(self) -> tuple[object, ...]:
        return self.mesh, self.spec, tuple(self.unreduced.items()), self.priorities, self.memory_kind, self.open_dims

    def _layout(self, rank: int) -> Layout:
        missing = checked_rank(rank) - len(self.spec)
        if missing < 0:
            raise ValueError(
                f"{self.spec!r} has {len(self.spec)} entries, but the tensor has rank {rank}: drop entries at the end"
            )
        splits = [() if entry is None else (entry,) if isinstance(entry, str) else entry for entry in self.spec]
        return Layout(self.mesh, splits + [()] * missing, self.unreduced)

    def to_placements(self) -> tuple[Placement, ...]:
        lost = {
            "priorities": self.priorities,
            "memory_kind": self.memory_kind,
            "the open dims": sorted(self.open_dims),
        }
        for what, value in lost.items():
            if value:
                raise ConversionError(f"placements cannot say {what} {value!r} of {self!r}: drop it first")
        layout = self.layout(len(self.spec))
        order = self.mesh.index_of
        for dim, axes in enumerate(layout.splits):
            if list(axes) != sorted(axes, key=order.__getitem__):
                raise ConversionError(
                    f"placements mean mesh-axis order {self.mesh.axis_names!r}, so the order {axes!r} of dim {dim} would be lost: "
                    "keep the NamedMapping, or reshard to mesh order"
                )
        pending = dict(layout.pending)
        return tuple(
            Sharded(layout.dim_of[axis])
            if axis in layout.dim_of
            else Partial(pending[axis])
            if axis in pending
            else Replicated()
            for axis in self.mesh.axis_names
        )

    def to_named_sharding(self, tensor_rank: int) -> NamedMapping:
        self.layout(tensor_rank)
        missing = tensor_rank - len(self.spec)
        if not missing:
            return self
        priorities = (*self.priorities, *[0] * missing) if self.priorities else ()
        entries: list[SpecEntry | DimSpec] = [*self._entries(), *[None] * missing]
        return NamedMapping(self.mesh, entries, self.unreduced, priorities, self.memory_kind)

    def to_mesh(self, mesh: DeviceMesh) -> NamedMapping:
        check_mesh(mesh)
        check_kept(self.unreduced, mesh)
        known = set(mesh.axis_names)

        def kept(axes: Iterable[str]) -> tuple[str, ...]:
            return tuple(axis for axis in axes if axis in known)

        entries = [
            DimSpec(kept(axes), is_open=dim in self.open_dims)
            for dim, axes in enumerate(self.layout(len(self.spec)).splits)
        ]
        return NamedMapping(mesh, entries, self.unreduced, self.priorities, self.memory_kind)

    @property
    def is_fully_replicated(self) -> bool:
        return self.layout(len(self.spec)).is_replicated

    @property
    def is_settled(self) -> bool:
        return not self.unreduced and not self.open_dims

    def _entries(self) -> list[SpecEntry | DimSpec]:
        splits = self.layout(len(self.spec)).splits
        return [DimSpec(splits[i], is_open=True) if i in self.open_dims else entry for i, entry in enumerate(self.spec)]

    def __reduce__(self) -> tuple[type[NamedMapping], tuple[object, ...]]:
        return NamedMapping, (self.mesh, self._entries(), dict(self.unreduced), self.priorities, self.memory_kind)

    def __repr__(self) -> str:
        parts = [repr(self.mesh), repr(self.spec if not self.open_dims else self._entries())]
        if self.unreduced:
            sums = all(op is ReduceOp.SUM for op in self.unreduced.values())
            parts.append(f"unreduced={tuple(self.unreduced)!r}" if sums else f"unreduced={dict(self.unreduced)!r}")
        if self.priorities:
            parts.append(f"priorities={self.priorities!r}")
        if self.memory_kind:
            parts.append(f"memory_kind={self.memory_kind!r}")
        return f"NamedMapping({', '.join(parts)})"


def ShardingSpec(  # noqa: N802 - a constructor's name in the documents
    mesh: DeviceMesh, dim_specs: Iterable[SpecEntry | DimSpec], replicated_axes: Iterable[str] | None = None
) -> NamedMapping:
    """A `NamedMapping` from one `DimSpec` per dim and the axes that must stay replicated.

    >>> from weft.sharding import make_mesh
    >>> ShardingSpec(make_mesh({"dp": 2, "tp": 4}), [DimSpec(["dp"]), DimSpec([])], {"tp"}).spec
    P('dp', None)
    """
    mapping = NamedMapping(mesh, dim_specs)
    if isinstance(replicated_axes, str):
        raise TypeError(
            f"replicated_axes is a set of names, but got the string {replicated_axes!r}: use {{{replicated_axes!r}}}"
        )
    used = mapping.layout(len(mapping.spec)).dim_of
    for axis in replicated_axes or ():
        mesh.axis_index(axis)
        if axis in used:
            raise ValueError(
                f"mesh axis {axis!r} is in replicated_axes, but splits dim {used[axis]} in {mapping.spec!r}: use it for one of the two"
            )
    return mapping


@cached(4096)
def named_mapping(layout: Layout) -> NamedMapping:
    """The layout in names."""
    return NamedMapping(layout.mesh, layout.splits, dict(layout.pending))
