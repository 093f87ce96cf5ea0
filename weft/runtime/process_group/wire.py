"""The wire: parts of plain tensors are packed, exchanged among a group, and unpacked into plain tensors.

One uneven all-to-all carries every exchange. Gloo has it, it is by far its fastest collective, and it takes any
sizes, zero included; what travels are bytes, so every dtype does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .group import Group
from .parcels import Leg, Parcels, Range
from .waiting import finish, in_time

__all__ = ["broadcast", "exchange", "swap"]


def exchange(
    parcels: Parcels,
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    dtype: torch.dtype,
    group: Group | None,
    wire: torch.device,
) -> None:
    """Carries out parcels: fills the targets with parts of the sources, here and in the other processes."""
    if group is not None:
        outgoing = _outgoing(parcels, sources, dtype, wire)
        incoming = _incoming(parcels, targets, dtype, wire)
        swap(group, outgoing, incoming, [leg.size for leg in parcels.sends], [leg.size for leg in parcels.receives])
        if parcels.received is None:
            _unpack(parcels.receives, incoming, targets)
        elif incoming.device != targets[parcels.received[0]].device:
            _stretch(targets, parcels.received).copy_(incoming)
    for source, target in parcels.copies:
        targets[target.piece][target.where].copy_(sources[source.piece][source.where])


def swap(
    group: Group, outgoing: torch.Tensor, incoming: torch.Tensor, sends: Sequence[int], receives: Sequence[int]
) -> None:
    """Sends stretches of one flat tensor to the processes of a group, and receives stretches of another."""
    size = outgoing.dtype.itemsize
    kind = outgoing.device.type
    work = in_time(lambda: group.backend(kind), group.processes).alltoall_base(
        incoming.view(torch.uint8),
        outgoing.view(torch.uint8),
        [count * size for count in receives],
        [count * size for count in sends],
    )
    finish(work, group, kind)


def broadcast(group: Group, value: torch.Tensor, root: int) -> None:
    """Gives the elements of one process's flat tensor to all processes of a group."""
    kind = value.device.type
    backend = in_time(lambda: group.backend(kind), group.processes)
    finish(backend.broadcast(value.view(torch.uint8), group.processes.index(root)), group, kind)


def _outgoing(
    parcels: Parcels, sources: Sequence[torch.Tensor], dtype: torch.dtype, wire: torch.device
) -> torch.Tensor:
    if parcels.sent is not None:
        return _stretch(sources, parcels.sent).to(wire)
    buffer = torch.empty(sum(leg.size for leg in parcels.sends), dtype=dtype, device=wire)
    at = 0
    for leg in parcels.sends:
        for part in leg.parts:
            buffer[at : at + part.size].view(part.shape).copy_(sources[part.piece][part.where])
            at += part.size
    return buffer


def _incoming(
    parcels: Parcels, targets: Sequence[torch.Tensor], dtype: torch.dtype, wire: torch.device
) -> torch.Tensor:
    if parcels.received is not None:
        stretch = _stretch(targets, parcels.received)
        return stretch if stretch.device.type == wire.type else torch.empty_like(stretch, device=wire)
    return torch.empty(sum(leg.size for leg in parcels.receives), dtype=dtype, device=wire)


def _unpack(legs: Sequence[Leg], incoming: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    at = 0
    for leg in legs:
        for part in leg.parts:
            targets[part.piece][part.where].copy_(incoming[at : at + part.size].view(part.shape))
            at += part.size


def _stretch(tensors: Sequence[torch.Tensor], where: Range) -> torch.Tensor:
    piece, start, stop = where
    tensor = tensors[piece]
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg().contiguous().view(-1)[start:stop]
