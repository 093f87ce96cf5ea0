"""Ops that write to all of a tensor, whatever it held: it stays where it is, and nothing of it is read."""

from __future__ import annotations

import torch

from ..engine.handlers import handler
from ..engine.memory import memory_of
from ..engine.moves.movement import to_write_plain
from ..engine.sharded import ShardedTensor, as_sharded
from ..engine.writes.overlapping import is_named, parted, refuse_overlaps
from ..engine.writes.writing import is_last_out, store
from ..rules.call import BoundCall

__all__ = ["overwrite"]

aten = torch.ops.aten
_WIDEST: dict[type, torch.dtype] = {float: torch.float64, complex: torch.complex128}
"""As what numbers are written, where that matters."""


def overwrite(x: ShardedTensor, value: torch.Tensor, op: str, *, non_blocking: bool = False) -> ShardedTensor:
    """Writes a value, broadcast to its shape, to a tensor; its layout stays."""
    if _is_itself(x, value) or is_named(x, value):
        return x  # nothing is written
    refuse_overlaps(aten.copy_.default, x, (value,))
    value = memory_of(x._layout).parted(x, value)
    store(x, value if value.shape == x.shape else value.expand(x.shape), op, non_blocking=non_blocking)
    return x


def _is_itself(x: ShardedTensor, value: torch.Tensor) -> bool:
    """Whether a value is the tensor, with its first dims merged or not, just written to, which `matmul(out=)` writes back."""
    return (
        is_last_out(value)
        and (value.dim() < x.dim() or value.shape == x.shape)
        and value.numel() == x.numel()
        and value._is_view()
        and value._base is (x._base if x._is_view() else x)
        and value.storage_offset() == x.storage_offset()
    )


@handler(aten.copy_.default)
def _copy(call: BoundCall) -> object:
    x, given = call.tensor("self"), call.arg("src")
    # Torch takes a number too.
    value = given if isinstance(given, torch.Tensor) else torch.tensor(given, dtype=_WIDEST.get(type(given)))
    if not isinstance(x, ShardedTensor):
        shaped = value.new_empty((), device="meta").expand(value.shape)
        shaped.expand(x.shape)  # which torch may refuse, before anything moves
        return x.copy_(to_write_plain(as_sharded(value), str(call)))
    return overwrite(x, value, str(call), non_blocking=call.flag("non_blocking"))


@handler(aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor)
def _fill(call: BoundCall) -> object:
    x, value = call.tensor("self"), call.arg("value", 0)
    if not isinstance(x, ShardedTensor):
        return x.fill_(to_write_plain(as_sharded(value), str(call)))
    if isinstance(value, torch.Tensor):
        return overwrite(
            x, parted(x, value), str(call)
        )  # torch copies it first, too, where it is part of what is filled
    if x._layout.pending:
        return overwrite(x, aten.full([], value, dtype=x.dtype, device=x.device), str(call))
    for piece in x._value.pieces:
        aten.fill_.Scalar(piece, value)
    return x
