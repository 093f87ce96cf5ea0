"""Carrying out plans whose devices belong to several processes."""

from __future__ import annotations

import torch

from ...planning import AllReduce, FillPartial, ReduceExchange, ReduceScatter, Step, plan_layouts
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from .. import in_process
from ..holding import Pieces, holding
from ..machine import residence
from . import moving, world
from .group import group_of, owners_of, wire_device
from .moving import Route
from .reducing import reduce_step

__all__ = ["is_elsewhere", "move", "permute", "spans", "whole"]


def spans(*meshes: DeviceMesh) -> bool:
    """Whether these meshes have devices of several processes."""
    return world.current().count > 1 and len(owners_of(*meshes)) > 1


def is_elsewhere(*meshes: DeviceMesh) -> bool:
    """Whether this process owns no device of these meshes."""
    return world.current().count > 1 and not any(residence(mesh).owned for mesh in meshes)


def move(pieces: Pieces, source: Layout, target: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> Pieces:
    """The pieces of the same tensor in another layout. The meshes span several processes."""
    for step in plan_layouts(source, target, shape, dtype.itemsize).steps:
        pieces = _carried_out(pieces, step, dtype)
    return pieces


def _carried_out(pieces: Pieces, step: Step, dtype: torch.dtype) -> Pieces:
    if is_elsewhere(step.source.mesh, step.target.mesh):
        return ()
    if not spans(step.source.mesh, step.target.mesh):
        return in_process.move(pieces, step.source, step.target, step.shape)
    if isinstance(step, FillPartial):
        return moving.fill(pieces, step, dtype)
    if isinstance(step, (AllReduce, ReduceScatter, ReduceExchange)):
        return reduce_step(pieces, step, dtype)
    return moving.move_step(pieces, step, dtype)


def permute(pieces: Pieces, layout: Layout, shape: tuple[int, ...], route: Route, dtype: torch.dtype) -> Pieces:
    """The pieces after shards have changed places."""
    return () if is_elsewhere(layout.mesh) else moving.permute(pieces, layout, shape, route, dtype)


def whole(pieces: Pieces, layout: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A replicated value in every process, those that own no device of its mesh included."""
    assert layout.is_replicated
    here = world.current()
    if here.count == 1:
        return pieces[0]
    owners = owners_of(layout.mesh)
    if len(owners) == here.count:
        return pieces[0]
    wire = wire_device(layout.mesh)
    value = (
        pieces[0].contiguous() if pieces else torch.empty(shape, dtype=dtype, device=holding(layout).residence.device)
    )
    carried = value.to(wire).view(-1).view(torch.uint8)
    group_of(tuple(range(here.count))).backend(wire.type).broadcast(carried, owners[0]).wait()
    return value if value.device == wire else value.copy_(carried.view(dtype).view(shape))
