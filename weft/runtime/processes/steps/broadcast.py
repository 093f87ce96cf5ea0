"""One process gives its whole tensor to others."""

from __future__ import annotations

import math
from typing import final

import torch

from ....planning import Step
from ...holding import Pieces, holding
from ...memory.host_pool import pooled_empty
from ...memory.lazy_copy import lazy_clone
from ..group import group_of
from ..mesh_processes import owners_of, processes_of, wire_device
from ..transport.exchange import broadcast
from ..transport.small_messages import ALWAYS_FITS

__all__ = ["BroadcastStage"]


@final
class BroadcastStage:
    """What this process does when one process gives its whole tensor to others."""

    def __init__(self, step: Step) -> None:
        self.processes = processes_of(step)
        self.is_compared = False
        (self._root,) = owners_of(step.source.mesh)
        self._wire = wire_device(step.source.mesh, step.target.mesh)
        self._step = step

    @classmethod
    def fits(cls, step: Step) -> bool:
        """Whether a step is that, and large enough for the processes to pass it on."""
        whole = step.source.is_replicated and step.target.is_replicated
        large = math.prod(step.shape) * step.itemsize > ALWAYS_FITS
        return whole and large and len(owners_of(step.source.mesh)) == 1

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        there = holding(self._step.target)
        if pieces:
            flat = pieces[0].to(self._wire).resolve_conj().resolve_neg().contiguous().view(-1)
        else:
            flat = pooled_empty((math.prod(self._step.shape),), dtype, self._wire)
        broadcast(group_of(self.processes), flat, self._root)
        if pieces:
            return tuple(lazy_clone(pieces[0].to(device)) for device in there.devices)
        first, *others = there.devices
        # What has just arrived is nobody else's.
        value = flat.view(self._step.shape).to(first)
        return (value, *[lazy_clone(value.to(device)) for device in others])
