"""Writes to rows that lie elsewhere and to views of them: these share memory until some are sent, and are to show each other's writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import final

from ..form import special
from ..sharded import ShardedTensor
from .rows import RaggedRows

__all__ = ["add_view", "may_write_there", "settle"]


@final
class Family:
    """The views of one tensor whose rows lie elsewhere."""

    __slots__ = ("_views", "was_sent")

    def __init__(self) -> None:
        self._views: list[weakref.ref[ShardedTensor]] = []
        self.was_sent = False
        """Whether some of them, or the tensor, lie in memory of their own by now."""

    def add(self, view: ShardedTensor) -> None:
        """Adds a view; those that nobody holds any longer are left out from now on."""
        self._views = [ref for ref in self._views if ref() is not None]
        self._views.append(weakref.ref(view))

    @property
    def views(self) -> list[ShardedTensor]:
        """Those that somebody holds."""
        return [view for ref in self._views if (view := ref()) is not None]


def add_view(
    view: ShardedTensor,
    rows: RaggedRows,
    x: ShardedTensor,
    shown: RaggedRows,
    read: Callable[[ShardedTensor], ShardedTensor],
) -> None:
    """Notes that the rows of `view` are a view of those of `x`; `read` gives it of `x`."""
    family = shown.family
    if family is None:
        family = shown.family = Family()
    before = shown.read
    rows.family, rows.base = family, x if shown.base is None else shown.base
    rows.read = read if before is None else lambda base: read(before(base))
    family.add(view)
    own = [piece.untyped_storage()._cdata for piece in rows.pieces]
    family.was_sent |= shown.is_settled or own != [piece.untyped_storage()._cdata for piece in shown.pieces]


def may_write_there(rows: RaggedRows) -> bool:
    """Whether a write to rows where they lie is a write to all that shows them."""
    return not rows.is_settled and (rows.family is None or not rows.family.was_sent)


def settle(x: ShardedTensor) -> None:
    """From now on a tensor, and all that shares memory with it, is what its layout says."""
    rows = x._value.rows
    assert rows is not None
    family, base = rows.family, x if rows.base is None else rows.base
    is_kept = base._value.rows is not None and base._value.rows.family is family
    for each in (base, *(() if family is None else family.views)):
        now = each._value.rows
        if now is None or now.family is not family:
            continue  # it has become another
        if each is base or now.read is None or not is_kept:
            _ = each._value.pieces
            each._value.rows = None
        else:
            again = now.read(base)
            each._value, each._form = again._value, special(again._form)  # calls are not repeated by what it was
