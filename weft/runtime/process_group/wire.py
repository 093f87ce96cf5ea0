"""The wire: parts of plain tensors go from process to process, straight from and into their place where they can.

Every exchange is a set of messages, at most one between two processes in each direction. On Gloo that beats its own
collectives (they pack, or pass everything round a ring), it takes any sizes, and messages of different calls never mix:
each has the fingerprint of its call. What travels are bytes, so every dtype does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._C import _distributed_c10d as c10d

from .group import Group
from .parcels import Leg, Parcels, Range
from .waiting import different_calls, fingerprint, finish, finish_turns, in_time, stream

__all__ = ["broadcast", "exchange", "swap"]


def exchange(
    parcels: Parcels,
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    dtype: torch.dtype,
    group: Group | None,
    wire: torch.device,
    limit: int | None = None,
) -> None:
    """Carries out parcels: fills the targets with parts of the sources, here and in the other processes.

    No message has more bytes than `limit`, which all processes know alike.
    """
    if group is None:
        _copy(parcels, sources, targets)
        return
    outgoing = [_outgoing(leg, sources, dtype, wire) for leg in parcels.sends]
    incoming = [_incoming(leg, targets, dtype, wire) for leg in parcels.receives]
    swap(group, outgoing, incoming, wire, limit)
    _copy(parcels, sources, targets)
    for leg, arrived in zip(parcels.receives, incoming, strict=True):
        _unpack(leg, arrived, targets, wire)


def swap(
    group: Group,
    outgoing: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor],
    wire: torch.device,
    limit: int | None = None,
) -> None:
    """Sends a flat tensor to each process of a group and receives one from each; none where there is no element.

    No message has more bytes than `limit`, which all processes know alike.
    """
    backend = _backend(group, wire.type)
    number = group.next_number()
    if group.is_streamed(wire.type):
        empty = torch.empty(0, dtype=torch.uint8, device=wire)
        sent = [empty if k == group.index else x.view(torch.uint8) for k, x in enumerate(outgoing)]
        received = [empty if k == group.index else x.view(torch.uint8) for k, x in enumerate(incoming)]
        stream(backend.alltoall(received, sent), group)
        return
    if limit is not None and limit <= envelope_size(group.size) - HEAD:
        _swap_small(backend, group, outgoing, incoming, number)
        return
    # Each begins with its right-hand neighbour, so that not all send to the first at once.
    others = [*range(group.index + 1, group.size), *range(group.index)]
    tag = fingerprint(number) & 0x7FFFFFFF
    works = [backend.recv([incoming[k].view(torch.uint8)], k, tag) for k in others if incoming[k].numel()]
    works += [backend.send([outgoing[k].view(torch.uint8)], k, tag) for k in others if outgoing[k].numel()]
    finish(works, group)


def _backend(group: Group, kind: str) -> c10d.ProcessGroup:
    known = group.known_backend(kind)
    return in_time(lambda: group.backend(kind), group.processes) if known is None else known


def broadcast(group: Group, flat: torch.Tensor, root: int) -> None:
    """Gives the elements of one process's flat tensor to all others of a group."""
    backend = _backend(group, flat.device.type)
    work = backend.broadcast(flat.view(torch.uint8), group.processes.index(root))
    if group.is_streamed(flat.device.type):
        stream(work, group)
    else:
        finish_turns(work, group)


HEAD = 8
ROOM = 4096 - HEAD
"""Bytes that always fit into a small message."""


def envelope_size(processes: int) -> int:
    """Bytes of a small message: all of a group have the same, so that those of different calls can be told apart."""
    return 32768 if processes <= 16 else HEAD + ROOM


def _swap_small(
    backend: c10d.ProcessGroup,
    group: Group,
    outgoing: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor],
    number: int,
) -> None:
    """Small messages go in one all-to-all, which has the least latency; each says which call it belongs to."""
    leaving = torch.empty(group.size, envelope_size(group.size), dtype=torch.uint8)
    arriving = torch.empty_like(leaving)
    head = torch.tensor([fingerprint(number)])
    leaving[:, :HEAD] = head.view(torch.uint8)
    for envelope, x in zip(leaving, outgoing, strict=True):
        if x.numel():
            inside = x.view(torch.uint8)
            envelope[HEAD : HEAD + inside.numel()] = inside
    finish_turns(backend.alltoall_base(arriving, leaving, [], []), group)
    heads = arriving[:, :HEAD].contiguous().view(torch.int64).flatten()
    if not bool((heads == head).all()):
        raise different_calls(group, heads.tolist(), int(head))
    for k, (envelope, x) in enumerate(zip(arriving, incoming, strict=True)):
        if k != group.index and x.numel():
            inside = x.view(torch.uint8)
            inside.copy_(envelope[HEAD : HEAD + inside.numel()])


def _copy(parcels: Parcels, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in parcels.copies:
        targets[target.piece][target.where].copy_(sources[source.piece][source.where])


def _outgoing(leg: Leg, sources: Sequence[torch.Tensor], dtype: torch.dtype, wire: torch.device) -> torch.Tensor:
    if leg.stretch is not None:
        return _stretch(sources, leg.stretch).to(wire)
    buffer = torch.empty(leg.size, dtype=dtype, device=wire)
    at = 0
    for part in leg.parts:
        buffer[at : at + part.size].view(part.shape).copy_(sources[part.piece][part.where])
        at += part.size
    return buffer


def _incoming(leg: Leg, targets: Sequence[torch.Tensor], dtype: torch.dtype, wire: torch.device) -> torch.Tensor:
    if leg.stretch is not None and targets[leg.stretch[0]].device.type == wire.type:
        return _stretch(targets, leg.stretch)
    return torch.empty(leg.size, dtype=dtype, device=wire)


def _unpack(leg: Leg, arrived: torch.Tensor, targets: Sequence[torch.Tensor], wire: torch.device) -> None:
    if leg.stretch is not None and targets[leg.stretch[0]].device.type == wire.type:
        return
    at = 0
    for part in leg.parts:
        targets[part.piece][part.where].copy_(arrived[at : at + part.size].view(part.shape))
        at += part.size


def _stretch(tensors: Sequence[torch.Tensor], where: Range) -> torch.Tensor:
    piece, start, stop = where
    tensor = tensors[piece]
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg().contiguous().view(-1)[start:stop]
