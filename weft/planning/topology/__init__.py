"""How far apart devices are, and how fast the links between them: what is said, measured, or found."""

from .current import current_topology, use_topology
from .links import Link, Processor, Tier
from .topology import PRESETS, Topology, axis_tier

__all__ = ["PRESETS", "Link", "Processor", "Tier", "Topology", "axis_tier", "current_topology", "use_topology"]
