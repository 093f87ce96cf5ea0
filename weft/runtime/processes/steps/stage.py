"""`ProcessStage`: what this process does in a step, and which kind of it does which kind of step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar, Protocol, final

import torch

from ....planning import AllReduce, Exchange, FillPartial, ReduceAcross, ReduceExchange, ReduceScatter, Step
from ....planning.moving_steps import Moves
from ....planning.owners import Reducing
from ... import in_process
from ...holding import Pieces
from ..group import Processes
from ..mesh_processes import is_elsewhere, spans
from .broadcast import BroadcastStage
from .fill import FillStage
from .move import MoveStage
from .occupancy import most_slots
from .reduce import ReduceStage
from .reduce_across import AcrossStage
from .staged_move import StagedMove
from .staged_reduce import StagedReduce

__all__ = ["ProcessStage", "stage_of"]


class ProcessStage(Protocol):
    """What this process does in a step."""

    @property
    def processes(self) -> Processes:
        """With whom it does it, itself included; none or one where nothing travels."""

    @property
    def is_compared(self) -> bool:
        """Whether its first messages go between all of them, and say which call they belong to."""

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""


def stage_of(step: Step, *, is_last: bool) -> ProcessStage:
    """What this process does in a step of a plan."""
    if is_elsewhere(step.source.mesh, step.target.mesh):
        return _NothingToDo()
    if not spans(step.source.mesh, step.target.mesh):
        return _WithinAProcess(step)
    # A process with several devices receives once what they have in common, however it travels.
    if step.stages is not None and most_slots(step.source.mesh) == most_slots(step.target.mesh) == 1:
        return StagedReduce(step) if isinstance(step, Reducing) else StagedMove(step)
    return _among_processes(step, is_last)


@singledispatch
def _among_processes(step: Step, is_last: bool) -> ProcessStage:
    raise NotImplementedError(f"what a process does in {step.kind}")


@_among_processes.register(Moves)
@_among_processes.register(Exchange)
def _(step: Moves | Exchange, is_last: bool) -> ProcessStage:
    return BroadcastStage(step) if BroadcastStage.fits(step) else MoveStage(step, is_last=is_last)


@_among_processes.register
def _(step: FillPartial, is_last: bool) -> ProcessStage:  # noqa: ARG001 - as every row
    return FillStage(step)


@_among_processes.register(AllReduce)
@_among_processes.register(ReduceScatter)
@_among_processes.register(ReduceExchange)
def _(step: AllReduce | ReduceScatter | ReduceExchange, is_last: bool) -> ProcessStage:  # noqa: ARG001 - as every row
    return ReduceStage(step)


@_among_processes.register
def _(step: ReduceAcross, is_last: bool) -> ProcessStage:  # noqa: ARG001 - as every row
    return AcrossStage(step)


@final
@dataclass(frozen=True, slots=True)
class _WithinAProcess:
    """A step on devices of this process alone."""

    step: Step
    processes: ClassVar[Processes] = ()
    is_compared: ClassVar[bool] = False

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:  # noqa: ARG002 - as every stage
        step = self.step
        return in_process.move(pieces, step.source, step.target, step.shape)


@final
class _NothingToDo:
    """A step on devices of other processes."""

    processes: Processes = ()
    is_compared = False

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:  # noqa: ARG002 - as every stage
        return ()
