"""Where a gradient goes: torch's graph tells, while it runs its way back, what tensor of the program it is for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..sharding.layout import Layout
from .moves.movement import layout_of

__all__ = ["wanted_layout"]

_FURTHEST = 16
"""How many ops may stand between a tensor of the program and the op whose gradient is computed."""


def wanted_layout(node_name: str, shape: Sequence[int], given: int = 0) -> Layout | None:
    """How the gradient of one of an op's inputs will be wanted: as the tensor of this shape lies that the input comes from.

    That is a leaf of the graph, or what a movement gave. None where the op's node (`EmbeddingBackward0`, say) is not the
    one that runs, or nothing of this shape is found along first inputs, from the one that is `given` on.
    """
    node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
    if node is None or node.name() != node_name:
        return None
    for hop in range(_FURTHEST):
        at = 0 if hop else given
        node = node.next_functions[at][0] if at < len(node.next_functions) else None
        if node is None:
            return None
        target, leaf = getattr(node, "target", None), getattr(node, "variable", None)
        if isinstance(target, Layout):  # of what may have had another shape before views
            return target.resolved if target.rank == len(shape) else None
        if isinstance(leaf, torch.Tensor):
            return layout_of(leaf) if list(leaf.shape) == list(shape) else None
    return None
