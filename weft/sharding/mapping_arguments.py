"""What a mapping is made of, checked: its mesh, what is pending, priorities, kinds of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import ConversionError
from .mesh import DeviceMesh, listed
from .named import P
from .placements import ReduceOp

__all__ = ["check_kept", "check_mesh", "checked_memory_kind", "checked_priorities", "checked_rank", "checked_unreduced"]

MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")


def check_mesh(mesh: object) -> None:
    """Raises unless it is a mesh."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"a mapping needs a DeviceMesh, but got {mesh!r}: use make_mesh({{'dp': 2}})")


def checked_rank(rank: int) -> int:
    """A tensor's rank."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise ValueError(f"a tensor's rank is a whole number, 0 or more, but got {rank!r}: use tensor.ndim")
    return rank


def checked_unreduced(mesh: DeviceMesh, unreduced: Iterable[str] | Mapping[str, ReduceOp]) -> dict[str, ReduceOp]:
    """The reduction that is pending over each axis, in mesh order."""
    if isinstance(unreduced, str):
        raise TypeError(f"unreduced takes several names, but got the string {unreduced!r}: use ({unreduced!r},)")
    if isinstance(unreduced, Mapping):
        named = {axis: ReduceOp.of(op) for axis, op in unreduced.items()}
    else:
        names = tuple(unreduced)
        named = dict.fromkeys(names, ReduceOp.SUM)
        if len(named) != len(names):
            raise ValueError(f"a mesh axis is used twice in unreduced {names!r}: name each axis once")
    for axis in named:
        if not isinstance(axis, str):
            raise TypeError(f"unreduced takes mesh axis names, but got {axis!r}: use one of {listed(mesh.axis_names)}")
    return dict(sorted(named.items(), key=lambda item: mesh.axis_index(item[0])))


def checked_priorities(priorities: Iterable[int], spec: P) -> tuple[int, ...]:
    """One for each entry of the spec, or none."""
    priorities = tuple(priorities)
    if priorities and len(priorities) != len(spec):
        raise ValueError(
            f"priorities {priorities!r} has {len(priorities)} entries, but {spec!r} has {len(spec)}: give one per entry or none"
        )
    for priority in priorities:
        if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
            raise ValueError(
                f"a priority is a whole number, 0 or more, but got {priority!r} in {priorities!r}: "
                "use 0 for dims that can wait"
            )
    return priorities if any(priorities) else ()


def checked_memory_kind(memory_kind: str | None) -> str | None:
    """One of `MEMORY_KINDS`, or None."""
    if memory_kind is not None and memory_kind not in MEMORY_KINDS:
        raise ValueError(
            f"unknown memory_kind {memory_kind!r}: use None or one of {', '.join(map(repr, MEMORY_KINDS))}"
        )
    return memory_kind


def check_kept(pending: Mapping[str, ReduceOp], mesh: DeviceMesh) -> None:
    """Raises where a pending reduction is over an axis that another mesh does not have."""
    for axis, op in pending.items():
        if axis not in mesh.index_of:
            raise ConversionError(
                f"the pending {op} over mesh axis {axis!r} would be lost on the mesh {mesh}: reduce it first (all_reduce)"
            )
