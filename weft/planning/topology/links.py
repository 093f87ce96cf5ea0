"""`Link`, `Tier` and `Processor`: how fast a link is, between which devices it lies, and who works for it."""

from __future__ import annotations

from dataclasses import dataclass
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
    """The seconds that one message takes to start, and the bytes a second that one device receives.

    >>> Link(latency=10e-6, bandwidth=1e9).time(1_000_000)
    0.00101
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not self.latency >= 0:
            raise ValueError(f"the latency of a link is 0 seconds or more, but got {self.latency!r}")
        if not self.bandwidth > 0:
            raise ValueError(f"the bandwidth of a link is more than 0 bytes a second, but got {self.bandwidth!r}")

    def time(self, size: float, phases: int = 1) -> float:
        """The seconds that it takes to receive `size` bytes in a number of phases."""
        return self.latency * phases + size / self.bandwidth


@final
@dataclass(frozen=True, slots=True)
class Processor:
    """What a device's processor does with what arrives, while those of all others are busy, too: bytes a second.

    Processes that share cores send, receive, copy and add with them, whichever links it comes over.

    >>> Processor(taking=1e9, adding=2e9).time(1_000_000, added=1_000_000)
    0.0015
    """

    taking: float
    adding: float

    def __post_init__(self) -> None:
        for name in ("taking", "adding"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is more than 0 bytes a second, but got {getattr(self, name)!r}")

    def time(self, received: float, added: float) -> float:
        """The seconds for so many bytes, some of which are added to others."""
        return received / self.taking + added / self.adding
