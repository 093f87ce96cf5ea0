"""The logarithms that attention kernels give beside their result, one for each query: in the form of each kernel, and as they are.

Some kernels round their count up, so that they cannot be split like the queries; some give them a dim more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from ...engine.moves.movement import from_plain, moved
from ...engine.moves.telling import note_steps
from ...engine.sharded import ShardedTensor, wrap, wrap_whole
from ...rules.call import BoundCall
from ...rules.registry import Spec
from ...sharding.layout import Layout
from .kernels import Kernel
from .lay import Lay

__all__ = ["exact_rows", "rows_as_given", "states_of_nothing"]

aten = torch.ops.aten


def exact_rows(call: BoundCall, lay: Lay) -> torch.Tensor:
    """The logarithms that a gradient is given, one for each query."""
    rows = call.tensor("logsumexp")
    if rows.dim() == 4:
        rows = aten.squeeze.dim(rows, 3)
    count = lay.query_shape[2]
    return rows if rows.shape[2] == count else aten.slice.Tensor(rows, 2, 0, count)


def rows_as_given(rows: ShardedTensor, whole: torch.Tensor | None, spec: Spec | None, op: str) -> ShardedTensor:
    """Logarithms in the form in which the op gives them; `whole`: as it gave them, in one memory."""
    layout = rows._layout
    assert spec is not None
    if spec.shape[2] == rows.shape[2]:
        there = layout if spec.ndim == 3 else layout.with_dim(3)
        if whole is not None:
            return wrap_whole(whole, there)
        pieces = tuple(piece.reshape(*piece.shape, *spec.shape[3:]) for piece in rows._value.pieces)
        return wrap(pieces, there, spec.shape, dtype=spec.dtype, strides=spec.strides)
    there = Layout(layout.mesh, (*layout.splits[:2], *[()] * (spec.ndim - 2)))
    if not spec.shape[2]:
        return from_plain(torch.empty(spec.shape, dtype=spec.dtype, device=rows.device), there)
    if whole is not None:
        note_steps(layout, there, tuple(rows.shape), rows.dtype, op)
        return wrap_whole(whole, there)
    gathered = moved(rows, there, op, implicit=True)
    more = spec.shape[2] - rows.shape[2]
    pieces = tuple(functional.pad(piece, (0, more)) for piece in gathered._value.pieces)
    return wrap(pieces, there, spec.shape, dtype=spec.dtype)


def states_of_nothing(call: BoundCall, kernel: Kernel, specs: Sequence[Spec | None]) -> list[object]:
    """The other results of a kernel that drops nothing: lengths, and states of a generator that nobody reads.

    `specs`: of all of its results.
    """
    query, key = call.tensor("query"), call.tensor("key")
    lengths = {4: query.shape[2], 5: key.shape[2]}
    return [
        lengths.get(k)
        if k in kernel.nothing or spec is None
        else torch.zeros(spec.shape, dtype=spec.dtype, device=query.device)
        for k, spec in enumerate(specs)
        if k > 1
    ]
