"""`Spec`: what users say of how a tensor lies, where they need not say it in full."""

from __future__ import annotations

from collections.abc import Iterable

from .mapping import DeviceMapping
from .named import DimSpec, SpecEntry

__all__ = ["Entries", "Spec", "entries_of"]

Entries = Iterable[SpecEntry | DimSpec] | str | None
"""One entry per tensor dim as in `P("tp", None)`, the axis name of the first dim, or None for replicated."""

Spec = DeviceMapping | Entries
"""A mapping, or entries for a mesh that is known."""


def entries_of(said: Entries) -> Iterable[SpecEntry | DimSpec]:
    """One entry per tensor dim, however they were said.

    >>> entries_of("tp"), entries_of(None)
    (('tp',), ())
    """
    return () if said is None else (said,) if isinstance(said, str) else said
