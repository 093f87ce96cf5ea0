"""The strides of an op's results and of their pieces, worked out once for inputs of each strides."""

from __future__ import annotations

from typing import final

from ...rules.call import BoundCall
from ...runtime.holding import Pieces, holding
from ...runtime.strides import Strides, dense_strides, in_order
from ...sharding.layout import Layout
from .whole_results import whole_results

__all__ = ["ResultStrides", "Strided"]

_MOST = 64
"""Calls with inputs of so many different strides are told apart; a new one beyond that begins anew."""


@final
class Strided:
    """The strides of one result, and those that its pieces have."""

    __slots__ = ("pieces", "whole")

    def __init__(self, layout: Layout, shape: tuple[int, ...], whole: Strides) -> None:
        here = holding(layout)
        self.whole = whole
        self.pieces = tuple(dense_strides(here.piece_shape(i, shape), whole) for i in range(here.count))

    def ordered(self, pieces: Pieces) -> Pieces:
        """Pieces with their dims in the order that the whole has; copies where a kernel laid them out otherwise."""
        for piece, wanted in zip(pieces, self.pieces, strict=True):
            if piece.stride() != wanted:
                return tuple([in_order(piece, self.whole) for piece in pieces])
        return pieces


@final
class ResultStrides:
    """The strides of the results of calls that differ in the strides of their inputs only."""

    __slots__ = ("_known", "_layouts")

    def __init__(self, layouts: tuple[Layout, ...]) -> None:
        self._layouts = layouts
        self._known: dict[tuple[Strides, ...], tuple[Strided | None, ...]] = {}

    def of(self, call: BoundCall) -> tuple[Strided | None, ...]:
        """Those of one call; None for what is no tensor."""
        key = tuple([x.stride() for x in call.tensors])
        try:
            known = self._known.get(key)
        except TypeError:  # sizes that a compiler has not settled have no hash
            return self._found(call)
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[key] = self._found(call)
        return known

    def _found(self, call: BoundCall) -> tuple[Strided | None, ...]:
        return tuple(
            None if spec is None or spec.strides is None else Strided(layout, spec.shape, spec.strides)
            for layout, spec in zip(self._layouts, whole_results(call), strict=True)
        )
