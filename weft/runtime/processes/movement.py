"""Carrying out plans whose devices belong to several processes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Protocol

import torch

from ...planning import AllReduce, FillPartial, ReduceExchange, ReduceScatter, Step, plan_layouts
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from .. import in_process
from ..holding import Pieces, holding
from ..machine import forget_with_residences, residence
from . import current_call, world
from .agreement.same_call import check
from .current_call import Call, call_between
from .fork import check_is_no_child
from .group import Processes, group_of, owners_of, wire_device
from .liveness import heartbeat
from .steps.moving import BroadcastStage, FillStage, MoveStage, PermuteStage, Route
from .steps.reduce import ReduceStage
from .transport.async_ops import settle
from .transport.exchange import swap

__all__ = ["communicating", "is_elsewhere", "move", "permute", "spans", "whole"]


def spans(*meshes: DeviceMesh) -> bool:
    """Whether these meshes have devices of several processes."""
    return world.current().count > 1 and len(owners_of(*meshes)) > 1


def is_elsewhere(*meshes: DeviceMesh) -> bool:
    """Whether this process owns no device of these meshes."""
    return world.current().count > 1 and not any(residence(mesh).owned for mesh in meshes)


def move(pieces: Pieces, source: Layout, target: Layout, shape: tuple[int, ...], dtype: torch.dtype, op: str) -> Pieces:
    """The pieces of the same tensor in another layout. The meshes span several processes."""
    return _travelled(pieces, _journey(op, source, target, shape, dtype), dtype)


def _travelled(pieces: Pieces, journey: _Journey | None, dtype: torch.dtype) -> Pieces:
    if journey is None:
        return ()
    with communicating(journey.call, journey.processes):
        for stage in journey.stages:
            pieces = stage.run(pieces, dtype)
    return pieces


class communicating:  # noqa: N801 - read as a word: `with communicating(call, processes):`
    """Notes what this process does while it communicates, and checks that the others do the same."""

    def __init__(self, call: Call, processes: Processes) -> None:
        self._call, self._processes = call, processes

    def __enter__(self) -> None:
        check_is_no_child(self._call)
        settle()
        heartbeat.begin()
        current_call.started(self._call)
        check(self._call, self._processes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current_call.finished()


class Stage(Protocol):
    """What this process does in a step."""

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""


@dataclass(frozen=True, slots=True)
class _Journey:
    """What this process does in a movement, and with whom."""

    call: Call
    processes: Processes
    stages: tuple[Stage, ...]


@lru_cache(maxsize=8192)
def _journey(op: str, source: Layout, target: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> _Journey | None:
    """What this process does in a movement, looked up; None if it has nothing to do with it."""
    if is_elsewhere(source.mesh, target.mesh):
        return None
    call = call_between(op, source, target, shape, dtype)
    return _Journey(call, owners_of(source.mesh, target.mesh), _stages(source, target, shape, dtype.itemsize))


forget_with_residences(_journey.cache_clear)


@lru_cache(maxsize=8192)
def _stages(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> tuple[Stage, ...]:
    """What this process does in a plan, worked out once."""
    steps = plan_layouts(source, target, shape, itemsize).steps
    return tuple(_stage(step, is_last=step is steps[-1]) for step in steps)


forget_with_residences(_stages.cache_clear)


def _stage(step: Step, *, is_last: bool) -> Stage:
    if is_elsewhere(step.source.mesh, step.target.mesh) or not spans(step.source.mesh, step.target.mesh):
        return _WithinAProcess(step)
    if isinstance(step, FillPartial):
        return FillStage(step)
    if isinstance(step, (AllReduce, ReduceScatter, ReduceExchange)):
        return ReduceStage(step)
    if BroadcastStage.fits(step):
        return BroadcastStage(step)
    return MoveStage(step, is_last=is_last)


@dataclass(frozen=True, slots=True)
class _WithinAProcess:
    """A step on devices of one process, which is this one or has nothing to do with it."""

    step: Step

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:  # noqa: ARG002 - as every stage
        step = self.step
        if is_elsewhere(step.source.mesh, step.target.mesh):
            return ()
        return in_process.move(pieces, step.source, step.target, step.shape)


def permute(pieces: Pieces, layout: Layout, shape: tuple[int, ...], route: Route, dtype: torch.dtype) -> Pieces:
    """The pieces after shards have changed places."""
    return _travelled(pieces, _permutation(layout, shape, route, dtype), dtype)


@lru_cache(maxsize=1024)
def _permutation(layout: Layout, shape: tuple[int, ...], route: Route, dtype: torch.dtype) -> _Journey | None:
    if is_elsewhere(layout.mesh):
        return None
    call = call_between(f"ppermute by {route}", layout, layout, shape, dtype)
    return _Journey(call, owners_of(layout.mesh), (PermuteStage(layout, shape, route, dtype.itemsize),))


forget_with_residences(_permutation.cache_clear)


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
