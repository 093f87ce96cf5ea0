"""The words of the name vocabulary: `P`, `DimSpec` and `SpecEntry`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, final

from ..frozen import Frozen, Written
from .placements import Placement

__all__ = ["DimSpec", "P", "SpecEntry"]

SpecEntry = str | tuple[str, ...] | None
"""What splits one tensor dim: one mesh axis, several (major first), or none."""


@final
class P(Written, tuple[SpecEntry, ...]):
    """A partition spec: one entry per tensor dim names the mesh axes that split it; dims left out at the end are whole.

    >>> P("dp", None, ("tp", "sp"))
    P('dp', None, ('tp', 'sp'))
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    """By which others see that a P is made of its entries, and not, as other tuples are, of one list of them."""

    def __new__(cls, *entries: SpecEntry | DimSpec | Iterable[str]) -> P:
        for entry in entries:
            if entry is not None and type(entry) is not str:
                return tuple.__new__(cls, [_entry(each, dim) for dim, each in enumerate(entries)])
        return tuple.__new__(cls, entries)

    def __getnewargs__(self) -> tuple[SpecEntry, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"P({', '.join(repr(entry) for entry in self)})"


@final
class DimSpec(Frozen):
    """How one tensor dim is split: by which mesh axes, whether more may be added, and how early it is decided.

    >>> DimSpec(["dp"]), DimSpec([], is_open=True)
    (DimSpec(['dp']), DimSpec([], is_open=True))
    """

    __slots__ = ("__weakref__", "axes", "is_open", "priority")
    __match_args__ = ("axes", "is_open", "priority")

    axes: tuple[str, ...]
    is_open: bool
    priority: int

    def __init__(self, axes: Iterable[str] | str | None = (), is_open: bool = False, priority: int = 0) -> None:
        names = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"DimSpec takes mesh axis names, but got {name!r} in {names!r}: use DimSpec(['dp'])")
        if len(set(names)) != len(names):
            raise ValueError(f"a mesh axis is used twice in DimSpec({list(names)!r}): name each axis once")
        if not isinstance(is_open, bool):
            raise TypeError(f"is_open of a DimSpec is True or False, but got {is_open!r}: use is_open=True")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"the priority of a DimSpec is a whole number, but got {priority!r}: use for instance 1")
        if priority < 0:
            raise ValueError(f"the priority of a DimSpec is 0 or more, but got {priority}: use 0, the first")
        self._set(axes=names, is_open=is_open, priority=priority)

    def __repr__(self) -> str:
        more = f", is_open={self.is_open}" if self.is_open else ""
        more += f", priority={self.priority}" if self.priority else ""
        return f"DimSpec({list(self.axes)!r}{more})"


def _entry(entry: SpecEntry | DimSpec | Iterable[str], dim: int) -> SpecEntry:
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, DimSpec):
        if entry.is_open or entry.priority:
            raise ValueError(
                f"P cannot say the openness or priority of {entry!r} (dim {dim}): use NamedMapping(mesh, [{entry!r}])"
            )
        entry = entry.axes
    if isinstance(entry, (tuple, list)):
        for name in entry:
            if not isinstance(name, str):
                raise TypeError(
                    f"a partition spec entry names mesh axes, but dim {dim} has {name!r} in {entry!r}: use for instance 'dp'"
                )
        names = tuple(entry)
        return None if not names else names[0] if len(names) == 1 else names
    if isinstance(entry, Placement):
        raise TypeError(
            f"P names mesh axes, one entry per tensor dim, but dim {dim} has the placement {entry!r}: "
            "use P('dp', None), or PlacementMapping(mesh, placements) with one placement per mesh axis"
        )
    raise TypeError(
        f"a partition spec entry is None, a mesh axis name or a tuple of names, but dim {dim} has {entry!r}: "
        "use for instance P('dp', None)"
    )
