"""Attention with its sequence split, or with fewer heads of keys than devices: which way it goes, and that way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...engine.execute import run_by_rule, run_in
from ...engine.handlers import handler
from ...engine.memory import held_whole, memory_of
from ...engine.moves.movement import from_plain, layout_of, moved
from ...engine.moves.resolving import resolve
from ...engine.op_plan import layouts_for
from ...engine.sharded import ShardedTensor, as_sharded, wrap, wrap_whole
from ...engine.strides.whole_results import whole_results
from ...rules.call import BoundCall
from ...rules.ops.attention import ALIGNED, row_aligned
from ...rules.registry import rules
from ...sharding.layout import Layout
from .kernels import BACKWARD, FORWARD, NEEDS_ALIGNED, Kernel, rows_named
from .keys_stay import merged, merged_gradients, note_merging
from .lay import Lay, lay_of
from .logarithms import exact_rows, rows_as_given, states_of_nothing
from .merging import sum_dtype
from .moving import come_to, halves_swapped, note_ring, on_mesh
from .on_parts import AttentionOnParts
from .proposing import (
    MERGE,
    RING,
    SPLIT_HEADS,
    AttentionQuestion,
    Brought,
    chosen,
    held_sums,
    key_sums,
    merged_query,
    summed_key,
)
from .ways_together import are_together, at_once, gradients_at_once

_QUERIES = ("query", "out", "grad_out", "grad_out_")
_KEYS = ("key", "value")


@handler(*FORWARD, may_be_direct=True)
def _attention(call: BoundCall) -> object:
    return _go(call, FORWARD[call.func], _Ways(_merging, at_once, _by_heads, _on_parts))


@handler(*BACKWARD, may_be_direct=True)
def _gradient(call: BoundCall) -> object:
    if call.has("grad_input_mask") and call.flags("grad_input_mask")[3]:
        return run_by_rule(_with_aligned_mask(call))
    ways = _Ways(_gradients_merging, gradients_at_once, _gradients_by_heads, _gradients_on_parts)
    return _go(call, BACKWARD[call.func], ways)


class _Ways(NamedTuple):
    """What an op does on each way that it may go."""

    merging: Callable[[BoundCall, Kernel, Lay], object]
    at_once: Callable[[BoundCall, Kernel, Lay, str], object]
    by_heads: Callable[[BoundCall, Kernel, Lay], object]
    on_parts: Callable[..., object]


def _go(call: BoundCall, kernel: Kernel, ways: _Ways) -> object:
    """What an op gives, on the way that takes the least time."""
    lay = lay_of(call, kernel)
    if lay is None:
        return run_by_rule(_with_aligned_mask(call))
    way = chosen(_question(call, kernel, lay))
    if way == MERGE:
        return ways.merging(call, kernel, lay)
    if are_together(call, kernel, lay):
        return ways.at_once(call, kernel, lay, way)
    if way == SPLIT_HEADS:
        return ways.by_heads(call, kernel, lay)
    if lay.by_rule:
        return run_by_rule(_with_aligned_mask(call))
    return ways.on_parts(call, kernel, lay.gathered, rings=way == RING)


def _with_aligned_mask(call: BoundCall, heads: Layout | None = None) -> BoundCall:
    """A call whose mask lies as its kernel reads it; torch sees to that, but what is brought to devices has no gaps.

    `heads`: the layout of a mask whose heads are split.
    """
    mask = call.optional("attn_bias") if call.func in NEEDS_ALIGNED else None
    if mask is None or mask.shape[-1] % ALIGNED == 0:
        return call
    at = next(i for i, x in enumerate(call.tensors) if x is mask)
    there = come_to(mask, heads or layouts_for(call)[at], str(call))
    pieces = tuple(map(row_aligned, there._value.pieces))
    return call.replaced(attn_bias=wrap(pieces, there._layout, there.shape, dtype=mask.dtype))


def _question(call: BoundCall, kernel: Kernel, lay: Lay) -> AttentionQuestion:
    def brought(*names: str) -> tuple[Brought, ...]:
        return tuple(Brought.of(x) for x in map(call.optional, names) if x is not None)

    mask = () if kernel.mask is None else brought(kernel.mask)
    size, is_gradient = sum_dtype(call.tensor("query").dtype).itemsize, call.has("out")
    rows = [Brought.of(exact_rows(call, lay))] if is_gradient else []
    return AttentionQuestion(
        lay.hinted, brought(*_QUERIES), brought(*_KEYS), tuple(rows), mask[0] if mask else None, is_gradient, size
    )


def _mask(call: BoundCall, kernel: Kernel, lay: Lay) -> ShardedTensor | None:
    mask = None if kernel.mask is None else call.optional(kernel.mask)
    return None if mask is None else come_to(mask, lay.mask(lay.query, tuple(mask.shape)), str(call))


def _by_heads(call: BoundCall, kernel: Kernel, lay: Lay) -> object:
    """Heads are split instead of the sequence; the result comes back."""
    made = _in_heads(call, kernel, lay, 2)
    return moved(as_sharded(made[0]), lay.query, str(call), implicit=True), *made[1:]


def _gradients_by_heads(call: BoundCall, kernel: Kernel, lay: Lay) -> object:
    made = _in_heads(call, kernel, lay, 3)
    there = (lay.query, lay.split_key, lay.split_key)
    back = [moved(as_sharded(x), to, str(call), implicit=True) for x, to in zip(made[:3], there, strict=True)]
    return *back, *made[3:]


def _in_heads(call: BoundCall, kernel: Kernel, lay: Lay, count: int) -> tuple[object, ...]:
    """What an op gives where heads are split: so many results with heads, and others that are the same everywhere."""
    heads = lay.heads
    assert heads is not None
    mask = None if kernel.mask is None else call.optional(kernel.mask)
    if mask is not None:
        call = _with_aligned_mask(call, lay.mask(heads, tuple(mask.shape)))
        mask = call.optional(str(kernel.mask))

    def headed(rank: int) -> Layout:
        return Layout(lay.query.mesh, [*heads.splits[:2], *[()] * (rank - 2)] if rank > 2 else [()] * rank)

    inputs = [lay.mask(heads, tuple(x.shape)) if x is mask else headed(x.dim()) for x in call.tensors]
    ranks = [0 if spec is None else spec.ndim for spec in whole_results(call)]
    outputs = [headed(rank) if k < count else Layout.replicated(lay.query.mesh, rank) for k, rank in enumerate(ranks)]
    # As a call of its own: what is repeated of the one that was asked for is more than this.
    here = BoundCall(call.func, call.args, call.kwargs)
    made = run_in(here, tuple(inputs), tuple(outputs), rules[call.func])
    assert isinstance(made, tuple)
    return made


def _merging(call: BoundCall, kernel: Kernel, lay: Lay) -> object:
    """Keys and values stay; what devices see of them is merged."""
    op, mask = str(call), _mask(call, kernel, lay)
    query = come_to(call.tensor("query"), lay.query, op)
    keys = come_to(call.tensor("key"), lay.held_key, op), come_to(call.tensor("value"), lay.held_key, op)
    if memory_of(lay.query).pieces_are_shards:
        out, rows = merged(call, kernel, lay, query, keys, mask)
        specs = whole_results(call)
        states = states_of_nothing(call, kernel, specs)
        return out, rows_as_given(rows, None, specs[1], op), *(on_mesh(x, lay) for x in states)
    note_merging(lay, query.dtype, op)
    given = {"query": query, "key": keys[0], "value": keys[1]}
    whole, logarithms, *others = _on_whole(call, given, kernel, mask)
    layout = Layout(lay.query.mesh, (*lay.rows.splits, *[()] * (logarithms.dim() - 3)))
    return wrap_whole(whole, lay.query), wrap_whole(logarithms, layout), *(on_mesh(x, lay) for x in others)


def _gradients_merging(call: BoundCall, kernel: Kernel, lay: Lay) -> object:
    op, names, mask = str(call), rows_named(call), _mask(call, kernel, lay)
    rows = [come_to(call.tensor(name), lay.query, op) for name in names]
    rows.append(come_to(exact_rows(call, lay), lay.rows, op))
    keys = come_to(call.tensor("key"), lay.held_key, op), come_to(call.tensor("value"), lay.held_key, op)
    if memory_of(lay.query).pieces_are_shards:
        made = merged_gradients(call, kernel, lay, rows, keys, mask)
    else:
        given = {**dict(zip(names, rows, strict=False)), **dict(zip(_KEYS, keys, strict=True))}
        layouts = merged_query(lay), *[held_sums(lay)] * 2
        wholes = _on_whole(call, given, kernel, mask)
        made = [from_plain(x, layout) for x, layout in zip(wholes, layouts, strict=False)]
    return *made, *[None] * (len(call.func._schema.returns) - 3)


def _on_parts(call: BoundCall, kernel: Kernel, lay: Lay, *, rings: bool) -> object:
    """Every device computes its own queries."""
    op = str(call)
    query = halves_swapped(come_to(call.tensor("query"), lay.query, op), lay, op)
    key, value = _brought_keys(call, lay, rings=rings)
    mask, specs = _mask(call, kernel, lay), whole_results(call)
    if memory_of(lay.query).pieces_are_shards:
        parts = AttentionOnParts(call, kernel, lay)
        out, rows = (parts.ring if rings else parts.gathered)(query, key, value, mask)
        logarithms: torch.Tensor | None = None
        others: Sequence[object] = states_of_nothing(call, kernel, specs)
    else:
        if rings:
            note_ring(lay, key.dtype, op)
        given = {"query": query, "key": key, "value": value}
        whole, logarithms, *others = _on_whole(call, given, kernel, mask)
        out = wrap_whole(whole, lay.query)
        rows = wrap_whole(torch.empty(lay.query_shape[:3], dtype=sum_dtype(query.dtype), device="meta"), lay.rows)
    out, rows = (halves_swapped(x, lay, op, back=True) for x in (out, rows))
    return out, rows_as_given(rows, logarithms, specs[1], op), *(on_mesh(x, lay) for x in others)


def _gradients_on_parts(call: BoundCall, kernel: Kernel, lay: Lay, *, rings: bool) -> object:
    op, names = str(call), rows_named(call)
    rows = [come_to(call.tensor(name), lay.query, op) for name in names]
    rows.append(come_to(exact_rows(call, lay), lay.rows, op))
    rows = [halves_swapped(x, lay, op) for x in rows]
    key, value = _brought_keys(call, lay, rings=rings)
    mask = _mask(call, kernel, lay)
    if memory_of(lay.query).pieces_are_shards:
        parts = AttentionOnParts(call, kernel, lay)
        made = list((parts.ring_gradients if rings else parts.gathered_gradients)(rows, key, value, mask))
    else:
        if rings:
            note_ring(lay, key.dtype, op, sums=True)
        given = {**dict(zip(names, rows, strict=False)), "key": key, "value": value}
        wholes = _on_whole(call, given, kernel, mask)
        layouts = lay.query, *[key_sums(lay, rings=rings)] * 2
        made = [from_plain(x, layout) for x, layout in zip(wholes, layouts, strict=False)]
    of_query, *of_keys = made
    of_query = halves_swapped(of_query, lay, op, back=True)
    if rings:
        of_keys = [halves_swapped(x, lay, op, back=True) for x in of_keys]
    else:
        left = [summed_key(lay, layout_of(call.tensor(name))) for name in _KEYS]
        of_keys = [moved(x, there, op, implicit=True) for x, there in zip(of_keys, left, strict=True)]
    return of_query, *of_keys, *[None] * (len(call.func._schema.returns) - 3)


def _brought_keys(call: BoundCall, lay: Lay, *, rings: bool) -> list[ShardedTensor]:
    op = str(call)
    if not rings:
        return [come_to(call.tensor(name), lay.key, op) for name in _KEYS]
    return [halves_swapped(come_to(call.tensor(name), lay.split_key, op), lay, op) for name in _KEYS]


def _on_whole(
    call: BoundCall, given: dict[str, ShardedTensor], kernel: Kernel, mask: ShardedTensor | None
) -> tuple[torch.Tensor, ...]:
    """What the op gives of whole values, in one memory."""
    wholes: dict[str, object] = {name: held_whole(x) for name, x in given.items()}
    if mask is not None and kernel.mask is not None:
        whole = held_whole(mask)
        if whole is not None and call.func in NEEDS_ALIGNED and whole.shape[-1] % ALIGNED:
            whole = row_aligned(whole)
        wholes[kernel.mask] = whole
    here = call.replaced(**wholes)
    rest = [held_whole(resolve(x, str(call))) if isinstance(x, ShardedTensor) else x for x in here.tensors]
    made = here.on(rest)
    assert isinstance(made, tuple)
    return made
