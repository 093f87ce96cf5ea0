"""Between a tensor and the shards that the devices of this process hold of it, both ways, differentiably.

Reading shards and putting shards together are each other's transpose: what comes back for the replicas of one shard is
added up, and what replicas are put together from is read at the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch

from ...runtime.holding import holding
from ...runtime.memory.lazy_copy import lazy_clone
from ...sharding.geometry import box, box_shape
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...sharding.placements import ReduceOp
from ..memory import memory_of
from ..sharded import ShardedTensor, wrap
from ..views.copy_views import current
from .movement import move

__all__ = ["assembled", "shards_of"]


def shards_of(x: ShardedTensor) -> tuple[torch.Tensor, ...]:
    """What each device of this process holds of a tensor, as plain tensors that may be written to; differentiable.

    >>> import weft
    >>> x = weft.shard(torch.arange(4), weft.make_mesh({"tp": 2}), weft.P("tp"))
    >>> [shard.tolist() for shard in shards_of(x)]
    [[0, 1], [2, 3]]
    """
    return cast("tuple[torch.Tensor, ...]", _Shards.apply(x))  # type: ignore[no-untyped-call]


def assembled(
    shards: Sequence[torch.Tensor], layout: Layout, shape: tuple[int, ...], asked: DeviceMapping | None = None
) -> ShardedTensor:
    """The tensor of this shape whose shards, one per device of this process, are these; differentiable."""
    return cast(ShardedTensor, _Assembled.apply(layout, shape, asked, *shards))  # type: ignore[no-untyped-call]


class _ShardsContext(Protocol):
    """What the two functions below keep for their backward passes."""

    layout: Layout
    shape: tuple[int, ...]
    kinds: list[tuple[torch.dtype, torch.device]]

    def set_materialize_grads(self, value: bool) -> None: ...


class _Shards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _ShardsContext, x: ShardedTensor) -> tuple[torch.Tensor, ...]:
        ctx.layout, ctx.shape = x._layout, tuple(x.shape)
        ctx.set_materialize_grads(False)
        shards = holding(x._layout).shards(current(x), x.shape)
        ctx.kinds = [(shard.dtype, shard.device) for shard in shards]
        return tuple(lazy_clone(shard) for shard in shards)

    @staticmethod
    def backward(ctx: _ShardsContext, *grads: torch.Tensor | None) -> torch.Tensor:
        layout = ctx.layout
        owned = holding(layout).residence.owned
        filled = [
            torch.zeros(box_shape(box(layout, ctx.shape, slot)), dtype=dtype, device=device) if grad is None else grad
            for slot, grad, (dtype, device) in zip(owned, grads, ctx.kinds, strict=True)
        ]
        summed = layout.with_pending(dict.fromkeys(layout.replicated_axes, ReduceOp.SUM))
        return move(assembled(filled, summed, ctx.shape), layout, op="shards backward")


class _Assembled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _ShardsContext, layout: Layout, shape: tuple[int, ...], asked: DeviceMapping | None, *shards: torch.Tensor
    ) -> torch.Tensor:
        ctx.layout = layout
        pieces = memory_of(layout).assembled(shards, layout, shape)
        return wrap(pieces, layout, shape, asked=asked, dtype=shards[0].dtype)

    @staticmethod
    def backward(ctx: _ShardsContext, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layout = ctx.layout
        kinds = {op for _, op in layout.pending}
        if kinds - {ReduceOp.SUM, ReduceOp.AVG}:
            raise RuntimeError(
                f"from_local cannot be differentiated with a pending {kinds.pop()}: make the contributions with torch ops instead"
            )
        back = move(grad, layout.resolved, op="from_local backward")
        if not isinstance(back, ShardedTensor):
            raise RuntimeError(
                "from_local cannot be differentiated inside torch.func transforms: differentiate through the global tensor"
            )
        if kinds == {ReduceOp.AVG}:
            back = cast(ShardedTensor, back / layout.mesh.group_size(layout.pending_axes))
        here = holding(layout)
        replicas_of = {axis: layout.mesh.index_of[axis] for axis in layout.replicated_axes}
        shards = shards_of(back)
        # Replicas are one value: it is read from the first of them, so only that one has a gradient.
        return (
            None,
            None,
            None,
            *(
                shard if all(layout.mesh.coords(slot)[i] == 0 for i in replicas_of.values()) else None
                for slot, shard in zip(here.residence.owned, shards, strict=True)
            ),
        )
