"""Carrying out plans whose devices belong to several processes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from ...caches import cached
from ...planning import Exchange, Step, plan_layouts, step_between
from ...planning.moving_steps import Moves
from ...sharding.layout import Layout
from ..holding import Pieces, holding
from ..machine import forget_with_residences
from ..memory.memory_limit import memory_limit
from . import world
from .agreement.in_step import meet_if_apart
from .communicating import communicating
from .current_call import CollectiveCall, call_between
from .group import Processes, group_of
from .mesh_processes import is_elsewhere, owners_of, wire_device
from .steps.move import MoveStage
from .steps.permute import PermuteStage, Route
from .steps.stage import ProcessStage, stage_of
from .transport.async_ops import Arriving
from .transport.exchange import backend_of, swap

__all__ = ["connect", "mail", "move", "permute", "whole"]


def move(pieces: Pieces, source: Layout, target: Layout, shape: tuple[int, ...], dtype: torch.dtype, op: str) -> Pieces:
    """The pieces of the same tensor in another layout. The meshes span several processes."""
    return _travelled(pieces, _journey(op, source, target, shape, dtype, memory_limit()), dtype)


def _travelled(pieces: Pieces, journey: _Journey | None, dtype: torch.dtype) -> Pieces:
    if journey is None:
        return ()
    with communicating(journey.call, journey.processes, is_compared=journey.is_compared):
        for stage in journey.stages:
            pieces = stage.run(pieces, dtype)
    return pieces


@dataclass(frozen=True, slots=True)
class _Journey:
    """What this process does in a movement, and with whom."""

    call: CollectiveCall
    processes: Processes
    stages: tuple[ProcessStage, ...]
    is_compared: bool
    """Whether the first messages go between all processes, and tell them whether they make the same call."""


@cached(8192, cleared_by=forget_with_residences)
def _journey(
    op: str, source: Layout, target: Layout, shape: tuple[int, ...], dtype: torch.dtype, limit: int | None
) -> _Journey | None:
    """What this process does in a movement, looked up; None if it has nothing to do with it."""
    if is_elsewhere(source.mesh, target.mesh):
        return None
    processes = owners_of(source.mesh, target.mesh)
    steps, stages = _stages(source, target, shape, dtype.itemsize, limit)
    call = call_between(op, source, target, shape, dtype)
    through = [step.described for step in steps if step.stages is not None]
    if through:  # processes that were told of other hosts would wait for each other in vain
        call = replace(call, what=f"{call.what} by {', '.join(through)}")
    # Every process has to come to the same answer, those that have no part in the first step included.
    first = next((number for number, step in enumerate(steps) if step.phases), None)
    is_compared = (
        first is not None
        and owners_of(steps[first].source.mesh, steps[first].target.mesh) == processes
        and stages[first].processes == processes
        and stages[first].is_compared
    )
    return _Journey(call, processes, stages, is_compared)


@cached(8192, cleared_by=forget_with_residences)
def _stages(
    source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, limit: int | None
) -> tuple[tuple[Step, ...], tuple[ProcessStage, ...]]:
    """The steps of a plan and what this process does in each, worked out once."""
    steps = plan_layouts(source, target, shape, itemsize, memory_limit=limit).steps
    return steps, tuple(stage_of(step, is_last=step is steps[-1]) for step in steps)


def connect(processes: Processes, wire: torch.device, purpose: str) -> None:
    """Lets processes meet that will mail for a purpose. Whoever takes part in several meetings comes to them in one order."""
    if world.current().process in processes and not world.current().is_fake:
        meet_if_apart()
        backend_of(group_of(processes, purpose), wire.type)


def mail(
    pieces: Pieces,
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    op: str,
    purpose: str,
    tag: int,
) -> Arriving:
    """Begins to move a tensor from a mesh to another, with nothing pending, by messages that wait for no others."""
    call = call_between(op, source, target, shape, dtype)
    return _passage(source, target, shape, dtype.itemsize).mail(pieces, dtype, call, purpose, tag)


@cached(8192, cleared_by=forget_with_residences)
def _passage(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> MoveStage:
    step = step_between(source, target, shape, itemsize)
    assert isinstance(step, Moves | Exchange)  # nothing is pending
    return MoveStage(step, is_last=True)


def permute(pieces: Pieces, layout: Layout, shape: tuple[int, ...], route: Route, dtype: torch.dtype) -> Pieces:
    """The pieces after shards have changed places."""
    return _travelled(pieces, _permutation(layout, shape, route, dtype), dtype)


@cached(1024, cleared_by=forget_with_residences)
def _permutation(layout: Layout, shape: tuple[int, ...], route: Route, dtype: torch.dtype) -> _Journey | None:
    if is_elsewhere(layout.mesh):
        return None
    call = call_between(f"ppermute by {route}", layout, layout, shape, dtype)
    stage = PermuteStage(layout, shape, route, dtype.itemsize)
    return _Journey(call, stage.processes, (stage,), stage.is_compared)


def whole(pieces: Pieces, layout: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A replicated value in every process, those that own no device of its mesh included."""
    assert layout.is_replicated
    here = world.current()
    if here.count == 1:
        return pieces[0]
    owners = owners_of(layout.mesh)
    if len(owners) == here.count:
        return pieces[0]
    everyone = tuple(range(here.count))
    with communicating(call_between("full_tensor", layout, layout, shape, dtype), everyone):
        return _given_to_all(pieces[0] if pieces else None, layout, shape, dtype, everyone)


def _given_to_all(
    value: torch.Tensor | None, layout: Layout, shape: tuple[int, ...], dtype: torch.dtype, everyone: Processes
) -> torch.Tensor:
    """The value in every process: each that has none gets it from one of the owners, who share the work."""
    wire, group = wire_device(layout.mesh), group_of(everyone)
    owners = owners_of(layout.mesh)
    giver = {process: owners[process % len(owners)] for process in everyone if process not in owners}
    here = world.current().process
    limit = math.prod(shape) * dtype.itemsize
    if value is not None:
        flat = value.contiguous().view(-1).to(wire)
        swap(group, {process: flat for process, by in giver.items() if by == here and limit}, {}, wire, limit)
        return value
    arrived = torch.empty(math.prod(shape), dtype=dtype, device=wire)
    swap(group, {}, {giver[here]: arrived} if limit else {}, wire, limit)
    return arrived.view(shape).to(holding(layout).residence.device)
