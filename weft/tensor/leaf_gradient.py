"""Where the gradient of a leaf arrives: in the layout of the leaf, or in one that was asked for."""

from __future__ import annotations

from typing import Any, final

import torch

from ..engine.moves.adding_up import left_pending
from ..engine.moves.movement import aligned_meanwhile
from ..engine.sharded import ShardedTensor
from ..sharding.layout import Layout

__all__ = ["GRADIENT_LAYOUT", "bring_to_leaf", "gradient_in"]

GRADIENT_LAYOUT = "_gradient_layout"
"""Where a tensor keeps the layout that its gradient is to have, where that is not its own."""


def gradient_in(x: ShardedTensor, layout: Layout) -> None:
    """Lets the gradient of a leaf arrive in another layout than that of the leaf.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 2})
    >>> x = weft.ones(4, mapping=weft.NamedMapping(mesh, weft.P())).requires_grad_()
    >>> gradient_in(x, Layout(mesh, (("dp",),)))
    >>> (x * 2).sum().backward()
    >>> x.grad.mapping.spec
    P('dp')
    """
    x.__dict__[GRADIENT_LAYOUT] = layout


def bring_to_leaf(x: ShardedTensor, *, once: bool = False) -> None:
    """Brings the gradient of a leaf to its layout when it arrives; `once`: unless that is seen to already."""
    if not once or not any(isinstance(hook, _Aligned) for hook in (x._backward_hooks or {}).values()):
        x.register_hook(_Aligned(x.__dict__))  # type: ignore[no-untyped-call]


@final
class _Aligned:
    """A hook that brings a gradient to the layout of its tensor, whatever that is by then."""

    def __init__(self, state: dict[str, Any]) -> None:
        # Not the tensor itself, which would live for ever, nor a weak reference, with which torch swaps no tensors.
        self._state = state

    def __call__(self, grad: torch.Tensor | None) -> torch.Tensor | None:
        target = self._state.get(GRADIENT_LAYOUT) or self._state["_form"].layout.resolved
        if isinstance(grad, ShardedTensor) and grad._form.layout is target:
            return None
        waiting = left_pending(grad, target)
        return aligned_meanwhile(grad, target) if waiting is None else waiting
