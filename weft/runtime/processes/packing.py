"""`Packing`: messages of many parts, put together and taken apart, with a checksum behind them where one is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import final

import torch

from ..holding import Pieces
from ..memory.host_pool import pooled_empty
from .parcels import Parcel
from .transport.reading import Span

__all__ = ["Checked", "Checksum", "Damage", "Packing"]

_CHECKSUM = 8
"""Bytes at the end of a message that is checked."""
Checksum = Callable[[torch.Tensor], int]
"""What says of the bytes of a tensor in host memory which they are, as a number of 8 bytes."""


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """A message that did not arrive as it was sent: from which process, and which tensors it has."""

    process: int
    names: tuple[str, ...]


@final
@dataclass(slots=True)
class Checked:
    """What became of the messages that were checked."""

    damages: list[Damage] = field(default_factory=list)
    others: bool = False
    """Whether another process has received a damaged message."""


@final
class Packing:
    """Puts together the messages of a state from its sources, and takes those apart that are for its targets."""

    def __init__(
        self,
        sources: Sequence[Pieces],
        targets: Sequence[Pieces],
        largest: int,
        wire: torch.device,
        checksum: Checksum | None,
    ) -> None:
        self.sources, self.targets = sources, targets
        self._largest, self._wire, self._checksum = largest, wire, checksum
        self.checked = Checked()

    def lie_ready(self, parcel: Parcel, views: Sequence[torch.Tensor]) -> bool:
        """Whether all parts of a message can leave from their places as they are, or arrive there."""
        if self._checksum is not None:
            return False
        kind = self._wire.type
        return all(
            view.dtype is dtype
            and view.is_contiguous()
            and view.device.type == kind
            and not (view.is_conj() or view.is_neg())
            for view, dtype in zip(views, parcel.dtypes, strict=True)
        )

    def message(self, parcel: Parcel) -> torch.Tensor:
        """The message to be sent: its one part, from its place, or all of them one after another."""
        views = parcel.views(self.sources)
        if len(views) == 1 and self.lie_ready(parcel, views):
            return views[0].view(-1)
        message = self.room(parcel)
        for run in parcel.runs:
            room = message[run.start : run.stop].view(run.dtype)
            given = views[run.first : run.last]
            if all(view.dtype is run.dtype and view.is_contiguous() and view.device == room.device for view in given):
                torch.cat([view.view(-1) for view in given], out=room)
                continue
            for part, view in zip(room.split(run.sizes), given, strict=True):
                part.view(view.shape).copy_(view)
        if self._checksum is not None:
            message[parcel.nbytes :] = _as_bytes(self._checksum(message[: parcel.nbytes].cpu()))
        return message

    def place(self, parcel: Parcel) -> torch.Tensor:
        """Where a message arrives: in the place of its one part, or in memory for the time being."""
        views = parcel.views(self.targets)
        return views[0].view(-1) if len(views) == 1 and self.lie_ready(parcel, views) else self.room(parcel)

    def room(self, parcel: Parcel) -> torch.Tensor:
        """Memory for a message for the time being: blocks of one size are found again, and still in the cache."""
        more = 0 if self._checksum is None else _CHECKSUM
        return pooled_empty((self._largest + more,), torch.uint8, self._wire)[: parcel.nbytes + more]

    def stretches(self, parcel: Parcel, addresses: Sequence[int]) -> list[Span]:
        """Where the parts of a message lie, and a checksum: all addresses are given, or that of a packed message alone."""
        sizes = parcel.sizes if self._checksum is None else (*parcel.sizes, _CHECKSUM)
        if len(addresses) != len(sizes):
            addresses = list(accumulate(sizes[:-1], initial=addresses[0]))
        return list(zip(addresses, sizes, strict=True))

    def unpack(self, parcel: Parcel, message: torch.Tensor, process: int) -> None:
        """Brings what has arrived from a process to its place, unless it is there already."""
        views = parcel.views(self.targets)
        if len(views) == 1 and self.lie_ready(parcel, views):
            return
        if self._checksum is not None:
            sent = _as_bytes(self._checksum(message[: parcel.nbytes].cpu()))
            if not torch.equal(sent, message[parcel.nbytes :].cpu()):
                self.checked.damages.append(Damage(process, parcel.names))
        for run in parcel.runs:
            parts = message[run.start : run.stop].view(run.dtype).split(run.sizes)
            into = views[run.first : run.last]
            torch._foreach_copy_(into, [part.view(view.shape) for part, view in zip(parts, into, strict=True)])


def _as_bytes(number: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(number.to_bytes(_CHECKSUM, "little")), dtype=torch.uint8)
