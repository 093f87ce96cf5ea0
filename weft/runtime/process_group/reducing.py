"""Steps that resolve pending reductions, over processes.

Every element has owners that receive the contributions to it, reduce them in a fixed order and pass the result on.
So replicas have the same bits, and the same call gives the same bits every time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...planning import ReduceExchange
from ...sharding.placements import ReduceOp
from ..holding import Pieces
from ..reduction import reduce_into, reduced
from .collection import Arrival, Bundle, Collection, Result, collection
from .group import Group, wire_device
from .moving import fill_neutral, new_pieces, processes_of, shared
from .occupancy import slots_of
from .owners import Reducing, owners_of_step
from .parcels import Part
from .wire import exchange, swap

__all__ = ["reduce_step"]

_SHORT_FLOATS = (torch.float16, torch.bfloat16)
_ARITHMETIC = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PROD)


def reduce_step(pieces: Pieces, step: Reducing, dtype: torch.dtype) -> Pieces:
    """Carries out this process's part of a step that reduces."""
    processes = processes_of(step)
    group, wire = shared(processes), wire_device(step.source.mesh)
    owners = owners_of_step(step)
    work = collection(owners, processes)
    sources = tuple(piece.reshape(-1) for piece in pieces) if owners.flat else pieces
    width = _width(step, dtype)
    arrived = torch.empty(0) if group is None else _swapped(work, sources, step, width, group, wire)
    results = [_reduced(result, sources, arrived, step, dtype, width) for result in work.results]
    if work.spread is None:
        return tuple(results)
    targets = new_pieces(step.target, step.shape, dtype)
    if isinstance(step, ReduceExchange):
        fill_neutral(targets, step, dtype)
        if step.scale != 1:
            results = [result.mul_(step.scale) for result in results]
    outputs = tuple(target.view(-1) for target in targets) if owners.flat else targets
    exchange(work.spread, results, outputs, dtype, group, wire)
    return targets


def _width(step: Reducing, dtype: torch.dtype) -> torch.dtype:
    """The dtype that travels: short floats go as f32 where they are sums of several contributions already."""
    mesh = step.source.mesh
    crowded = len(slots_of(mesh)) < mesh.num_devices
    return torch.float32 if crowded and dtype in _SHORT_FLOATS and step.op in _ARITHMETIC else dtype


def _swapped(
    work: Collection,
    sources: Sequence[torch.Tensor],
    step: Reducing,
    width: torch.dtype,
    group: Group,
    wire: torch.device,
) -> torch.Tensor:
    """What arrives from the others, after sending them what they reduce."""
    outgoing = [_given(bundles, sources, step, width, wire) for bundles in work.sends]
    arrived = torch.empty(sum(work.receives), dtype=width, device=wire)
    swap(group, outgoing, list(arrived.split(work.receives)), wire)
    return arrived


def _given(
    bundles: Sequence[Bundle], sources: Sequence[torch.Tensor], step: Reducing, width: torch.dtype, wire: torch.device
) -> torch.Tensor:
    """What one process is given: bundles, each reduced, one after another; straight from its place if it is one part."""
    if len(bundles) == 1 and len(bundles[0]) == 1:
        part = bundles[0][0]
        return sources[part.piece][part.where].to(device=wire, dtype=width).contiguous().view(-1)
    outgoing = torch.empty(sum(bundle[0].size for bundle in bundles), dtype=width, device=wire)
    at = 0
    for bundle in bundles:
        first = bundle[0]
        into = outgoing[at : at + first.size].view(first.shape)
        reduce_into(into, _summed(step.op), _read(sources, bundle, width, wire))
        at += first.size
    return outgoing


def _reduced(
    result: Result,
    sources: Sequence[torch.Tensor],
    arrived: torch.Tensor,
    step: Reducing,
    dtype: torch.dtype,
    width: torch.dtype,
) -> torch.Tensor:
    """The reduction of all contributions to a box: first those of each process, then these."""
    bundles = [
        [arrived[each.start : each.stop].view(result.shape).to(result.device)]
        if isinstance(each, Arrival)
        else _read(sources, each, width, result.device)
        for each in result.parts
    ]
    if len(bundles) == 1:
        parts = bundles[0]
    else:
        parts = [each[0] if len(each) == 1 else reduced(_summed(step.op), each) for each in bundles]
    out = torch.empty(result.shape, dtype=dtype, device=result.device)
    if step.op is ReduceOp.AVG and len(parts) != step.divisor:
        total = reduced(ReduceOp.SUM, [part.float() for part in parts] if dtype in _SHORT_FLOATS else parts)
        return out.copy_(total.div_(step.divisor))
    return reduce_into(out, step.op, parts) if width is dtype else out.copy_(reduced(step.op, parts))


def _read(
    sources: Sequence[torch.Tensor], bundle: Sequence[Part], dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    return [sources[part.piece][part.where].to(device=device, dtype=dtype) for part in bundle]


def _summed(op: ReduceOp) -> ReduceOp:
    """A mean is a sum until all of it is there."""
    return ReduceOp.SUM if op is ReduceOp.AVG else op
