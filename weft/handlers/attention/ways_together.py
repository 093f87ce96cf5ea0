"""The ways of attention on devices that are one piece of hardware: what is told to move, and what one call gives to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...engine.memory import memory_of
from ...engine.moves.telling import note_move, note_steps
from ...engine.op_plan import NOT_REPEATED, Repeat
from ...engine.sharded import ShardedTensor, as_sharded, wrap
from ...engine.strategy import preferred
from ...engine.strides.whole_results import whole_results
from ...rules.call import Args, BoundCall, Kwargs
from ...rules.registry import Spec
from ...runtime.strides import Strides
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...watch.notes import is_watched
from .kernels import Kernel, rows_named
from .lay import Lay
from .logarithms import exact_rows, rows_as_given, states_of_nothing
from .moving import come_to, note_halves, note_ring, on_mesh
from .proposing import GATHER_KEYS, RING, SPLIT_HEADS, key_sums
from .together import attended, gradients, lines

__all__ = ["are_together", "at_once", "gradients_at_once"]

_KEYS = ("key", "value")


def are_together(call: BoundCall, kernel: Kernel, lay: Lay) -> bool:
    """Whether one call of the kernel can compute for all devices at a time: where all that is split lies like the queries."""
    if not lay.axes or is_traced() or call.tensor("query").is_meta or not memory_of(lay.query).pieces_are_shards:
        return False
    if (kernel.mask is not None and call.optional(kernel.mask) is not None) or lay.shared:
        return False
    queries = rows_named(call) if call.has("out") else ("query",)
    given = dict.fromkeys(queries, lay.query) | dict.fromkeys(_KEYS, lay.split_key)
    return all(_lies(call, name, layout) for name, layout in given.items()) and bool(lines(lay))


def _lies(call: BoundCall, name: str, layout: Layout) -> bool:
    x = call.tensor(name)
    return isinstance(x, ShardedTensor) and x._layout is layout


def at_once(call: BoundCall, kernel: Kernel, lay: Lay, way: str) -> object:
    """What the op gives."""
    op, layout, names = str(call), _rows(lay, way), ("query", *_KEYS)
    specs = whole_results(call)
    strides = _strides(specs[:2])

    def made(call: BoundCall) -> tuple[ShardedTensor, ShardedTensor]:
        given = [as_sharded(call.tensor(name)) for name in names]
        pieces, numbers = attended(call, kernel, lay, given, layout, strides)
        out = wrap(pieces, lay.query, lay.query_shape, strides=strides[0])
        return out, wrap(numbers, layout, lay.query_shape[:3])

    def results(call: BoundCall, out: ShardedTensor, rows: ShardedTensor) -> object:
        others = [on_mesh(x, lay) for x in states_of_nothing(call, kernel, specs)]
        return out, rows_as_given(rows, None, specs[1], op), *others

    _tell(call, names, lay, way)
    if way == RING:
        note_ring(lay, call.tensor("key").dtype, op)
    out, rows = made(call)
    for x in (out,) if way == SPLIT_HEADS else (out, rows):
        _tell_back(x, lay, way, op)
    call.repeat = _while_unseen(call, lambda call: results(call, *made(call)))
    return results(call, out, rows)


def gradients_at_once(call: BoundCall, kernel: Kernel, lay: Lay, way: str) -> object:
    """What its gradient gives."""
    op, layout, names = str(call), _rows(lay, way), rows_named(call)
    strides = _strides(whole_results(call)[:3])
    shapes = (lay.query, lay.query_shape), (lay.split_key, lay.key_shape), (lay.split_key, lay.key_shape)
    nothing = [None] * (len(call.func._schema.returns) - 3)

    def made(call: BoundCall, rows: ShardedTensor) -> list[ShardedTensor]:
        queries, keys = ([as_sharded(call.tensor(name)) for name in each] for each in (names, _KEYS))
        found = gradients(call, kernel, lay, [*queries, rows], keys, strides)
        return [
            wrap(pieces, *shape, strides=order) for pieces, shape, order in zip(found, shapes, strides, strict=True)
        ]

    def rows_of(call: BoundCall) -> ShardedTensor:
        return come_to(exact_rows(call, lay), layout, op)

    # Told in the order in which each way brings them.
    if way == SPLIT_HEADS:
        _tell(call, (names[0], "query", *_KEYS, "out"), lay, way)
        rows = rows_of(call)
    else:
        rows = rows_of(call)
        _tell(call, names, lay, way)
        note_halves(rows, lay, op)
        _tell(call, _KEYS, lay, way)
    if way == RING:
        note_ring(lay, call.tensor("key").dtype, op, sums=True)
    of_query, *of_keys = made(call, rows)
    _tell_back(of_query, lay, way, op)
    for x in of_keys:
        if way == GATHER_KEYS:
            note_steps(key_sums(lay, rings=False), x._layout, lay.key_shape, x.dtype, op)
        else:
            _tell_back(x, lay, way, op)
    call.repeat = _while_unseen(call, lambda call: (*made(call, rows_of(call)), *nothing))
    return of_query, *of_keys, *nothing


def _strides(specs: Sequence[Spec | None]) -> list[Strides]:
    return [spec.strides for spec in specs if spec is not None and spec.strides is not None]


def _rows(lay: Lay, way: str) -> Layout:
    """How the logarithms lie."""
    if way != SPLIT_HEADS:
        return lay.rows
    assert lay.heads is not None
    return lay.heads.without_dim(3)


def _tell(call: BoundCall, names: Sequence[str], lay: Lay, way: str) -> None:
    """Notes what tensors would move before they are computed with."""
    op = str(call)
    for name in names:
        x = as_sharded(call.tensor(name))
        if way == SPLIT_HEADS:
            assert lay.heads is not None
            note_move(x, lay.heads, op)
        elif way == GATHER_KEYS and name in _KEYS:
            note_move(x, lay.key, op)
        else:
            note_halves(x, lay, op)


def _tell_back(x: ShardedTensor, lay: Lay, way: str, op: str) -> None:
    """Notes what a result would move once it is made."""
    if way == SPLIT_HEADS:
        assert lay.heads is not None
        note_steps(lay.heads, x._layout, tuple(x.shape), x.dtype, op)
    else:
        note_halves(x, lay, op, back=True)


def _while_unseen(call: BoundCall, again: Callable[[BoundCall], object]) -> Repeat | None:
    """What repeats a call while nobody looks on, and the same ways are preferred; None where some tensor is special."""
    if any(not isinstance(x, ShardedTensor) or x._form.is_special for x in call.tensors):
        return None
    func, before = call.func, preferred()

    def repeat(args: Args, kwargs: Kwargs) -> object:
        if is_watched() or is_traced() or preferred() != before:
            return NOT_REPEATED
        return again(BoundCall(func, args, kwargs))

    return repeat
