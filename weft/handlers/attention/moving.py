"""What moves while attention is computed: tensors to where they are needed, halves that devices swap, keys that go round.

Where one memory has all devices, what would move is noted, and everything stays.
"""

from __future__ import annotations

import torch

from ...engine.execute import brought
from ...engine.memory import memory_of
from ...engine.moves.movement import from_plain
from ...engine.moves.permutation import note_passing, passed_on
from ...engine.moves.rearranging import note_rearrangement, rearranged
from ...engine.sharded import ShardedTensor, as_sharded, wrap, wrap_whole
from ...sharding.layout import Layout
from ...watch.notes import is_watched
from .lay import Lay
from .merging import sum_dtype
from .proposing import key_sums, padded, swap

__all__ = ["come_to", "halves_swapped", "made_even", "next_part", "note_halves", "note_ring", "on_mesh"]


def come_to(x: torch.Tensor, layout: Layout, op: str) -> ShardedTensor:
    """A tensor of a call in a layout; what only some devices had is sent before anything else is."""
    there = as_sharded(brought(x, layout, op, whole=False))
    there._value.pieces  # noqa: B018 - asking for them sends it
    return there


def on_mesh(x: object, lay: Lay) -> object:
    """One of the other results of a kernel, the same on every device."""
    return from_plain(x, Layout.replicated(lay.query.mesh, x.dim())) if isinstance(x, torch.Tensor) else x


def halves_swapped(x: ShardedTensor, lay: Lay, op: str, *, back: bool = False) -> ShardedTensor:
    """A tensor whose devices have swapped halves of the sequence, where a causal mask asks for it."""
    if not lay.is_causal or lay.parts == 1:
        return x
    layout, shape = x._layout, tuple(x.shape)
    if memory_of(layout).pieces_are_shards:
        return rearranged([x], layout, shape, swap(layout, shape, lay, back=back).parts, op, torch.clone)
    note_halves(x, lay, op, back=back)
    return x


def note_halves(x: ShardedTensor, lay: Lay, op: str, *, back: bool = False) -> None:
    """Notes that halves are swapped, where a causal mask asks for it."""
    if lay.is_causal and lay.parts > 1 and is_watched():
        note_rearrangement(swap(x._layout, tuple(x.shape), lay, back=back), x.dtype.itemsize, op)


def made_even(x: ShardedTensor, lay: Lay) -> ShardedTensor:
    """Keys or values of which all parts are as large as the largest; what is added is never looked at."""
    shape = (*padded(lay)[:3], x.shape[3])
    if not memory_of(x._layout).pieces_are_shards:
        return wrap_whole(torch.empty(shape, dtype=x.dtype, device="meta"), x._layout)
    size = shape[2] // lay.parts
    pieces = tuple(
        piece if piece.shape[2] == size else torch.cat([piece, piece.new_zeros(_missing(piece, size))], 2)
        for piece in x._value.pieces
    )
    return wrap(pieces, x._layout, shape, dtype=x.dtype)


def _missing(piece: torch.Tensor, size: int) -> list[int]:
    return [*piece.shape[:2], size - piece.shape[2], piece.shape[3]]


def next_part(x: ShardedTensor, lay: Lay, op: str) -> ShardedTensor:
    """Keys or values after every device has passed its part on to the next."""
    return passed_on(x, lay.axes, op)


def note_ring(lay: Lay, dtype: torch.dtype, op: str, *, sums: bool = False) -> None:
    """Notes what goes round, where it need not be carried out; with `sums`, gradients of keys and values too."""
    if not is_watched():
        return
    for turn in range(lay.parts):
        for _ in range(2 if turn < lay.parts - 1 else 0):
            note_passing(lay.split_key, padded(lay), dtype, lay.axes, op)
        for _ in range(2 if sums and turn else 0):
            note_passing(key_sums(lay, rings=True), padded(lay), sum_dtype(dtype), lay.axes, op)
