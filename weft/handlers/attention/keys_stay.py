"""Attention to keys that stay where they are: every device sees its own, and the queries are small.

That is how one token looks at a long cache whose sequence is split: queries and results travel, keys and values do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engine.moves.movement import moved
from ...engine.moves.telling import note_steps
from ...engine.sharded import ShardedTensor, wrap
from ...rules.call import BoundCall
from ...runtime.holding import holding
from .kernels import Kernel
from .lay import Lay
from .merging import sum_dtype
from .on_parts import AttentionOnParts
from .proposing import held_sums, merged_query, seen_rows, seen_shape

__all__ = ["merged", "merged_gradients", "note_merging"]

Keys = tuple[ShardedTensor, ShardedTensor]
"""Keys and values."""


def merged(
    call: BoundCall, kernel: Kernel, lay: Lay, query: ShardedTensor, keys: Keys, mask: ShardedTensor | None
) -> tuple[ShardedTensor, ShardedTensor]:
    """The result and its logarithms."""
    op, layout = str(call), merged_query(lay)
    parts = AttentionOnParts(call, kernel, lay, layout)
    made = parts.each(query, *keys, mask)
    dtype = sum_dtype(query.dtype)
    own = wrap(tuple(rows.unsqueeze(0) for _, rows in made), seen_rows(lay), seen_shape(lay), dtype=dtype)
    seen = moved(own, seen_rows(lay).with_split(0, ()), op, implicit=True)
    at = holding(seen._layout).piece_of
    outs, rows = [], {}
    for (out, logarithms), slot in zip(made, parts.slots, strict=True):
        total = seen._value.pieces[at[slot]].logsumexp(0)
        safe = total.masked_fill(total == -torch.inf, 0)
        rows[at[slot]] = safe
        outs.append((out * (logarithms - safe).exp().unsqueeze(-1)).to(out.dtype))
    whole = wrap(tuple(outs), layout, lay.query_shape, dtype=query.dtype)
    found = wrap(tuple(rows[k] for k in range(len(rows))), lay.rows, lay.query_shape[:3], dtype=dtype)
    return moved(whole, lay.query, op, implicit=True), found


def merged_gradients(
    call: BoundCall,
    kernel: Kernel,
    lay: Lay,
    rows: Sequence[ShardedTensor],
    keys: Keys,
    mask: ShardedTensor | None,
) -> list[ShardedTensor]:
    """The gradients of queries, to which every device contributes, and of keys and values, which stay too."""
    layout, there, dtype = merged_query(lay), held_sums(lay), rows[1].dtype
    of_query, pairs = AttentionOnParts(call, kernel, lay, layout).each_gradient(rows, *keys, mask)
    made = [tuple(of_query), tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)]
    shapes = (layout, lay.query_shape), (there, lay.key_shape), (there, lay.key_shape)
    return [
        wrap(tuple(piece.to(dtype) for piece in pieces), where, shape, dtype=dtype)
        for pieces, (where, shape) in zip(made, shapes, strict=True)
    ]


def note_merging(lay: Lay, dtype: torch.dtype, op: str) -> None:
    """Notes what is merged, which one memory need not carry out."""
    own = seen_rows(lay)
    note_steps(own, own.with_split(0, ()), seen_shape(lay), sum_dtype(dtype), op)
    note_steps(merged_query(lay), lay.query, lay.query_shape, dtype, op)
