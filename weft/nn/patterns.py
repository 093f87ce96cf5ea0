"""`Patterns`: which mapping a name gets. The first pattern that matches decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import final

from ..sharding.mapping import DeviceMapping, NamedMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.spec import Spec, entries_of

__all__ = ["Patterns", "suggestion"]


@final
class Patterns:
    """Name patterns (`*`, `?`, `[abc]`, as in a shell) and the mapping that each gives; the first match decides.

    >>> from weft.sharding import P, make_mesh
    >>> patterns = Patterns(make_mesh({"tp": 2}), {"*.q.weight": P("tp", None), "*.weight": P()})
    >>> patterns.match("layers.0.q.weight"), patterns.mapping("layers.0.q.weight").spec
    ('*.q.weight', P('tp', None))
    """

    __slots__ = ("_mappings", "mesh")

    mesh: DeviceMesh
    _mappings: dict[str, DeviceMapping]

    def __init__(self, mesh: DeviceMesh, patterns: Mapping[str, Spec]) -> None:
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(f"patterns need a DeviceMesh, but got {mesh!r}: use weft.make_mesh({{'dp': 2, 'tp': 4}})")
        if not isinstance(patterns, Mapping):
            raise TypeError(
                f"patterns are a dict of name patterns and specs, but got {patterns!r}: use {{'*.weight': P('tp', None)}}"
            )
        self.mesh = mesh
        self._mappings = {pattern: _mapping(pattern, spec, mesh) for pattern, spec in patterns.items()}

    def match(self, name: str) -> str | None:
        """The first pattern that matches a name, if any does."""
        return next((pattern for pattern in self._mappings if fnmatchcase(name, pattern)), None)

    def mapping(self, name: str) -> DeviceMapping:
        """The mapping of a name: that of the first pattern that matches, else replicated."""
        pattern = self.match(name)
        return NamedMapping(self.mesh, ()) if pattern is None else self._mappings[pattern]

    def check_used(self, names: Iterable[str], what: str) -> None:
        """Raises for a pattern that matches none of the names: it is most likely misspelt."""
        names = list(names)
        for pattern in self._mappings:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"the pattern {pattern!r} matches no {what}. {suggestion(pattern, names)}")


def _mapping(pattern: str, spec: Spec, mesh: DeviceMesh) -> DeviceMapping:
    if not isinstance(pattern, str):
        raise TypeError(f"a name pattern is a string, but got {pattern!r}: use '*.weight'")
    if isinstance(spec, DeviceMapping):
        if spec.mesh != mesh:
            raise ValueError(
                f"the mapping of {pattern!r} is for the mesh {spec.mesh}, but the module goes to {mesh}: use mapping.to_mesh(mesh)"
            )
        mapping = spec
    elif spec is None or isinstance(spec, Iterable):
        try:
            mapping = NamedMapping(mesh, entries_of(spec))
        except ValueError as error:
            raise ValueError(f"the pattern {pattern!r} is given {spec!r}: {error}") from error
    else:
        raise TypeError(f"{pattern!r} is given {spec!r}: give a spec such as P('tp', None), an axis name or a mapping")
    if not mapping.is_settled:
        raise ValueError(
            f"{pattern!r} is given {mapping!r}, which leaves something pending or open: parameters need a settled layout"
        )
    return mapping


def suggestion(pattern: str, names: list[str]) -> str:
    """The names that come closest, compared without the wildcards too; what is there, where none does."""
    bare = pattern.replace("*", "").strip(".")
    ends = {".".join(name.split(".")[-2:]): name for name in names} | {name: name for name in names}
    found = {ends[key] for key in get_close_matches(bare, list(ends), n=3, cutoff=0.5)}
    close = [name for name in names if name in found]
    shown = close or names[:8]
    listed = ", ".join(map(repr, shown)) if shown else "none at all"
    return f"{'Close names' if close else 'The names are'}: {listed}{'' if close or len(names) <= 8 else ', …'}"
