"""Which process checks which block: those of one host that read the same blocks of the same files share the work.

Split by columns, or on every device, a tensor's blocks are read by many processes. They find the same bytes in the system's
memory, each block is checked by one of its readers, and what one finds is raised in all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from ...caches import cached
from ...runtime.machine import residence
from ...runtime.processes import world
from ...runtime.processes.hosts import host_name
from ...sharding.geometry import box, box_shape, common, within
from ...sharding.layout import Layout
from ..memory import BUCKET
from .checksums import BLOCK, checksum
from .index import SavedShard, SavedTensor

__all__ = ["Checkers", "Laid", "common_ground"]

Laid = tuple[str, Layout]
"""A tensor of a checkpoint, and the layout that it is read in."""
_Place = tuple[str, int]
"""A shard: its file, and where it begins there."""
_Stretch = tuple[int, int, int]
"""A process, and which bytes of a shard it reads: from where on, and up to where."""


def common_ground(folder: Path, laid: Sequence[Laid]) -> str | None:
    """What processes have in common that read the same tensors in the same layouts from one folder of one host; None if that cannot be known."""
    try:
        there = folder.stat()
    except OSError:
        return None
    if world.current().is_fake or not there.st_ino or _system_start() is None:
        return None
    number: dict[Layout, int] = {}
    read = [(name, number.setdefault(layout, len(number))) for name, layout in laid]
    return checksum(repr((host_name(), _system_start(), there.st_dev, there.st_ino, read, list(number))).encode())


@cached(1)
def _system_start() -> str | None:
    """A word for this run of the system; None where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return None


class Checkers:
    """Some processes that share the work of checking what they all read."""

    def __init__(self, processes: Iterable[int], tensors: Iterable[tuple[SavedTensor, Layout]]) -> None:
        self._processes = frozenset(processes)
        self._laid: dict[_Place, list[tuple[SavedTensor, SavedShard, Layout]]] = {}
        for saved, layout in tensors:
            for shard in saved.shards:
                self._laid.setdefault((shard.file, shard.start), []).append((saved, shard, layout))
        self._number = {place: number for number, place in enumerate(self._laid)}
        self._known: dict[object, tuple[_Stretch, ...]] = {}
        self._mine: dict[_Place, Callable[[int], bool] | None] = {}

    def work_out(self, shards: Iterable[SavedShard]) -> None:
        """Finds out beforehand who checks what: threads that copy have nothing of this in the processor's cache."""
        for shard in shards:
            self.checked(shard)

    def checked(self, shard: SavedShard) -> Callable[[int], bool] | None:
        """Which blocks of a shard this process checks; None if it checks all that it reads."""
        place = shard.file, shard.start
        if place not in self._mine:
            self._mine[place] = self._share(place)
        return self._mine[place]

    def _share(self, place: _Place) -> Callable[[int], bool] | None:
        laid = self._laid.get(place, ())
        stretches: Collection[_Stretch] = (
            self._stretches(*laid[0])
            if len(laid) == 1
            else {each for saved, part, layout in laid for each in self._stretches(saved, part, layout)}
        )
        readers = sorted({process for process, _, _ in stretches})
        if len(readers) < 2:
            return None
        here, number = world.current().process, self._number[place]
        if here in readers and len({(start, stop) for _, start, stop in stretches}) == 1:
            turn = (readers.index(here) - number) % len(readers)
            return lambda block: block % len(readers) == turn

        def is_mine(block: int) -> bool:
            low, high = block * BLOCK, (block + 1) * BLOCK
            reading = sorted({process for process, start, stop in stretches if start < high and low < stop})
            return not reading or reading[(number + block) % len(reading)] == here

        return is_mine

    def _stretches(self, saved: SavedTensor, shard: SavedShard, layout: Layout) -> tuple[_Stretch, ...]:
        key = layout, saved.shape, saved.dtype, shard.box
        if key not in self._known:
            self._known[key] = tuple(self._found(saved, shard, layout))
        return self._known[key]

    def _found(self, saved: SavedTensor, shard: SavedShard, layout: Layout) -> Iterator[_Stretch]:
        """Who reads which rows of a shard; of rows longer than a bucket processes read what they need, and check that themselves."""
        rows, *_ = box_shape(shard.box) or (1,)
        row = saved.shard_nbytes(shard) // max(1, rows)
        if row > BUCKET:
            return
        for slot, process in enumerate(residence(layout.mesh).owners):
            if process in self._processes:
                shared = common(box(layout, saved.shape, slot), shard.box)
                if shared is not None:
                    first, last = within(shared, shard.box)[0] if shared else (0, 1)
                    yield process, first * row, last * row
