"""`Link` and `Tier`: how fast a link is, and between which devices it lies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import final

__all__ = ["Link", "Tier"]


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
