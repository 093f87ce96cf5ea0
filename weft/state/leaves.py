"""`Leaf`: what a plan has to know of a tensor of a state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch

from ..caches import cached
from ..engine.form import Form
from ..engine.moves.movement import layout_of
from ..engine.sharded import ShardedTensor
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from ..sharding.types import TensorLayout
from .flattening import FlatState

__all__ = ["Leaf", "Leaves", "leaves_of"]


@final
@dataclass(frozen=True, slots=True)
class Leaf:
    """What a plan has to know of a tensor."""

    layout: Layout | None
    """None: it is plain, and counts as whole everywhere."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    first: int
    """Which tensor of the state it is: tied ones are one."""
    _hash: int = field(init=False, repr=False, compare=False)
    """States are long, and looked up often."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.layout, self.shape, self.dtype, self.first)))

    def __hash__(self) -> int:
        return self._hash

    def on(self, mesh: DeviceMesh) -> Layout:
        """Its layout; of a plain one, on the mesh that it goes to."""
        return Layout.replicated(mesh, len(self.shape)) if self.layout is None else self.layout


Leaves = tuple[tuple[str, Leaf], ...]
"""The tensors of a state, in order."""


def leaves_of(state: FlatState) -> Leaves:
    """What a plan has to know of the tensors of a state."""
    seen: dict[object, int] = {}
    return tuple(
        (name, _leaf(leaf, seen.setdefault(id(leaf) if isinstance(leaf, torch.Tensor) else name, len(seen))))
        for name, leaf in state.leaves.items()
        if isinstance(leaf, (torch.Tensor, TensorLayout))
    )


@cached(1 << 14)
def _leaf_of(form: Form, first: int) -> Leaf:
    return Leaf(form.layout, form.shape, form.dtype, first)


def _leaf(leaf: torch.Tensor | TensorLayout, first: int) -> Leaf:
    if isinstance(leaf, ShardedTensor) and not leaf._form.is_open:
        return _leaf_of(leaf._form, first)
    if isinstance(leaf, TensorLayout):
        shape = tuple(map(int, leaf.shape))
        return Leaf(leaf.mapping.layout(len(shape)), shape, getattr(torch, leaf.dtype.name), first)
    if leaf.layout is not torch.strided:
        raise TypeError(
            f"only dense tensors are moved, but one of shape {tuple(leaf.shape)} is {leaf.layout}: give x.to_dense()"
        )
    return Leaf(layout_of(leaf), tuple(leaf.shape), leaf.dtype, first)
