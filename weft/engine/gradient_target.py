"""Where a gradient goes: torch's graph tells, while it runs its way back, what tensor of the program it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..sharding.layout import Layout
from .moves.movement import layout_of
from .sharded import ShardedTensor, grad_fn

__all__ = ["mark_traced_leaf", "wanted_layout"]

_LEAF = "weft.leaf"
"""What the node of a tensor that stands for a leaf knows of it, in a program that is traced: no leaf of the graph tells there."""
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
        known = None if node.next_functions else _facts(node).get(_LEAF)
        if known is not None:
            layout, size = cast(tuple[Layout, Sequence[int]], known)
            return layout if list(size) == list(shape) else None
    return None


def _facts(node: torch.autograd.graph.Node) -> dict[str, object]:
    """What others have noted of a node; torch says that it is a function, and it is none."""
    return cast(dict[str, object], node.metadata)


def mark_traced_leaf(x: ShardedTensor) -> None:
    """Lets gradients be wanted, in a program that is traced, as the leaf lies that a tensor stands for there."""
    node = grad_fn(x)
    if node is not None:
        _facts(node)[_LEAF] = x._layout, tuple(x.shape)
