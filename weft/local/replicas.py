"""Results of `local_map` that are said to be replicas: do the devices that should hold the same one hold the same values?

Devices of one process are compared element by element. Processes tell each other some sums of what their devices hold, and all of them
raise alike where one has something else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..runtime.processes import world
from ..runtime.processes.mesh_processes import spans
from ..sharding.layout import Layout
from ..sharding.mapping import NamedMapping
from ..tensor.creation import from_local
from ..watch import comm_log

__all__ = ["check_replicas"]

_SUMS = 61
"""How many sums of elements are told: every 61st is in the same one. A prime, so that rows in another order have other sums."""
_ODD = 3
"""How many elements are not a number, and infinite with either sign."""
_ROUNDS = 4
"""How many times what rounding may make of a sum is a difference."""


def check_replicas(shards: Sequence[torch.Tensor], layout: Layout, slots: Sequence[int]) -> None:
    """Raises when devices that should hold replicas returned different values, beyond rounding; all processes call this."""
    if not layout.replicated_axes or shards[0].is_meta:
        return
    own = dict(zip(slots, (shard.detach() for shard in shards), strict=True))
    if spans(layout.mesh) and not world.current().is_fake:
        _check_across(list(own.values()), layout)
    for one, other in _pairs(layout, slots):
        if not _is_close(own[one], own[other]):
            raise _differ(layout, one, other)


def _pairs(layout: Layout, slots: Sequence[int]) -> list[tuple[int, int]]:
    """Each of these slots, and the first of them that should hold the same."""
    mesh = layout.mesh
    kept = [i for i, axis in enumerate(mesh.axis_names) if axis not in layout.replicated_axes]
    first: dict[tuple[int, ...], int] = {}
    found = []
    for slot in slots:
        coords = mesh.coords(slot)
        one = first.setdefault(tuple(coords[k] for k in kept), slot)
        if one != slot:
            found.append((one, slot))
    return found


def _check_across(shards: Sequence[torch.Tensor], layout: Layout) -> None:
    """Raises in all processes where sums that they tell each other differ."""
    mesh, dtype = layout.mesh, shards[0].dtype
    rows = [_told(shard).reshape(1, -1) for shard in shards]
    everywhere = NamedMapping(mesh, [mesh.axis_names])
    with torch.no_grad(), comm_log.paused():
        table = from_local(rows, everywhere, shape=(mesh.num_devices, rows[0].shape[1])).full_tensor().cpu()
    is_rounded = dtype.is_floating_point or dtype.is_complex
    tolerance = _ROUNDS * math.sqrt(torch.finfo(dtype).eps) if is_rounded else 0.0
    for one, other in _pairs(layout, range(mesh.num_devices)):
        a, b = table[one], table[other]
        sizes, apart = torch.stack((a, b))[:, 0], (a - b)[1:]
        if apart[:_ODD].any() or bool((apart[_ODD:].abs() > tolerance * sizes.max()).any()):
            raise _differ(layout, one, other)


def _told(shard: torch.Tensor) -> torch.Tensor:
    """What is told of a shard: how large it is, how many odd numbers are in it, and sums of the others."""
    flat = torch.view_as_real(shard.resolve_conj()).flatten() if shard.is_complex() else shard.flatten()
    flat = flat.double()
    odd = torch.stack([flat.isnan().sum(), (flat == math.inf).sum(), (flat == -math.inf).sum()])
    flat = flat.nan_to_num(0.0, 0.0, 0.0)
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % _SUMS))
    return torch.cat(((flat.abs() + 1).norm().reshape(1), odd, padded.view(-1, _SUMS).sum(0)))


def _differ(layout: Layout, one: int, other: int) -> ValueError:
    return ValueError(
        f"local_map: {_named(layout, one)} and {_named(layout, other)} returned different values, but out_mappings says that they "
        f"hold replicas over {', '.join(map(repr, layout.replicated_axes))}: all_reduce the result, name a pending reduction "
        "(unreduced=), or split a dim"
    )


def _named(layout: Layout, slot: int) -> str:
    mesh = layout.mesh
    return f"device {slot} ({', '.join(f'{axis}={at}' for axis, at in zip(mesh.axis_names, mesh.coords(slot), strict=True))})"


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        return torch.equal(a, b.to(a.device))
    tolerance = math.sqrt(torch.finfo(a.dtype).eps)
    return torch.allclose(a, b.to(a.device), rtol=tolerance, atol=tolerance, equal_nan=True)
