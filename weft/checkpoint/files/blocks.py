"""The bytes of a shard, read block by block: each block is checked when it has been read, while it is in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from ..errors import CheckpointError
from ..memory import BUCKET, writable_bytes
from .access import read_into
from .checksums import BLOCK, DIGITS, checksum
from .index import SavedShard

__all__ = ["CUT", "NEAR", "SENT", "Bucket", "ShardBytes"]

NEAR = BLOCK
"""Bytes of rows that are read before the host copies what is wanted of them: they are in the processor's cache then."""
CUT = 2 * BLOCK
"""Bytes of rows that are read before the host copies parts of them to several places: each copy is a call."""
SENT = BUCKET // 2
"""Bytes of rows that are read before they are sent to an accelerator."""


class Bucket:
    """Memory that a thread reads into what it cannot read straight to its place.

    What goes to accelerators is read into two rooms in turn: one is filled while the other is on its way.
    """

    def __init__(self, pinned: bool) -> None:
        self._rooms = [_GrowingMemory(pinned) for _ in range(2 if pinned else 1)]

    def room(self, size: int, start: int = 0, stop: int = 0) -> tuple[torch.Tensor, memoryview]:
        """So many bytes, as a tensor and as bytes; they begin with those that were from `start` to `stop` in the last room."""
        last = self._rooms[-1]
        self._rooms.append(self._rooms.pop(0))
        return self._rooms[-1].cleared(size, last.bytes[start:stop])

    def sent(self, devices: Iterable[torch.device]) -> None:
        """The last room is on its way to accelerators: it is not filled again before it has arrived."""
        self._rooms[-1].leaving += [torch.cuda.current_stream(device).record_event() for device in devices]

    def settle(self) -> None:
        """Waits until all has arrived."""
        for room in self._rooms:
            room.settle()


class _GrowingMemory:
    """Some memory, which grows when it has to."""

    def __init__(self, pinned: bool) -> None:
        self.leaving: list[torch.cuda.Event] = []
        self.bytes = memoryview(b"")
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")

    def cleared(self, size: int, kept: memoryview) -> tuple[torch.Tensor, memoryview]:
        self.settle()
        if self._memory.numel() < size:
            room = max(size, (SENT if self._pinned else CUT) + BLOCK)
            self._memory = torch.empty(room, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
            self.bytes = writable_bytes(self._memory)
        self.bytes[: len(kept)] = kept
        return self._memory[:size], self.bytes[:size]

    def settle(self) -> None:
        for event in self.leaving:
            event.synchronize()
        self.leaving.clear()


class ShardBytes:
    """Reads parts of a shard from its file, and checks them; `checked` says which blocks, where others check the rest."""

    def __init__(
        self,
        file: int,
        shard: SavedShard,
        nbytes: int,
        bucket: Bucket,
        verify: bool = True,
        checked: Callable[[int], bool] | None = None,
    ) -> None:
        self.file, self.shard, self.nbytes, self.bucket = file, shard, nbytes, bucket
        self.sums = shard.checksums if verify else None
        self._checked = checked
        self._held = 0, 0
        """Which bytes of the shard the bucket holds; they have been checked."""

    def check(self, count: Callable[[int], None]) -> None:
        """Reads all of the shard, and keeps nothing."""
        for low, high in self._blocks(0, self.nbytes):
            self.in_bucket(low, high)
            count(high - low)

    def straight(self, start: int, target: memoryview) -> None:
        """Fills memory with the bytes from `start` on, without a detour."""
        stop, begin, is_checked = start + len(target), self.shard.start, self._is_checked
        for low, high in self._blocks(start, stop):
            if start <= low and high <= stop:
                part = target[low - start : high - start]
                read_into(self.file, begin + low, part)
                if is_checked(low):
                    self._check(low, part)
            else:
                self._through_bucket(low, high, start, target)

    def in_bucket(self, start: int, stop: int) -> torch.Tensor:
        """The bytes of a range; of a block that the last one ended in, what is held is not read again."""
        held, until = self._held
        if held <= start < until:
            blocks = list(self._blocks(until, stop)) if until < stop else []
            low, high = start, blocks[-1][1] if blocks else until
            memory, room = self.bucket.room(high - low, start - held, until - held)
        else:
            blocks = list(self._blocks(start, stop))
            low, high = blocks[0][0], blocks[-1][1]
            memory, room = self.bucket.room(high - low)
        self._held = 0, 0
        if blocks:
            first = blocks[0][0]
            read_into(self.file, self.shard.start + first, room[first - low :])
            for a, z in blocks:
                if self._is_checked(a):
                    self._check(a, room[a - low : z - low])
        self._held = low, high
        return memory[start - low : stop - low]

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts to read so that a range of the shard's bytes is covered: whole blocks where they are checked."""
        if self.sums is None:
            for low in range(start, stop, BLOCK):
                yield low, min(low + BLOCK, stop)
            return
        for low in range(start // BLOCK * BLOCK, stop, BLOCK):
            yield low, min(low + BLOCK, self.nbytes)

    def _through_bucket(self, low: int, high: int, start: int, target: memoryview) -> None:
        """Fills what memory that begins at `start` has of a block."""
        _, room = self.bucket.room(high - low)
        self._held = 0, 0
        read_into(self.file, self.shard.start + low, room)
        if self._is_checked(low):
            self._check(low, room)
        a, z = max(start, low), min(start + len(target), high)
        target[a - start : z - start] = room[a - low : z - low]

    def _is_checked(self, low: int) -> bool:
        """Whether this process is to check the block that begins at a byte."""
        return self.sums is not None and (self._checked is None or self._checked(low // BLOCK))

    def _check(self, low: int, part: memoryview) -> None:
        """Compares a block with its checksum."""
        assert self.sums is not None
        at = low // BLOCK * DIGITS
        found, saved = checksum(part), self.sums[at : at + DIGITS]
        if found != saved:
            raise CheckpointError(
                f"{self.shard.key!r} is damaged in the file {self.shard.file!r}: bytes {low} to {low + len(part)} of it "
                f"have the checksum {found}, but {saved} was saved. Use another checkpoint"
            )
