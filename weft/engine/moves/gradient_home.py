"""A split tensor that ops had to gather has its gradient brought back to where it lies: once, when all of it is there.

Each of these ops leaves a sum pending for it. The sums add up as they are, and what they come to is one reduce-scatter, the
transpose of one gathering. Left pending, it would be resolved by whatever op needs it next, in that op's layout.
"""

from __future__ import annotations

from functools import partial

import torch

from ...sharding.layout import Layout
from ..sharded import ShardedTensor, requires_grad
from .movement import layout_of, move

__all__ = ["bring_gradient_home", "is_gathered"]


def is_gathered(source: Layout, need: Layout) -> bool:
    """Whether a tensor is needed where parts of it do not lie.

    >>> from weft.sharding.mesh import make_mesh
    >>> split, whole = (Layout(make_mesh({"tp": 4}), (axes,)) for axes in (("tp",), ()))
    >>> is_gathered(split, whole), is_gathered(whole, split)
    (True, False)
    """
    return source.mesh == need.mesh and any(axis not in need.dim_of for axis in source.dim_of)


def bring_gradient_home(x: torch.Tensor) -> None:
    """Lets the gradient of a tensor that an op gathers arrive in the layout of the tensor, if it arrives as a pending sum.

    A view has its gradient added to what others bring to the tensor that it is a view of, and that one is brought back.
    """
    if not requires_grad(x) or not torch.is_grad_enabled():
        return
    base = x if x._base is None else x._base
    if not isinstance(base, ShardedTensor) or base.is_leaf or base._value.is_gradient_brought:
        return
    base._value.is_gradient_brought = True
    base.register_hook(partial(_home, base._layout.resolved))  # type: ignore[no-untyped-call]


def _home(layout: Layout, grad: torch.Tensor | None) -> torch.Tensor | None:
    here = None if grad is None else layout_of(grad)
    return grad if grad is None or here is None or not here.pending else move(grad, layout, op="gradient")
