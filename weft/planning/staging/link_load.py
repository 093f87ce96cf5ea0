"""`LinkLoad`: the bytes of one device in one hop, tier by tier, and the seconds that they take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from ..topology import Topology

__all__ = ["LinkLoad"]


@final
@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Bytes that one device receives (or sends) in one hop: over its host's links, its rack's, and between racks."""

    host: float = 0.0
    rack: float = 0.0
    fabric: float = 0.0
    added: float = 0.0
    """How many of them are added to what the device has."""
    copied: float = 0.0
    """Bytes that are packed before they leave, or copied to their place after they have arrived."""
    messages: float = 1.0
    busy: float = 1.0
    """What all devices receive on average, as a part of that: they may share a cable, and the cores of a host."""

    @property
    def total(self) -> float:
        """The bytes over all links."""
        return self.host + self.rack + self.fabric

    def adding(self) -> LinkLoad:
        """The same, where all of it is added."""
        return replace(self, added=self.total)

    def time(self, topology: Topology) -> float:
        """The seconds of the hop: what leaves the host goes over one link, beside what stays there.

        Where a processor has to work for all links, it takes as long as that does, and then adds and copies.
        """
        farthest = topology.fabric if self.fabric else topology.rack if self.rack else topology.host
        if not self.total:
            return 0.0
        beyond = topology.rack.carries(self.rack, self.busy) + topology.fabric.carries(self.fabric, self.busy)
        carried = max(topology.host.carries(self.host, self.busy), beyond)
        if topology.processor is None:
            return farthest.latency + carried
        processor = topology.processor
        part = max(self.busy, 1 / processor.alone)
        begun = processor.starting + processor.message * (self.messages - 1)
        taken = max(carried, part * self.total / processor.taking)
        return farthest.latency + taken + part * (begun + processor.after(self.added, self.copied))

    def __add__(self, other: LinkLoad) -> LinkLoad:
        return LinkLoad(
            self.host + other.host, self.rack + other.rack, self.fabric + other.fabric, self.added + other.added
        )

    def times(self, factor: float) -> LinkLoad:
        """So many times as much."""
        return LinkLoad(self.host * factor, self.rack * factor, self.fabric * factor, self.added * factor)
