"""`Layout`: how a tensor lies on a mesh, in the one form that everything below the vocabularies works with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import final
from weakref import WeakValueDictionary

from ..frozen import Written
from .mesh import DeviceMesh, listed
from .placements import ReduceOp

__all__ = ["Layout", "Pending", "Splits"]

Splits = tuple[tuple[str, ...], ...]
"""For each tensor dim, the mesh axes that split it, major first."""

Pending = tuple[tuple[str, ReduceOp], ...]
"""The mesh axes whose devices hold contributions, each with its reduction, in mesh order."""


@final
class Layout(Written):
    """How a tensor lies on a mesh: which axes split each dim, in order, and which hold a pending reduction.

    Layouts are interned: equal layouts are one object.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"dp": 2, "tp": 4})
    >>> layout = Layout(mesh, (("dp",), ("tp",)))
    >>> layout is Layout(mesh, (("dp",), ("tp",))), layout.replicated_axes
    (True, ())
    """

    # Equal layouts are one object, so the identity that Python compares and hashes by itself is the right one.
    __slots__ = ("__dict__", "__weakref__", "mesh", "pending", "splits")

    mesh: DeviceMesh
    splits: Splits
    pending: Pending

    def __new__(
        cls,
        mesh: DeviceMesh,
        splits: Iterable[Iterable[str]],
        pending: Mapping[str, ReduceOp] | Iterable[tuple[str, ReduceOp]] = (),
    ) -> Layout:
        frozen_splits = tuple(map(tuple, splits))
        items = tuple(pending.items() if isinstance(pending, Mapping) else pending)
        if items:  # before it is looked up: a kind of reduction equals its name, and is asked for as a kind
            _check_kinds(items)
        frozen_pending = tuple(sorted(items, key=lambda item: mesh.axis_index(item[0]))) if items else ()
        key = (mesh, frozen_splits, frozen_pending)
        known = _interned.get(key)
        if known is not None:
            return known
        _check_axes(mesh, frozen_splits, frozen_pending)
        self = object.__new__(cls)
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "splits", frozen_splits)
        object.__setattr__(self, "pending", frozen_pending)
        with _interning:  # two threads are not to make twins: layouts are compared by identity
            return _interned.setdefault(key, self)

    @classmethod
    def replicated(cls, mesh: DeviceMesh, rank: int) -> Layout:
        """The layout in which every device holds the whole tensor."""
        return cls(mesh, ((),) * rank)

    @property
    def rank(self) -> int:
        """How many dims the tensor has."""
        return len(self.splits)

    @cached_property
    def dim_of(self) -> Mapping[str, int]:
        """Mesh axis to the tensor dim it splits."""
        return {axis: dim for dim, axes in enumerate(self.splits) for axis in axes}

    @cached_property
    def pending_axes(self) -> tuple[str, ...]:
        """The mesh axes that hold a pending reduction, in mesh order."""
        return tuple(axis for axis, _ in self.pending)

    @cached_property
    def split_axes(self) -> tuple[str, ...]:
        """The mesh axes that split a dim, in mesh order."""
        return tuple(axis for axis in self.mesh.axis_names if axis in self.dim_of)

    @cached_property
    def replicated_axes(self) -> tuple[str, ...]:
        """The mesh axes along which all devices hold the same, in mesh order."""
        used = {*self.dim_of, *self.pending_axes}
        return tuple(axis for axis in self.mesh.axis_names if axis not in used)

    @cached_property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole value; an axis of size 1 takes nothing from it."""
        return all(self.mesh.axis_size(axis) == 1 for axis in (*self.dim_of, *self.pending_axes))

    @cached_property
    def resolved(self) -> Layout:
        """The same splits with nothing pending: the pending axes become replicated."""
        return Layout(self.mesh, self.splits) if self.pending else self

    def split_count(self, dim: int) -> int:
        """Into how many shards a dim is cut."""
        count = 1
        for axis in self.splits[dim]:
            count *= self.mesh.axis_size(axis)
        return count

    def with_pending(self, pending: Mapping[str, ReduceOp] | Iterable[tuple[str, ReduceOp]]) -> Layout:
        """The same splits with other pending reductions."""
        return Layout(self.mesh, self.splits, pending)

    def with_split(self, dim: int, axes: Iterable[str]) -> Layout:
        """The same layout with one dim split by other axes."""
        names = tuple(axes)
        if names == self.splits[dim]:
            return self
        splits = list(self.splits)
        splits[dim] = names
        return Layout(self.mesh, splits, self.pending)

    def with_dim(self, dim: int, axes: Iterable[str] = ()) -> Layout:
        """The layout of a tensor with one more dim, put in before `dim`."""
        splits = list(self.splits)
        splits.insert(dim, tuple(axes))
        return Layout(self.mesh, splits, self.pending)

    def permuted(self, order: Sequence[int]) -> Layout:
        """The layout of the tensor with its dims in another order."""
        return Layout(self.mesh, [self.splits[dim] for dim in order], self.pending)

    def without_dim(self, dim: int) -> Layout:
        """The layout of a tensor without dim `dim`."""
        splits = list(self.splits)
        del splits[dim]
        return Layout(self.mesh, splits, self.pending)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Layout cannot change ({name!r} was set): make a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Layout cannot change ({name!r} was deleted): make a new one")

    def __reduce__(self) -> tuple[type[Layout], tuple[object, ...]]:
        return Layout, (self.mesh, self.splits, self.pending)

    def __copy__(self) -> Layout:
        return self

    def __deepcopy__(self, memo: object) -> Layout:
        return self

    def __repr__(self) -> str:
        pending = f", {dict(self.pending)!r}" if self.pending else ""
        return f"Layout({self.mesh!r}, {self.splits!r}{pending})"

    def __str__(self) -> str:
        dims = ", ".join("·".join(axes) if axes else "–" for axes in self.splits)
        waiting = "".join(f" {op}@{axis}" for axis, op in self.pending)
        return f"({dims}){waiting}"


_interned: WeakValueDictionary[tuple[DeviceMesh, Splits, Pending], Layout] = WeakValueDictionary()
"""Bound: the layouts that somebody has. Cleared: each when nobody has it any more."""
_interning = Lock()


def _check_kinds(pending: Iterable[tuple[str, ReduceOp]]) -> None:
    for axis, op in pending:
        if not isinstance(op, ReduceOp):
            raise TypeError(
                f"the pending reduction of mesh axis {axis!r} is a ReduceOp, but got {op!r}: use ReduceOp.SUM"
            )


def _check_axes(mesh: DeviceMesh, splits: Splits, pending: Pending) -> None:
    used: dict[str, str] = {}
    for dim, axes in enumerate(splits):
        for axis in axes:
            if not isinstance(axis, str):
                raise TypeError(
                    f"a mesh axis name is a string, but dim {dim} is split by {axis!r}: use one of {listed(mesh.axis_names)}"
                )
            mesh.axis_index(axis)
            _claim(used, axis, f"to split dim {dim}")
    for axis, op in pending:
        _claim(used, axis, f"for a pending {op}")


def _claim(used: dict[str, str], axis: str, purpose: str) -> None:
    if axis in used:
        raise ValueError(
            f"mesh axis {axis!r} is used twice, {used[axis]} and {purpose}: an axis can split one dim once or hold one pending reduction"
        )
    used[axis] = purpose
