"""Which accelerators can reach each other's memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from ...devices import Device
from ...runtime.machine import torch_device
from ...runtime.memory import accelerator
from ..passes.scheduling import devices_of
from ..recording.op import Kind, RecordedCall

if TYPE_CHECKING:
    from ..recording.graph import Graph

__all__ = ["check_peer_access"]


def check_peer_access(
    graph: Graph,
    *,
    reaches: Callable[[torch.device, torch.device], bool] = accelerator.reaches,
    where: Callable[[Device], torch.device] = torch_device,
) -> None:
    """Check that the accelerators of every collective can reach each other."""
    for node in graph.nodes:
        call: RecordedCall = node.meta["call"]
        if call.op.kind is not Kind.COLLECTIVE:
            continue
        accelerators = sorted({device for device in devices_of(call) if device.is_gpu()}, key=lambda d: d.id)
        for one, other in permutations(accelerators, 2):
            if not reaches(where(one.to_device()), where(other.to_device())):
                raise ValueError(
                    f"{call.op.name} at {call.where} needs peer access between its accelerators, but {one} cannot read "
                    f"the memory of {other}: use devices that are linked (`nvidia-smi topo -p2p r`), or transfer_to"
                )
