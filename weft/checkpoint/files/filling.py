"""What is wanted of a shard goes to its places: each row is read once, for all tensors that it has a part of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ...runtime.holding import slices
from ...sharding.geometry import Box, Interval
from ..memory import BUCKET, lies_plain, writable_bytes
from .blocks import CUT, NEAR, SENT, ShardBytes
from .checksums import BLOCK
from .index import SavedShard, SavedTensor

__all__ = ["ReadPlace", "ShardRows", "fill", "parts"]


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """A box of a shard, and the tensor that it is read into."""

    inner: Box
    target: torch.Tensor

    def has_whole_rows(self, shape: Sequence[int]) -> bool:
        """Whether it has all of its rows, of a shard of this shape."""
        return self.inner[1:] == tuple((0, size) for size in shape[1:])

    @property
    def rows(self) -> Interval:
        """Which rows of the shard it has a part of."""
        return self.inner[0] if self.inner else (0, 1)

    def cut(self, first: int, last: int) -> ReadPlace:
        """What it wants of some rows."""
        begin, end = self.rows
        first, last = max(first, begin), min(last, end)
        if (first, last) == (begin, end):
            return self
        return ReadPlace(((first, last), *self.inner[1:]), self.target[first - begin : last - begin])


@dataclass(frozen=True, slots=True)
class ShardRows:
    """Rows of a shard, and all that is wanted of them."""

    dtype: torch.dtype
    shard: SavedShard
    shape: tuple[int, ...]
    """Of the shard."""
    row_nbytes: int
    rows: Interval
    places: tuple[ReadPlace, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes its rows have."""
        return (self.rows[1] - self.rows[0]) * self.row_nbytes

    @property
    def wanted(self) -> int:
        """How many bytes are wanted of them, for all places together."""
        return sum(place.target.numel() for place in self.places) * self.dtype.itemsize

    def split(self, nbytes: int) -> tuple[ShardRows, ShardRows]:
        """About so many bytes of it and the rest, at least a row each: at the end of a block, if one ends with a row there."""
        first, last = self.rows
        end = (first * self.row_nbytes + nbytes) // BLOCK * BLOCK // self.row_nbytes
        end = min(max(end, first + 1), last - 1)
        return self._of(first, end), self._of(end, last)

    def _of(self, first: int, last: int) -> ShardRows:
        inside = tuple(place.cut(first, last) for place in _within(self.places, first, last))
        return replace(self, rows=(first, last), places=inside)


def parts(saved: SavedTensor, shard: SavedShard, places: Iterable[ReadPlace]) -> Iterator[ShardRows]:
    """What is wanted of a shard, in parts that have no row in common; what lies within the length of a block stays together.

    >>> shard = SavedShard("file", "x", ((0, 8), (0, 1 << 17)), 0)
    >>> wanted = [
    ...     ReadPlace(((first, last), (0, 4)), torch.empty(last - first, 4)) for first, last in ((5, 8), (0, 2), (1, 3))
    ... ]
    >>> [part.rows for part in parts(SavedTensor((8, 1 << 17), torch.float32, (shard,)), shard, wanted)]
    [(0, 3), (5, 8)]
    """
    shape = shard.stored_shape
    row = math.prod(shape[1:]) * saved.dtype.itemsize
    together: list[ReadPlace] = []
    first = last = 0
    for place in sorted(places, key=lambda place: place.rows):
        begin, end = place.rows
        if together and begin >= last and (end - first) * row > NEAR:
            yield ShardRows(saved.dtype, shard, shape, row, (first, last), tuple(together))
            together = []
        first, last = (first, max(last, end)) if together else (begin, end)
        together.append(place)
    if together:
        yield ShardRows(saved.dtype, shard, shape, row, (first, last), tuple(together))


def fill(part: ShardRows, source: ShardBytes) -> None:
    """Fills all places of a part; what several want alike is read for the first, and copied."""
    alike: dict[object, list[ReadPlace]] = {}
    for place in part.places:
        alike.setdefault((place.inner, place.target.dtype, place.target.device), []).append(place)
    shape, firsts = part.shape, [first for first, *_ in alike.values()]
    if not shape:
        shape, firsts = (1,), [ReadPlace(((0, 1),), place.target.view(1)) for place in firsts]
    _pour(source, part.dtype, shape, firsts, 0)
    for first, *others in alike.values():
        for other in others:
            other.target.copy_(first.target, non_blocking=True)
            _note_sent(source, {other.target.device})


def _pour(
    source: ShardBytes, dtype: torch.dtype, shape: tuple[int, ...], places: Sequence[ReadPlace], start: int
) -> None:
    """Fills places with boxes of the row-major tensor of this shape that begins at a byte of the shard."""
    if not places:
        return
    row = math.prod(shape[1:]) * dtype.itemsize
    first, last = min(place.rows[0] for place in places), max(place.rows[1] for place in places)
    rest = places
    if len(places) == 1 or (last - first) * row > NEAR:
        rest = [place for place in places if not _read_straight(source, dtype, shape, place, start)]
    if not rest:
        return
    if row > BUCKET:
        for i in range(first, last):
            inside = [ReadPlace(place.inner[1:], place.target[i - place.rows[0]]) for place in _within(rest, i, i + 1)]
            _pour(source, dtype, shape[1:], inside, start + i * row)
        return
    step = max(1, (CUT if all(place.target.device.type == "cpu" for place in rest) else SENT) // row)
    for i in range(first, last, step):
        until = min(last, i + step)
        inside = [place.cut(i, until) for place in _within(rest, i, until)]
        if inside:
            rows = source.in_bucket(start + i * row, start + until * row).view(dtype).view(until - i, *shape[1:])
            _hand_out(source, rows, i, inside)


def _read_straight(
    source: ShardBytes, dtype: torch.dtype, shape: tuple[int, ...], place: ReadPlace, start: int
) -> bool:
    """Fills a place without a detour, if it has whole rows and lies in host memory as they do."""
    target = place.target
    if not place.has_whole_rows(shape) or not lies_plain(target) or target.dtype != dtype:
        return False
    row = math.prod(shape[1:]) * dtype.itemsize
    source.straight(start + place.rows[0] * row, writable_bytes(target))
    target.view(-1)[:0].view(
        torch.uint8
    ).zero_()  # autograd is to know that it was written to; some dtypes have no zero
    return True


def _hand_out(source: ShardBytes, rows: torch.Tensor, first: int, places: Iterable[ReadPlace]) -> None:
    """Copies rows, of which the first has this number, to places that have parts of them."""
    arrived: dict[torch.device, torch.Tensor] = {}
    for place in places:
        target, device = place.target, place.target.device
        begin, end = place.rows
        part = rows
        if device.type == "cuda" and not (place.has_whole_rows(rows.shape) and target.dtype == rows.dtype):
            if device not in arrived:
                arrived[device] = rows.to(device, non_blocking=True)
            part = arrived[device]  # accelerators cut and convert faster than the host
        target.copy_(part[(slice(begin - first, end - first), *slices(place.inner[1:]))], non_blocking=True)
    _note_sent(source, {place.target.device for place in places})


def _note_sent(source: ShardBytes, devices: Iterable[torch.device]) -> None:
    source.bucket.sent(device for device in devices if device.type == "cuda")


def _within(places: Iterable[ReadPlace], first: int, last: int) -> list[ReadPlace]:
    """Those that have a part of some rows."""
    return [place for place in places if place.rows[0] < last and first < place.rows[1]]
