"""Contributions are made of what is stored; nothing travels."""

from __future__ import annotations

from typing import final

import torch

from ....planning import FillPartial
from ....sharding.geometry import common
from ...holding import Pieces, holding
from ..group import Processes
from ..transport.messages import StoredBox
from .new_pieces import NewPieces
from .occupancy import stored_part

__all__ = ["FillStage"]


@final
class FillStage:
    """What this process does in a step that makes contributions of what is stored; nothing travels."""

    processes: Processes = ()
    is_compared = False

    def __init__(self, step: FillPartial) -> None:
        self._step = step
        self._targets = NewPieces(step.target, step.shape, step.op)
        here, there = holding(step.source), holding(step.target)
        self._parts: list[tuple[StoredBox, StoredBox]] = []
        for slot in there.slots:
            held = here.box(here.piece_of[slot], step.shape)
            shared = common(held, there.box(there.piece_of[slot], step.shape))
            if step.keeps(slot) and shared is not None:
                source = stored_part(step.source, step.shape, slot, shared)
                self._parts.append((source, stored_part(step.target, step.shape, slot, shared)))

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        targets = self._targets.new(dtype)
        for source, target in self._parts:
            kept = pieces[source.piece][source.where]
            targets[target.piece][target.where].copy_(kept if self._step.scale == 1 else kept * self._step.scale)
        return targets
