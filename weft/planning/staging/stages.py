"""`Stages`: through which cells a step goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ...sharding.mesh import DeviceMesh
from ..topology import Tier, Topology
from ..topology.topology import cells

__all__ = ["Stages"]


@final
@dataclass(frozen=True, slots=True)
class Stages:
    """Through which cells a step goes: the hosts of a topology, or its racks.

    >>> Stages(Topology(devices_per_host=4), Tier.HOST).name
    'host by host'
    """

    topology: Topology
    tier: Tier

    @property
    def name(self) -> str:
        """How it goes, in words."""
        return f"{self.tier.name.lower()} by {self.tier.name.lower()}"

    def cells(self, mesh: DeviceMesh) -> tuple[int, ...]:
        """The cell of each slot."""
        return cells(mesh, self.topology, self.tier)
