"""Ops that write to all of a tensor, whatever it held: it stays where it is, and nothing of it is read."""

from __future__ import annotations

from typing import cast

import torch

from ..engine.handlers import handler
from ..engine.moves.movement import to_write_plain
from ..engine.sharded import ShardedTensor
from ..engine.writes.overlapping import parted, refuse_overlaps
from ..engine.writes.writing import store
from ..rules.call import BoundCall
from ..runtime.holding import holding

__all__ = ["overwrite"]

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]
_WIDEST: dict[type, torch.dtype] = {float: torch.float64, complex: torch.complex128}
"""As what numbers are written, where that matters."""


def overwrite(x: ShardedTensor, value: torch.Tensor, op: str, *, non_blocking: bool = False) -> ShardedTensor:
    """Writes a value, broadcast to its shape, to a tensor; its layout stays."""
    if _is_itself(x, value):
        return x
    refuse_overlaps(x, (value,))
    if not holding(x._layout).unified:
        value = parted(x, value)
    store(x, value if value.shape == x.shape else value.expand(x.shape), op, non_blocking=non_blocking)
    return x


def _is_itself(x: ShardedTensor, value: torch.Tensor) -> bool:
    """Whether a value is the tensor in another shape, which torch may write back: `matmul(out=)` does."""
    if value.shape == x.shape or value.numel() != x.numel() or not value._is_view():
        return False
    return value._base is (x._base if x._is_view() else x)


@handler(aten.copy_.default)
def _copy(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, given = cast("tuple[torch.Tensor, torch.Tensor | float]", args[:2])
    # Torch takes a number too.
    value = given if isinstance(given, torch.Tensor) else torch.tensor(given, dtype=_WIDEST.get(type(given)))
    if not isinstance(x, ShardedTensor):
        return x.copy_(to_write_plain(cast(ShardedTensor, value), str(func)))
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    return overwrite(x, value, str(func), non_blocking=non_blocking)


@handler(aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor)
def _fill(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(torch.Tensor, args[0])
    value = args[1] if len(args) > 1 else kwargs.get("value", 0)
    if not isinstance(x, ShardedTensor):
        return x.fill_(to_write_plain(cast(ShardedTensor, value), str(func)))
    if not x._layout.pending and not isinstance(value, torch.Tensor):
        for piece in x._value.pieces:
            piece.fill_(cast(float, value))
        return x
    if not isinstance(value, torch.Tensor):
        value = torch.full((), cast(float, value), dtype=x.dtype, device=x.device)
    return overwrite(x, value, str(func))
