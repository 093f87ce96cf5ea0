"""`Emitter`: what a movement's rule writes with, when it puts itself into plain torch calls."""

from __future__ import annotations

from typing import Protocol

from torch import fx

from ...sharding.dims import Dim
from .device_ref import DeviceRef
from .op import Argument, Kernel
from .values import GraphValue

__all__ = ["Emitter"]


class Emitter(Protocol):
    """What a rule can do: ask where things lie, and write calls."""

    def call(self, kernel: Kernel, *args: Argument) -> fx.Node:
        """Write one call of a torch function; dims and devices among the arguments become numbers and torch devices."""
        ...

    def view(self, kernel: Kernel, *args: Argument) -> fx.Node:
        """Write one call whose result is a look at its first argument's memory."""
        ...

    def node(self, value: GraphValue) -> fx.Node:
        """What holds a value."""
        ...

    def moved(self, node: fx.Node, source: DeviceRef, target: DeviceRef) -> fx.Node:
        """The same tensor on another device; the same node where both share memory."""
        ...

    def share(self, one: DeviceRef, other: DeviceRef) -> bool:
        """Whether two devices share memory."""
        ...

    def reduced(self, how: str, parts: list[fx.Node]) -> fx.Node:
        """The reduction of tensors on one device, in the order given."""
        ...

    def size(self, dim: Dim) -> int | fx.Node:
        """A size as a number, or as the node that computes it."""
        ...
