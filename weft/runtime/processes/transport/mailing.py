"""`Mailed`: messages that are sent and received in whatever order processes come to them, each known by its tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch._C import _distributed_c10d as c10d

from ...holding import Pieces
from ...memory.lazy_copy import lazy_clone
from .. import current_call
from ..current_call import CollectiveCall
from ..group import Group
from ..liveness import heartbeat
from ..liveness.waiting import Waiter, finish, stream
from .exchange import backend_of, copy_within, messages_in, messages_out, unpack
from .messages import Messages
from .small_messages import bytes_of

__all__ = ["Mailed"]

_waiter = Waiter()


@final
class Mailed:
    """An exchange that is under way. Nothing waits for it but who waits for it, and it waits for nothing."""

    def __init__(
        self,
        messages: Messages,
        sources: Pieces,
        targets: Pieces,
        dtype: torch.dtype,
        group: Group,
        wire: torch.device,
        call: CollectiveCall,
        tag: int,
    ) -> None:
        heartbeat.begin()
        # What is sent is what the sources hold now, even if they are written to before it has gone.
        self._sources: Sequence[torch.Tensor] = tuple(map(lazy_clone, sources)) if wire.type == "cpu" else sources
        self._messages, self._targets, self._wire = messages, targets, wire
        self._group, self._call, self._site = group, call, str(current_call.site())
        self._pieces = targets
        self._leaving = messages_out(messages, self._sources, dtype, wire)
        self._arriving = messages_in(messages, targets, dtype, wire)
        self._works: list[c10d.Work] = []
        copy_within(messages, self._sources, targets)
        if group.is_fake:
            for each in self._arriving.values():
                each.zero_()
            return
        backend = backend_of(group, wire.type)
        self._works += [backend.recv([bytes_of(x)], k, tag) for k, x in self._arriving.items()]
        self._works += [backend.send([bytes_of(x)], k, tag) for k, x in self._leaving.items()]

    def giving(self, pieces: Pieces) -> Mailed:
        """The same, where the new pieces are ones that this process has already."""
        self._pieces = pieces
        return self

    def done(self) -> bool:
        """Whether it is known that there is nothing to wait for; the backend only tells who waits."""
        return not self._works

    def wait(self) -> Pieces:
        """The new pieces, once they are there and what was to be sent has gone."""
        if self._works:
            self._finish()
        if self._arriving:
            unpack(self._messages, self._arriving, self._sources, self._targets, self._wire)
        self._works, self._sources, self._leaving, self._arriving = [], (), {}, {}
        return self._pieces

    def _finish(self) -> None:
        if self._group.is_streamed(self._wire.type):
            for work in self._works:
                stream(work, self._group)
            return
        with current_call.at(self._site):
            current_call.started(self._call)
            try:
                finish(self._works, self._group, lambda: None, _waiter)
            finally:
                current_call.finished()
