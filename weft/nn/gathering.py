"""`Gathering`: some tensors that an axis splits become whole along it, all of them in one exchange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch

from ..engine.sharded import ShardedTensor
from ..engine.views.copy_views import current
from ..planning.states import Passage, StateEntry, StatePlan
from ..planning.states.passage import Position
from ..runtime.holding import Pieces
from ..runtime.processes.current_call import CollectiveCall
from ..runtime.processes.passing import Lot, pass_on
from ..sharding.layout import Layout
from ..watch import comm_log
from .splitting import whole_along

__all__ = ["Gathering"]

_ALL_AT_ONCE = 1 << 50
"""Bytes of a bucket that everything fits into."""


@final
class Gathering:
    """How tensors of these layouts, shapes and dtypes become whole along an axis, in a dtype each; planned once."""

    def __init__(
        self,
        layouts: Sequence[Layout],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[tuple[torch.dtype, torch.dtype]],
        axis: str,
        op: str,
    ) -> None:
        self.targets = [whole_along(layout, axis) for layout in layouts]
        self._axis, self._op, self._mesh = axis, op, layouts[0].mesh
        travelling = [new if new.itemsize <= old.itemsize else old for old, new in dtypes]
        self._elements = sum(map(math.prod, shapes))
        entries = []
        for at, (source, target, shape, (old, new)) in enumerate(
            zip(layouts, self.targets, shapes, dtypes, strict=True)
        ):
            start = (0,) * len(shape)
            width = travelling[at].itemsize
            passage = Passage(Position(source, shape, start), Position(target, shape, start), shape, width)
            entries.append(StateEntry(str(at), (str(at),), (passage,), None, old.itemsize, new.itemsize))
        self.plan = StatePlan(tuple(entries), _ALL_AT_ONCE)
        self._lots = [Lot(number, dtype) for number, dtype in enumerate(travelling)]
        words = f"{len(shapes)} tensors of {self._elements:,} elements over {axis!r} of {self._mesh}"
        self._call = CollectiveCall(op, words)

    def log(self) -> None:
        """Tells the log what is gathered: one all-gather of all tensors."""
        received = self.plan.bytes_received
        source, target = Layout(self._mesh, ((self._axis,),)), Layout(self._mesh, ((),))
        comm_log.log_step(
            "all_gather",
            (self._axis,),
            source,
            target,
            (self._elements,),
            received.max,
            received.total,
            self._op,
            implicit=False,
        )

    def fill(self, sources: Sequence[ShardedTensor], targets: Sequence[Pieces]) -> None:
        """Writes the whole of each tensor to the pieces that are to hold it."""
        pass_on(self.plan, self._lots, list(map(current, sources)), targets, self._call, lambda _: None)
