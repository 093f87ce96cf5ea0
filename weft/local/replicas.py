"""Results of `local_map` that are said to be replicas: do the devices that should hold the same one hold the same values?

Devices of one process are compared element by element. Processes tell each other some sums of what their devices hold, and all of them
raise alike where one has something else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..runtime.processes import world
from ..runtime.processes.agreement.replicas import are_close, differ, named, pairs, sums
from ..runtime.processes.mesh_processes import spans
from ..sharding.layout import Layout
from ..watch import comm_log
from .lane_communication import told

__all__ = ["check_replicas"]


def check_replicas(shards: Sequence[torch.Tensor], layout: Layout, slots: Sequence[int]) -> None:
    """Raises when devices that should hold replicas returned different values, beyond rounding; all processes call this."""
    if not layout.replicated_axes or shards[0].is_meta:
        return
    own = dict(zip(slots, (shard.detach() for shard in shards), strict=True))
    if spans(layout.mesh) and not world.current().is_fake:
        _check_across(list(own.values()), layout)
    for one, other in pairs(layout, slots):
        if not are_close(own[one], own[other]):
            raise _differ(layout, one, other)


def _check_across(shards: Sequence[torch.Tensor], layout: Layout) -> None:
    """Raises in all processes where sums that they tell each other differ."""
    mesh, dtype = layout.mesh, shards[0].dtype
    rows = [sums(shard).reshape(1, -1) for shard in shards]
    with torch.no_grad(), comm_log.paused():
        table = told(rows, mesh)
    for one, other in pairs(layout, range(mesh.num_devices)):
        if differ(table[one], table[other], dtype):
            raise _differ(layout, one, other)


def _differ(layout: Layout, one: int, other: int) -> ValueError:
    return ValueError(
        f"local_map: {named(layout, one)} and {named(layout, other)} returned different values, but out_mappings says that they "
        f"hold replicas over {', '.join(map(repr, layout.replicated_axes))}: all_reduce the result, name a pending reduction "
        "(unreduced=), or split a dim"
    )
