"""Pickles: what a tensor is, said without how this process stores it, so that any process that loads it has the same.

A pickle holds the whole value, once for each combination of pending coordinates. Whoever loads it keeps the parts of its
own devices; nobody communicates, neither to write it nor to read it.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from ..engine.memory import memory_of
from ..engine.sharded import OWN_STATE, ShardedTensor, wrap
from ..runtime.holding import Pieces
from ..runtime.machine import residence
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from .text import text

__all__ = ["is_faked", "rebuilt", "reduced", "sent"]


def is_faked(x: ShardedTensor) -> bool:
    """Whether a tensor stands for one in a program that is traced, and has no elements."""
    total = x._value.total
    held = x._value.pieces[:1] if total is None else (total.value,)
    return any(isinstance(piece, torch._subclasses.FakeTensor) for piece in held)


def reduced(x: ShardedTensor) -> tuple[Any, tuple[object, ...]]:
    """What `pickle` is to write of a tensor; raises where this process has only part of it."""
    _check_is_here(x)
    state = {name: value for name, value in x.__dict__.items() if name not in OWN_STATE}
    facts = (x._layout, tuple(x.shape), x._asked, x.dtype, x.requires_grad, state)
    return rebuilt, (memory_of(x._layout).wholes(x), *facts)


def rebuilt(
    contributions: Pieces,
    layout: Layout,
    shape: tuple[int, ...],
    asked: DeviceMapping | None,
    dtype: torch.dtype,
    requires_grad: bool,
    state: dict[str, Any],
) -> ShardedTensor:
    """The tensor that a pickle holds, stored as this process stores tensors of its layout."""
    pieces = memory_of(layout).from_wholes(contributions, layout, shape)
    strides = contributions[0].stride() if contributions else None
    tensor = wrap(pieces, layout, shape, asked=asked, dtype=dtype, strides=strides)
    tensor.__dict__.update(state)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


def _check_is_here(x: ShardedTensor) -> None:
    """Raises where other processes hold what this one does not."""
    layout = x._layout
    axes = [layout.mesh.index_of[axis] for axis in (*layout.pending_axes, *layout.split_axes)]
    owned = (layout.mesh.coords(slot) for slot in residence(layout.mesh).owned)
    held = {tuple(coords[i] for i in axes) for coords in owned}
    parts = math.prod(layout.mesh.mesh_shape[i] for i in axes)
    if len(held) < parts:
        raise RuntimeError(
            f"this process holds {len(held)} of the {parts} parts of {text(x).splitlines()[0]}, so it cannot pickle it (torch.save, "
            "queues and spawned processes do): a part would load as another value. Call weft.checkpoint.save in all processes, or "
            "y = x.full_tensor() in all processes and then torch.save(y, ...) in one"
        )


def sent(x: ShardedTensor) -> tuple[Any, tuple[object, ...]]:
    """What goes to another process of this host by value: what torch would share is gone before the other opens it."""
    _, (contributions, *facts) = reduced(x)
    given = [(_bytes(whole), whole.shape, whole.stride(), whole.dtype) for whole in cast(Pieces, contributions)]
    return _received, (given, facts)


def _received(
    given: list[tuple[bytes | None, torch.Size, tuple[int, ...], torch.dtype]], facts: list[Any]
) -> ShardedTensor:
    return rebuilt(tuple(_from_bytes(*each) for each in given), *facts)


def _bytes(whole: torch.Tensor) -> bytes | None:
    return None if whole.is_meta else whole.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _from_bytes(given: bytes | None, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    found = torch.empty_strided(shape, strides, dtype=dtype, device="meta" if given is None else "cpu")
    if given:
        found.copy_(torch.frombuffer(bytearray(given), dtype=torch.uint8).view(dtype).view(shape))
    return found
