"""`Link`, `Tier` and `Processor`: how fast a link is, between which devices it lies, and who works for it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import final

__all__ = ["Link", "Processor", "Tier"]


class Tier(IntEnum):
    """What two devices have in common, nearest first.

    >>> Tier.HOST < Tier.RACK
    True
    """

    DEVICE = 0
    HOST = 1
    RACK = 2
    FABRIC = 3


@final
@dataclass(frozen=True, slots=True)
class Link:
    """The seconds that one message takes to start, and the bytes a second that one device receives while all others do.

    `alone` says how many times as much it receives while no other of its host does: 1 where each has a link of its own.

    >>> Link(latency=10e-6, bandwidth=1e9).time(1_000_000)
    0.00101
    >>> Link(latency=0.0, bandwidth=1e9, alone=2.0).carries(1_000_000, busy=0.25)
    0.0005
    """

    latency: float
    bandwidth: float
    alone: float = 1.0

    def __post_init__(self) -> None:
        _check_numbers(self)
        if not self.latency >= 0:
            raise ValueError(f"the latency of a link is 0 seconds or more, but got {self.latency!r}")
        if not self.bandwidth > 0:
            raise ValueError(f"the bandwidth of a link is more than 0 bytes a second, but got {self.bandwidth!r}")
        if not self.alone >= 1:
            raise ValueError(f"alone a device receives at least as much as beside others, but got {self.alone!r} times")

    def time(self, size: float, phases: int = 1) -> float:
        """The seconds that it takes to receive `size` bytes in a number of phases."""
        return self.latency * phases + size / self.bandwidth

    def carries(self, size: float, busy: float) -> float:
        """The seconds for so many bytes, where devices receive such a part of that on average."""
        return size / self.bandwidth * max(busy, 1 / self.alone)


@final
@dataclass(frozen=True, slots=True)
class Processor:
    """What a device's processor does with what is sent, while those of all others are busy, too.

    Processes that share cores send, receive, copy and add with them, whichever links it comes over: bytes a second that are
    taken in (and given away meanwhile), added to others, and copied from place to place; the seconds of each message
    of a hop but the first, and those of `starting` a hop, first message included, beside the latency of its link.
    `alone` says how many times as fast a processor is when no other has anything to do.

    >>> Processor(taking=1e9, adding=2e9, copying=4e9).after(added=1_000_000, copied=2_000_000)
    0.001
    """

    taking: float
    adding: float
    copying: float
    message: float = 0.0
    alone: float = 1.0
    starting: float = 0.0

    def __post_init__(self) -> None:
        _check_numbers(self)
        for name in ("taking", "adding", "copying"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is more than 0 bytes a second, but got {getattr(self, name)!r}")
        if not self.message >= 0:
            raise ValueError(f"a message takes 0 seconds or more, but got {self.message!r}")
        if not self.starting >= 0:
            raise ValueError(f"starting a hop takes 0 seconds or more, but got {self.starting!r}")
        if not self.alone >= 1:
            raise ValueError(f"alone a processor is at least as fast as beside others, but got {self.alone!r} times")

    def after(self, added: float, copied: float) -> float:
        """The seconds beside sending: nothing is added or unpacked before it has arrived, nor sent before it is packed."""
        return added / self.adding + copied / self.copying


def _check_numbers(figures: Link | Processor) -> None:
    for field in fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{field.name} of a {type(figures).__name__} is a number, but got {value!r}")
