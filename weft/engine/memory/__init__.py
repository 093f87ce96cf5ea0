"""Where values live: in one memory that all devices of a mesh share, or in one for each.

Beside `weft.runtime`, only this room knows which; everybody else asks the memory of a layout to do something.
"""

from __future__ import annotations

import torch

from ...caches import cached
from ...runtime.machine import forget_with_residences, residence
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ..sharded import ShardedTensor
from .memory import Memory
from .one_memory import OneMemory
from .separate import Separate

__all__ = ["Memory", "held_whole", "memory_of", "memory_on"]

_ONE, _SEPARATE = OneMemory(), Separate()


@cached(1024, cleared_by=forget_with_residences)
def memory_on(mesh: DeviceMesh) -> Memory:
    """The memory that values on a mesh live in.

    >>> from weft.sharding.mesh import make_mesh
    >>> memory_on(make_mesh({"x": 2})).pieces_are_shards
    False
    """
    return _ONE if residence(mesh).unified else _SEPARATE


def memory_of(layout: Layout) -> Memory:
    """The memory that values in a layout live in."""
    return memory_on(layout.mesh)


def held_whole(x: ShardedTensor) -> torch.Tensor | None:
    """The one plain tensor that is the value of `x`, where there is one: its devices share a memory, nothing is pending."""
    return memory_on(x._form.layout.mesh).held_whole(x)
