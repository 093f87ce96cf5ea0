"""Steps that resolve pending reductions, over processes.

Every element has owners that receive the contributions to it, reduce them in a fixed order and pass the result on.
So replicas have the same bits, and the same call gives the same bits every time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch

from ....planning import ReduceExchange
from ....planning.owners import Reducing, owners_of_step
from ....sharding.placements import ReduceOp
from ...holding import Pieces
from ...memory.host_pool import pooled_empty
from ...reduction import is_wide, reduce_into, reduced, summed
from ..group import group_if_shared
from ..mesh_processes import processes_of, wire_device
from ..transport.exchange import exchange, is_compared, swap
from ..transport.messages import StoredBox
from .collection import ArrivingStretch, Bundle, ReducedBox, collection
from .new_pieces import NewPieces
from .occupancy import most_slots

__all__ = ["ReduceStage"]


@final
class ReduceStage:
    """What this process does in a step that reduces."""

    def __init__(self, step: Reducing) -> None:
        mesh = step.source.mesh
        self._crowded = most_slots(mesh) > 1
        owners = owners_of_step(step, crowded=self._crowded)
        self.processes = processes_of(step)
        self._wire = wire_device(step.source.mesh)
        self._work = collection(owners, self.processes)
        self._flat = owners.flat
        begins = step if isinstance(step, ReduceExchange) else None
        self._targets = NewPieces(step.target, step.shape, None if begins is None else begins.neutral)
        self._scale = 1 if begins is None else begins.scale
        # A process may collect for several of its slots, and from each slot of another one by itself.
        most = most_slots(mesh) if owners.bundles else most_slots(mesh) ** 2
        self._limit = math.prod(step.shape) * max(step.itemsize, torch.float32.itemsize) * most
        self.is_compared = is_compared(self.processes, self._limit, self._wire)
        self.op, self.divisor = step.op, step.divisor

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        group, work = group_if_shared(self.processes), self._work
        sources = tuple(piece.reshape(-1) for piece in pieces) if self._flat else pieces
        width = self._width(dtype)
        arrived = torch.empty(0, dtype=width)
        if group is not None:
            outgoing = {index: self._given(bundles, sources, width) for index, bundles in work.sends}
            arrived = pooled_empty((work.arriving,), width, self._wire)
            incoming = {index: arrived[each.start : each.stop] for index, each in work.receives}
            swap(group, outgoing, incoming, self._wire, self._limit)
        if work.spread is None:
            return tuple(self._reduced(result, None, sources, arrived, dtype, width) for result in work.results)
        targets = self._targets.new(dtype)
        outputs = tuple(target.view(-1) for target in targets) if self._flat else targets
        results = []
        for result in work.results:
            # A stretch of the new shard is reduced in its place.
            into = None if result.into is None else outputs[result.into.piece][result.into.where]
            reduced_ = self._reduced(result, into, sources, arrived, dtype, width)
            results.append(reduced_ if self._scale == 1 else reduced_.mul_(self._scale))
        exchange(work.spread, results, outputs, dtype, group, self._wire, self._limit)
        return targets

    def _width(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that travels: short floats go as f32 where they are sums of several contributions already."""
        return torch.float32 if self._crowded and is_wide(self.op, dtype) else dtype

    def _given(self, bundles: Sequence[Bundle], sources: Sequence[torch.Tensor], width: torch.dtype) -> torch.Tensor:
        """What one process is given: bundles, each reduced; straight from its place if it is one part."""
        if len(bundles) == 1 and len(bundles[0]) == 1:
            return _read(sources, bundles[0], width, self._wire)[0].contiguous().view(-1)
        outgoing = pooled_empty((sum(bundle[0].size for bundle in bundles),), width, self._wire)
        at = 0
        for bundle in bundles:
            first = bundle[0]
            into = outgoing[at : at + first.size].view(first.shape)
            reduce_into(into, summed(self.op, width), _read(sources, bundle, width, self._wire))
            at += first.size
        return outgoing

    def _reduced(
        self,
        result: ReducedBox,
        into: torch.Tensor | None,
        sources: Sequence[torch.Tensor],
        arrived: torch.Tensor,
        dtype: torch.dtype,
        width: torch.dtype,
    ) -> torch.Tensor:
        """The reduction of all contributions to a box: first those of each process, then these."""
        bundles = [
            [arrived[each.start : each.stop].view(result.shape).to(result.device)]
            if isinstance(each, ArrivingStretch)
            else _read(sources, each, width, result.device)
            for each in result.parts
        ]
        if len(bundles) == 1:
            parts = bundles[0]
        else:
            parts = [each[0] if len(each) == 1 else reduced(summed(self.op, dtype), each) for each in bundles]
        out = pooled_empty(result.shape, dtype, result.device) if into is None else into
        if summed(self.op, dtype) is not self.op and len(parts) != self.divisor:
            total = reduced(ReduceOp.SUM, [part.float() for part in parts] if is_wide(self.op, dtype) else parts)
            return out.copy_(total.div_(self.divisor))
        return reduce_into(out, self.op, parts) if width is dtype else out.copy_(reduced(self.op, parts))


def _read(
    sources: Sequence[torch.Tensor], bundle: Sequence[StoredBox], dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    return [sources[part.piece][part.where].to(device=device, dtype=dtype) for part in bundle]
