"""The wire: parts of plain tensors go from process to process, straight from and into their place where they can.

Every exchange is a set of messages, at most one between two processes in each direction. On Gloo that beats its own
collectives (they pack, or pass everything round a ring), it takes any sizes, and messages of different calls never mix:
each has the fingerprint of its call. What travels are bytes, so every dtype does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import final

import torch
from torch._C import _distributed_c10d as c10d

from ...memory.host_pool import pooled_empty
from .. import world
from ..agreement.difference import out_of_step
from ..current_call import fingerprint
from ..group import Group, Processes
from ..liveness.waiting import finish, finish_turns, given_up, in_time, met, stream
from .messages import Message, Messages
from .small_messages import HEAD, SmallMessages, bytes_of, small_message_size

__all__ = [
    "Posted",
    "backend_of",
    "broadcast",
    "copy_within",
    "exchange",
    "is_compared",
    "messages_in",
    "messages_out",
    "post",
    "swap",
    "unpack",
]


def exchange(
    messages: Messages,
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    dtype: torch.dtype,
    group: Group | None,
    wire: torch.device,
    limit: int | None = None,
) -> None:
    """Carries out messages: fills the targets with parts of the sources, here and in the other processes.

    No message has more bytes than `limit`, which all processes know alike.
    """
    if group is None:
        copy_within(messages, sources, targets)
        return
    leaving = messages_out(messages, sources, dtype, wire)
    arriving = messages_in(messages, targets, dtype, wire)
    swap(group, leaving, arriving, wire, limit, meanwhile=lambda: copy_within(messages, sources, targets))
    unpack(messages, arriving, sources, targets, wire)


def swap(
    group: Group,
    outgoing: Mapping[int, torch.Tensor],
    incoming: Mapping[int, torch.Tensor],
    wire: torch.device,
    limit: int | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Sends flat tensors to processes of a group and receives others from them: at most one each, none without elements.

    No message has more bytes than `limit`, which all processes know alike. `meanwhile` is what to do while they travel.
    """
    if group.is_fake:
        meanwhile()
        for each in incoming.values():
            each.zero_()
        return
    backend = backend_of(group, wire.type)
    number = group.next_number()
    if group.is_streamed(wire.type):
        empty = torch.empty(0, dtype=torch.uint8, device=wire)
        sent = [bytes_of(outgoing.get(k, empty)) for k in range(group.size)]
        received = [bytes_of(incoming.get(k, empty)) for k in range(group.size)]
        stream(backend.alltoall(received, sent), group)
        meanwhile()
        return
    if _is_small(limit, group.size):
        _swap_small(backend, group, outgoing, incoming, number)
        meanwhile()
        return
    tag = fingerprint(number) & 0x7FFFFFFF
    # A sender waits until it hears that the other receives, and hears it behind what the other sends: on a cable, that is twice
    # the time. Inside a host, what is sent first is mostly written by the backend's thread, which would else compete with this
    # one for the socket.
    far = group.elsewhere
    begun = _begun(
        group,
        *(partial(backend.recv, [bytes_of(x)], k, tag) for k, x in incoming.items() if k in far),
        *(partial(backend.send, [bytes_of(x)], k, tag) for k, x in outgoing.items()),
        *(partial(backend.recv, [bytes_of(x)], k, tag) for k, x in incoming.items() if k not in far),
    )
    finish(begun, group, meanwhile)


def _begun(group: Group, *messages: Callable[[], c10d.Work]) -> list[c10d.Work]:
    """Begins to send and to receive; a connection that was given up refuses that at once."""
    works: list[c10d.Work] = []
    try:
        works.extend(begin() for begin in messages)
    except RuntimeError as error:
        raise given_up(works, group, error) from None
    return works


@final
class Posted:
    """Messages that are on their way, to and from processes of a group."""

    def __init__(self, group: Group, works: Sequence[c10d.Work] = ()) -> None:
        self._group, self._works = group, works

    def finish(self) -> None:
        """Waits until they have gone and come."""
        finish(self._works, self._group, lambda: None)


def post(
    group: Group,
    outgoing: Mapping[int, Sequence[torch.Tensor]],
    incoming: Mapping[int, Sequence[torch.Tensor]],
    wire: torch.device,
    number: int,
) -> Posted:
    """Begins to send flat tensors to processes of a group and to receive others from them, several each, in order.

    Messages with one number, which all processes know alike, arrive in the order in which they were sent. Where waiting is
    up to the device, all processes post at once, one message at most between any two, and nothing is left to wait for.
    """
    if group.is_fake:
        for each in (x for listed in incoming.values() for x in listed):
            each.zero_()
        return Posted(group)
    if group.is_streamed(wire.type):
        assert all(len(listed) <= 1 for listed in (*outgoing.values(), *incoming.values()))
        swap(group, {k: x for k, (x,) in outgoing.items()}, {k: x for k, (x,) in incoming.items()}, wire)
        return Posted(group)
    backend = backend_of(group, wire.type)
    tag = fingerprint(number) & 0x7FFFFFFF
    receives = [partial(backend.recv, [bytes_of(x)], k, tag) for k, listed in incoming.items() for x in listed]
    sends = [partial(backend.send, [bytes_of(x)], k, tag) for k, listed in outgoing.items() for x in listed]
    return Posted(group, _begun(group, *receives, *sends))


