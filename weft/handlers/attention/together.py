"""Attention of devices that are one piece of hardware: one call of a kernel computes for all of them.

Devices are a batch dim of the kernel. Between them everything moves that would move otherwise, by copies in one memory.

    split heads     heads are independent: what devices have of the sequence is put together, and cut again after the call
    ring            in each turn all devices see the part that has come to them

Under a causal mask a device has two halves of parts of the sequence, one from the front and one as far from the back:

    device          0       1       2       3
    halves          0 7     1 6     2 5     3 4

In turn t the devices from t on have the halves of one before them, of which all of their queries see the first; the others have those
of one behind them, which their second halves see. That is one call for either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ...caches import cached
from ...engine.sharded import ShardedTensor
from ...rules.call import BoundCall
from ...runtime.holding import Pieces, holding
from ...runtime.machine import forget_with_residences
from ...sharding.geometry import Interval
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from .kernels import Kernel, Rows
from .lay import Lay
from .merging import merge_into, sum_dtype

__all__ = ["by_heads", "can_ring", "gradients_by_heads", "headed_rows", "lines", "ring", "ring_gradients"]

KINDS = {"cuda"}
"""The devices that compute sooner when they are given more at a time. Bound: the kinds there are. Cleared: never."""

Line = tuple[Slot, ...]
"""The devices that have one sequence together, in its order."""
Made = tuple[Line, list[torch.Tensor]]
"""What was made for the devices of a line."""
Three = tuple[Pieces, Pieces, Pieces]
Strides = tuple[int, ...] | None


@cached(1024, cleared_by=forget_with_residences)
def lines(lay: Lay) -> tuple[Line, ...]:
    """The lines of devices along which the sequence is split; none where some line is more than one piece of hardware."""
    here, mesh = holding(lay.query), lay.query.mesh
    along = {mesh.index_of[axis] for axis in lay.axes}
    found: dict[tuple[int, ...], list[tuple[int, Slot, torch.device]]] = {}
    for slot, coords, device in zip(here.slots, here.coords, here.devices, strict=True):
        beside = tuple(at for axis, at in enumerate(coords) if axis not in along)
        found.setdefault(beside, []).append((lay.part_at(coords), slot, device))
    for line in found.values():
        devices = {device for *_, device in line}
        if len(line) != lay.parts or len(devices) > 1 or devices.pop().type not in KINDS:
            return ()
    return tuple(tuple(slot for _, slot, _ in sorted(line, key=lambda each: each[0])) for line in found.values())


def can_ring(lay: Lay) -> bool:
    """Whether all devices have equal parts, and with a causal mask equal halves."""
    queries, keys, count = lay.query_shape[2], lay.key_shape[2], lay.parts
    if lay.shared or keys % count or queries % count:
        return False
    return not lay.is_causal or (queries == keys and not queries % (2 * count))


def headed_rows(lay: Lay) -> Layout:
    """Of one number for each query, when heads are split."""
    assert lay.heads is not None
    return lay.heads.without_dim(3)


def _held(x: ShardedTensor, line: Line) -> list[torch.Tensor]:
    at = holding(x._layout).piece_of
    return [x._value.pieces[at[slot]] for slot in line]


def _in_places(made: Sequence[Made], layout: Layout) -> Pieces:
    """What was made for lines of devices, as the pieces of a layout."""
    at = holding(layout)
    found = {at.piece_of[slot]: piece for line, pieces in made for slot, piece in zip(line, pieces, strict=True)}
    return tuple(found[k] for k in range(at.count))


def _joined(parts: Sequence[torch.Tensor], strides: Strides) -> torch.Tensor:
    """Parts of a sequence after one another, their dims in memory in the order of these strides."""
    if strides is None or len(strides) < 4 or strides[1] > strides[2]:
        return torch.cat(tuple(parts), 2)
    return torch.cat([part.transpose(1, 2) for part in parts], 1).transpose(1, 2)


def _cut(x: torch.Tensor, cuts: Sequence[Interval], strides: Strides) -> list[torch.Tensor]:
    """Parts of a sequence, each in memory of its own."""
    return [_joined((x[:, :, start:stop],), strides) for start, stop in cuts]


def by_heads(
    call: BoundCall, kernel: Kernel, lay: Lay, given: Sequence[ShardedTensor], strides: Strides
) -> tuple[Pieces, Pieces]:
    """The pieces of the result, whose sequence is split, and of its logarithms, whose heads are."""
    outs, rows = [], []
    for line in lines(lay):
        query, key, value = (torch.cat(_held(x, line), 2) for x in given)
        out, logarithms = kernel.forward(call, query, key, value, None, lay.is_causal)
        outs.append((line, _cut(out, lay.query_cuts, strides)))
        rows.append((line, [each.contiguous() for each in logarithms.tensor_split(len(line), 1)]))
    return _in_places(outs, lay.query), _in_places(rows, headed_rows(lay))


def gradients_by_heads(
    call: BoundCall,
    kernel: Kernel,
    lay: Lay,
    rows: Sequence[ShardedTensor],
    keys: Sequence[ShardedTensor],
    strides: Sequence[Strides],
) -> Three:
    """The pieces of the gradients of queries, keys and values. The last of `rows` are the logarithms, whose heads are split."""
    made: list[list[Made]] = [[], [], []]
    for line in lines(lay):
        whole = Rows(*(torch.cat(_held(x, line), 2 if x.dim() == 4 else 1) for x in rows))
        key, value = (torch.cat(_held(x, line), 2) for x in keys)
        gradients = kernel.backward(call, whole, key, value, None, lay.is_causal)
        cuts = lay.query_cuts, lay.key_cuts, lay.key_cuts
        for k, gradient in enumerate(gradients):
            made[k].append((line, _cut(gradient, cuts[k], strides[k])))
    return _as_pieces(made, lay)


def _as_pieces(made: Sequence[Sequence[Made]], lay: Lay) -> Three:
    """What was made of the gradients of queries, keys and values, as pieces."""
    of_query, of_key, of_value = made
    return _in_places(of_query, lay.query), _in_places(of_key, lay.split_key), _in_places(of_value, lay.split_key)


def _stacked(parts: Sequence[torch.Tensor], halves: bool) -> torch.Tensor:
    """What devices have, device by device along the batch; under a causal mask, once halves are where they are computed."""
    if not halves:
        return torch.cat(tuple(parts), 0)
    each = [half for part in parts for half in part.tensor_split(2, 2)]
    count = len(parts)
    return torch.cat((torch.cat(each[:count], 0), torch.cat(each[: count - 1 : -1], 0)), 2)


def _unstacked(x: torch.Tensor, count: int, halves: bool, strides: Strides) -> list[torch.Tensor]:
    """What devices have, each in memory of its own, and in the order of the sequence."""
    parts = x.tensor_split(count)
    if not halves:
        return [_joined((part,), strides) for part in parts]
    first, second = zip(*(part.tensor_split(2, 2) for part in parts), strict=True)
    each = (*first, *reversed(second))
    return [_joined(each[2 * k : 2 * k + 2], strides) for k in range(count)]


class _Turn(NamedTuple):
    """What devices see at once: batches and rows of queries, batches and columns of keys."""

    queries: tuple[slice, ...]
    keys: tuple[slice, ...]


def _turns(lay: Lay, batch: int, length: int) -> Iterator[_Turn]:
    """What is seen after the first turn, in which every device sees its own part; keys are stacked twice where nothing is hidden."""
    count, every = lay.parts, slice(None)
    for turn in range(1, count):
        at, back = turn * batch, (count - turn) * batch
        if not lay.is_causal:
            yield _Turn((every,), (slice(back, back + count * batch),))
            continue
        yield _Turn((slice(at, None),), (slice(back), every, slice(length // 2)))
        yield _Turn((slice(at), every, slice(length // 2, None)), (slice(back, None),))


def ring(
    call: BoundCall, kernel: Kernel, lay: Lay, given: Sequence[ShardedTensor], strides: Strides
) -> tuple[Pieces, Pieces]:
    """The pieces of the result and of its logarithms, when keys and values go round."""
    outs, rows = [], []
    for line in lines(lay):
        query, key, value = (_stacked(_held(x, line), lay.is_causal) for x in given)
        out, known = kernel.forward(call, query, key, value, None, lay.is_causal)
        out, known = out.to(sum_dtype(out.dtype)), known.contiguous()
        if not lay.is_causal:
            key, value = (torch.cat((x, x)) for x in (key, value))
        for turn in _turns(lay, query.shape[0] // len(line), query.shape[2]):
            more, logarithms = kernel.forward(call, query[turn.queries], key[turn.keys], value[turn.keys], None, False)
            merge_into(out[turn.queries], known[turn.queries], more, logarithms)
        outs.append((line, _unstacked(out.to(query.dtype), len(line), lay.is_causal, strides)))
        rows.append((line, _unstacked(known, len(line), lay.is_causal, None)))
    return _in_places(outs, lay.query), _in_places(rows, lay.rows)


def ring_gradients(
    call: BoundCall,
    kernel: Kernel,
    lay: Lay,
    rows: Sequence[ShardedTensor],
    keys: Sequence[ShardedTensor],
    strides: Sequence[Strides],
) -> Three:
    """The pieces of the gradients of queries, keys and values, when the latter go round, and their gradients with them."""
    made: list[list[Made]] = [[], [], []]
    for line in lines(lay):
        whole = Rows(*(_stacked(_held(x, line), lay.is_causal) for x in rows))
        key, value = (_stacked(_held(x, line), lay.is_causal) for x in keys)
        first = kernel.backward(call, whole, key, value, None, lay.is_causal)
        sums = [x.to(sum_dtype(x.dtype)) for x in first]
        if not lay.is_causal:
            key, value = (torch.cat((x, x)) for x in (key, value))
        for turn in _turns(lay, whole.query.shape[0] // len(line), whole.query.shape[2]):
            part = Rows(*(x[turn.queries] for x in whole))
            of_query, *of_keys = kernel.backward(call, part, key[turn.keys], value[turn.keys], None, False)
            sums[0][turn.queries] += of_query
            for total, more in zip(sums[1:], of_keys, strict=True):
                _add_back(total, more, turn.keys)
        for k, (total, x) in enumerate(zip(sums, (whole.query, key, value), strict=True)):
            made[k].append((line, _unstacked(total.to(x.dtype), len(line), lay.is_causal, strides[k])))
    return _as_pieces(made, lay)


def _add_back(total: torch.Tensor, more: torch.Tensor, where: tuple[slice, ...]) -> None:
    """Adds what was made of some keys to their gradients; of those that were stacked twice, to the one that there is."""
    start, stop, count = where[0].start or 0, where[0].stop, len(total)
    if stop is None or stop <= count:
        total[where] += more
        return
    total[start:] += more[: count - start]
    total[: stop - count] += more[count - start :]
