"""Ops on each element of lists of tensors: one call on all pieces of all tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import cast

import torch

from ...engine.handlers import handler
from ...engine.moves.movement import layout_of, to_plain
from ...engine.op_kind import kind_of
from ...engine.sharded import ShardedTensor
from ...engine.strides.whole_results import whole_results
from ...engine.views.copy_views import is_copy, note_unseen_write, told_before
from ...engine.writes.counting import count_writes
from ...engine.writes.overlapping import named_alike, refuse_overlaps, shown_memory
from ...rules.call import BoundCall
from ...runtime.memory.lazy_copy import may_overlap, part
from .entries import ListEntry, entry_of
from .overloads import FOREACH, FUSED, overloads
from .races import race
from .repeating import evened, for_pieces, repeat_of


@handler(*overloads(FOREACH | FUSED))
def _elementwise(call: BoundCall) -> object:
    func, args = call.func, call.args
    lists = [i for i, a in enumerate(func._schema.arguments) if str(a.type) == "List[Tensor]" and i < len(args)]
    columns = {i: list(cast("Sequence[torch.Tensor]", args[i])) for i in lists}
    written = kind_of(func).written
    changing = [x for i in lists if i in written for x in columns[i]]
    places = max(map(len, columns.values()), default=0)
    for i in columns.keys() & set(written):
        for k, x in enumerate(columns[i]):
            others = [column for j, column in columns.items() if j != i and k < len(column)]
            if refuse_overlaps(func, x, [column[k] for column in others]):
                for column in others:
                    column[k] = named_alike(x, column[k])
    if places > 1 and (
        any(map(_is_written_elsewhere, changing)) or race(changing) or _is_read_elsewhere(columns, written)
    ):
        _one_by_one(call, places)
        call.afterwards = partial(count_writes, [x for x in changing if not isinstance(x, ShardedTensor)])
        return args[0] if func._schema.returns else None
    entries = [
        entry_of([column[k] if column else None for column in columns.values()], bool(written), str(func))
        for k in range(places)
    ]
    result = _run(call, columns, entries)
    if not written:
        rest = iter(cast("list[torch.Tensor]", result))
        results = [
            entry.wrapped([next(rest) for _ in range(entry.count)], dtype)
            for entry, dtype in zip(entries, _dtypes(call, entries), strict=True)
        ]
        call.repeat = repeat_of(call, lists, entries, results)
        return results
    for entry in entries:
        for j, i in enumerate(lists):
            if i in written:
                entry.store(j, str(func))
    # Autograd does not count writes of ops that we run: it leaves that to kernels, and torch's fused steps do not count theirs.
    # Others count when they are done, after views that are copies were written back.
    if call.name.startswith("_fused"):
        note_unseen_write()
    else:
        call.afterwards = partial(count_writes, changing)
    call.repeat = repeat_of(call, lists, entries, None)
    return args[0] if func._schema.returns else None


def _dtypes(call: BoundCall, entries: Sequence[ListEntry]) -> list[torch.dtype | None]:
    """The dtypes of the results in a process that has no pieces of some, which would tell them."""
    if all(entry.count for entry in entries):
        return [None] * len(entries)
    return [None if spec is None else spec.dtype for spec in whole_results(call)]


def _run(call: BoundCall, columns: dict[int, list[torch.Tensor]], entries: Sequence[ListEntry]) -> object:
    """What the op gives of all pieces."""
    counts, written = [entry.count for entry in entries], kind_of(call.func).written
    flat = {
        i: [piece for entry in entries for piece in entry.pieces(j)] if column else []
        for j, (i, column) in enumerate(columns.items())
    }
    # Torch's kernels for lists on GPUs write past copy-on-write.
    part(piece for i in written for piece in flat.get(i, ()) if piece.is_cuda)
    if call.name.startswith("_fused"):
        flat = {i: [evened(x, i in written) for x in pieces] for i, pieces in flat.items()}
    here = [flat[i] if i in flat else _beside(value, counts) for i, value in enumerate(call.args)]
    options = {name: to_plain(v) if isinstance(v, ShardedTensor) else v for name, v in call.kwargs.items()}
    # A process that has no device of any mesh has nothing to compute on.
    return call.func(*here, **options) if any(counts) else []


def _beside(value: object, counts: Sequence[int]) -> object:
    """An argument beside the lists of tensors: one number for all, or one for each tensor, so for each of its pieces."""
    if isinstance(value, (list, tuple)):
        return for_pieces(value, counts)
    value = to_plain(value) if isinstance(value, ShardedTensor) else value
    if isinstance(value, torch.Tensor) and value.dim() == 1:
        return value.repeat_interleave(torch.tensor(counts, device=value.device))
    return value


def _is_written_elsewhere(x: torch.Tensor) -> bool:
    """Whether a tensor is computed on in other memory than its own, so that others of its list do not see it at once."""
    return isinstance(x, ShardedTensor) and (bool(x._layout.pending) or is_copy(x) or may_overlap(x))


def _is_read_elsewhere(columns: dict[int, list[torch.Tensor]], written: Collection[int]) -> bool:
    """Whether what is read at a place, in other memory than its own, may be what is written to at another."""
    homes = {i: column for i, column in columns.items() if i in written}
    moved = [
        x
        for j, column in columns.items()
        for x, home in zip(column, next(iter(homes.values()), ()), strict=False)
        if j not in written and isinstance(x, ShardedTensor) and (is_copy(x) or layout_of(home) is not x._layout)
    ]
    # By names too, not by memory alone: a process that has none of it decides as the others do.
    changing = {name for column in homes.values() for x in column for name in _names(x)} if moved else set()
    return any(not changing.isdisjoint(_names(x)) for x in moved)


def _names(x: torch.Tensor) -> set[int]:
    """What tells whether tensors may share memory: that, what they are views of in the end, and what else was given it."""
    root = x._base if x._is_view() else x
    while isinstance(root, ShardedTensor) and (shown := root._value.shown) is not None:
        root = shown.base.tensor
    beside = root._value.counted_beside if isinstance(root, ShardedTensor) else None
    memory = {shown_memory(x)} if isinstance(x, ShardedTensor) else set()
    return {id(root), *(id(ref()) for ref in beside or ())} | memory


def _one_by_one(call: BoundCall, places: int) -> None:
    """The op on each place of the lists alone: what is written at one is read at the next, as torch does."""
    with told_before():
        for k in range(places):
            call.func(*[_at(value, k) for value in call.args], **call.kwargs)
    call.is_written_back = True


def _at(value: object, k: int) -> object:
    """What one place of the lists has of an argument. Lists that are empty stay so; a plain tensor may have a number for each."""
    if isinstance(value, (list, tuple)) or (isinstance(value, torch.Tensor) and value.dim() == 1):
        return value[k : k + 1]
    return value
