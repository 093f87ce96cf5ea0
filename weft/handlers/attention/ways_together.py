"""Split heads and rings of devices that are one piece of hardware: what is told to move, and what one call gives to all."""

from __future__ import annotations

from ...engine.memory import memory_of
from ...engine.moves.movement import note_move, note_steps
from ...engine.sharded import ShardedTensor, wrap
from ...engine.strides.whole_results import whole_results
from ...rules.call import BoundCall
from ...runtime.traced import is_traced
from .kernels import Kernel, rows_named
from .lay import Lay
from .logarithms import exact_rows, rows_as_given, states_of_nothing
from .moving import come_to, note_halves, note_ring, on_mesh
from .together import by_heads, can_ring, gradients_by_heads, headed_rows, lines, ring, ring_gradients

__all__ = ["are_together", "at_once", "gradients_at_once"]


def are_together(call: BoundCall, kernel: Kernel, lay: Lay, *, rings: bool) -> bool:
    """Whether one call of the kernel can compute for all devices at a time."""
    if is_traced() or call.tensor("query").is_meta or not memory_of(lay.query).pieces_are_shards:
        return False
    if (kernel.mask is not None and call.optional(kernel.mask) is not None) or lay.shared:
        return False
    return (can_ring(lay) if rings else True) and bool(lines(lay))


def at_once(call: BoundCall, kernel: Kernel, lay: Lay, *, rings: bool) -> object:
    """What the op gives."""
    op, spec = str(call), whole_results(call)[0]
    assert spec is not None
    there = {"query": lay.query, "key": lay.split_key, "value": lay.split_key}
    given = [come_to(call.tensor(name), layout, op) for name, layout in there.items()]
    for x in given:
        _note(x, lay, op, rings=rings)
    if rings:
        note_ring(lay, given[1].dtype, op)
    pieces, numbers = (ring if rings else by_heads)(call, kernel, lay, given, spec.strides)
    out = wrap(pieces, lay.query, lay.query_shape, strides=spec.strides)
    rows = wrap(numbers, lay.rows if rings else headed_rows(lay), lay.query_shape[:3])
    for x in (out, rows) if rings else (out,):
        _note(x, lay, op, rings=rings, back=True)
    return out, rows_as_given(rows, None, call), *(on_mesh(x, lay) for x in states_of_nothing(call, kernel))


def gradients_at_once(call: BoundCall, kernel: Kernel, lay: Lay, *, rings: bool) -> object:
    """What its gradient gives."""
    op, names = str(call), rows_named(call)
    there = dict.fromkeys(names, lay.query) | {"key": lay.split_key, "value": lay.split_key}
    given = {name: come_to(call.tensor(name), layout, op) for name, layout in there.items()}
    rows = come_to(exact_rows(call, lay), lay.rows if rings else headed_rows(lay), op)
    # Told in the order in which each way brings them.
    told = (*names, "key", "value") if rings else (names[0], "query", "key", "value", "out")
    for name in told:
        _note(given[name], lay, op, rings=rings)
        if rings and name == names[-1]:
            _note(rows, lay, op, rings=rings)
    if rings:
        note_ring(lay, given["key"].dtype, op, sums=True)
    strides = [None if spec is None else spec.strides for spec in whole_results(call)[:3]]
    on_rows, on_keys = [*(given[name] for name in names), rows], [given["key"], given["value"]]
    made = (ring_gradients if rings else gradients_by_heads)(call, kernel, lay, on_rows, on_keys, strides)
    shapes = (lay.query, lay.query_shape), (lay.split_key, lay.key_shape), (lay.split_key, lay.key_shape)
    results = []
    for pieces, (layout, shape), order in zip(made, shapes, strides, strict=True):
        results.append(wrap(pieces, layout, shape, strides=order))
        _note(results[-1], lay, op, rings=rings, back=True)
    return *results, *[None] * (len(call.func._schema.returns) - 3)


def _note(x: ShardedTensor, lay: Lay, op: str, *, rings: bool, back: bool = False) -> None:
    """Notes what a tensor moves before it is computed with, or once it is made."""
    if rings:
        note_halves(x, lay, op, back=back)
    elif back:
        assert lay.heads is not None
        note_steps(lay.heads, x._layout, tuple(x.shape), x.dtype, op)
    else:
        assert lay.heads is not None
        note_move(x, lay.heads, op)
