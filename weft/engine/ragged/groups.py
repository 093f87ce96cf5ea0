"""`Assigned`: which group each row belongs to, and which device has it. Groups are split over devices as experts are."""

from __future__ import annotations

from typing import final

import torch

from ...sharding.mesh import DeviceMesh, Slot
from .rows import Groups, RaggedRows, along, evenly
from .running import on_device

__all__ = ["Assigned"]


@final
class Assigned:
    """Rows that stand group by group, of groups that are split over some axes; `ends`: where each group ends."""

    def __init__(self, mesh: DeviceMesh, axes: tuple[str, ...], ends: torch.Tensor, rows: int) -> None:
        self.mesh, self.axes, self.count = mesh, axes, len(ends)
        sizes = ends.diff(prepend=ends.new_zeros(1))
        if bool((sizes < 0).any()) or int(ends[-1]) > rows:
            raise RuntimeError(
                f"the groups of {rows} rows end at {ends.tolist()}: ends must not fall, nor go beyond the last row. Sort the "
                "rows by group, and give the running sum of how many each has."
            )
        self.groups = Groups(axes, tuple(sizes.tolist()))
        # Rows beyond the last end belong to no group; they go with the last one.
        left = sizes.new_tensor([rows - int(ends[-1])])
        self._group = torch.repeat_interleave(torch.arange(self.count + 1), torch.cat([sizes, left]))
        self._owners = evenly(mesh, axes, self.count)

    def places(self, axes: tuple[str, ...], at: torch.Tensor | None, known: tuple[str, ...]) -> torch.Tensor:
        """Where each row goes along some axes: to its group; along those that split no groups it stays where it is."""
        owner = self._owners[self._group.clamp(max=self.count - 1)]
        return along(self.mesh, axes, (self.axes, owner), (known, at))

    def ends(self, rows: RaggedRows, slot: Slot) -> torch.Tensor:
        """Where the groups of a device end among the rows that it has."""
        line = next(line for line in self.mesh.groups(self.axes) if slot in line)
        own = (self._owners == line.index(slot)).nonzero().squeeze(1)
        if not len(own):
            return torch.zeros(0, dtype=torch.int32)
        here = self._group[on_device(rows, slot)] - own[0]
        counts = torch.bincount(here[here < len(own)], minlength=len(own))
        return counts.cumsum(0).to(torch.int32)