def is_compared(processes: Processes, limit: int | None, wire: torch.device) -> bool:
    """Whether messages of at most so many bytes go from each process to each, and say which call they belong to."""
    is_streamed = world.current().backend(wire.type) == "nccl"
    return len(processes) > 1 and not is_streamed and _is_small(limit, len(processes))


def _is_small(limit: int | None, processes: int) -> bool:
    return limit is not None and limit <= small_message_size(processes) - HEAD


def backend_of(group: Group, kind: str) -> c10d.ProcessGroup:
    """What carries tensors on this kind of torch device between processes of a group, which meet to make it."""
    known = group.known_backend(kind)
    if known is not None:
        return known
    # What carries tensors of accelerators is made without the others, who come when it is first used.
    make = met if kind == "cpu" else in_time
    return make(lambda: group.backend(kind), group.processes)


def broadcast(group: Group, flat: torch.Tensor, root: int) -> None:
    """Gives the elements of one process's flat tensor to all others of a group."""
    if group.is_fake:
        if root != group.processes[group.index]:
            flat.zero_()
        return
    backend = backend_of(group, flat.device.type)
    work = backend.broadcast(bytes_of(flat), group.processes.index(root))
    if group.is_streamed(flat.device.type):
        stream(work, group)
    else:
        finish_turns(work, group)


def _swap_small(
    backend: c10d.ProcessGroup,
    group: Group,
    outgoing: Mapping[int, torch.Tensor],
    incoming: Mapping[int, torch.Tensor],
    number: int,
) -> None:
    """Small messages go in one all-to-all, which has the least latency; each says which call it belongs to."""
    # Taken while in use: what fails may still be read or written to, and is not used again.
    small, group.small_messages = group.small_messages or SmallMessages(group.size), None
    mine = fingerprint(number)
    small.fill(mine, outgoing)
    finish_turns(backend.alltoall_base(small.arriving, small.leaving, [], []), group)
    calls = small.calls()
    if calls != [mine] * group.size:
        raise out_of_step(group, number)
    small.empty(incoming)
    group.small_messages = small


def copy_within(messages: Messages, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copies what stays in this process."""
    for source, target in messages.copies:
        targets[target.piece][target.where].copy_(sources[source.piece][source.where])


def messages_out(
    messages: Messages, sources: Sequence[torch.Tensor], dtype: torch.dtype, wire: torch.device
) -> dict[int, torch.Tensor]:
    """What goes to each process: a stretch of a source, straight from its place, or else parts one after another."""
    flat: dict[int, torch.Tensor] = {}
    found: dict[int, torch.Tensor] = {}
    packed = _apart([message for _, message in messages.sends if message.stretch is None], dtype, wire)
    for index, message in messages.sends:
        if message.stretch is None:
            found[index] = _pack(next(packed), message, sources)
            continue
        piece, start, stop = message.stretch
        if piece not in flat:
            flat[piece] = _flat(sources[piece])
        given = flat[piece][start:stop]
        found[index] = given if given.device.type == wire.type else given.to(wire)
    return found


def _apart(listed: Sequence[Message], dtype: torch.dtype, wire: torch.device) -> Iterator[torch.Tensor]:
    """Memory for the time being for each message, of one block: blocks are few that way, and found again."""
    return iter(
        pooled_empty((sum(message.size for message in listed),), dtype, wire).split(
            [message.size for message in listed]
        )
        if listed
        else ()
    )


def _pack(buffer: torch.Tensor, message: Message, sources: Sequence[torch.Tensor]) -> torch.Tensor:
    at = 0
    for part in message.parts:
        buffer[at : at + part.size].view(part.shape).copy_(sources[part.piece][part.where])
        at += part.size
    return buffer


def _is_in_place(message: Message, targets: Sequence[torch.Tensor], wire: torch.device) -> bool:
    """Whether what comes from a process is received where it belongs."""
    return message.stretch is not None and targets[message.stretch[0]].device.type == wire.type


def messages_in(
    messages: Messages, targets: Sequence[torch.Tensor], dtype: torch.dtype, wire: torch.device
) -> dict[int, torch.Tensor]:
    """Where what comes from each process is received: in its place, or else in memory for the time being."""
    found: dict[int, torch.Tensor] = {}
    apart = _apart(
        [message for _, message in messages.receives if not _is_in_place(message, targets, wire)], dtype, wire
    )
    for index, message in messages.receives:
        if message.stretch is not None and _is_in_place(message, targets, wire):
            piece, start, stop = message.stretch
            found[index] = targets[piece].view(-1)[start:stop]
        else:
            found[index] = next(apart)
    return found


def unpack(
    messages: Messages,
    incoming: Mapping[int, torch.Tensor],
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    wire: torch.device,
) -> None:
    """Brings what has arrived to its place."""
    joined = messages.joined if messages.joins else ()
    for index, message in messages.receives:
        if index in joined or _is_in_place(message, targets, wire):
            continue
        at = 0
        for part in message.parts:
            targets[part.piece][part.where].copy_(incoming[index][at : at + part.size].view(part.shape))
            at += part.size
    for join in messages.joins:
        target = targets[join.piece]
        parts = [
            incoming[each].view(shape).to(target.device) if isinstance(each, int) else sources[each.piece][each.where]
            for each, shape in zip(join.parts, join.shapes, strict=True)
        ]
        into = target if join.shape == target.shape else target[tuple(slice(size) for size in join.shape)]
        torch.cat(parts, join.dim, out=into)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        return tensor.view(-1)
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg().contiguous().view(-1)
