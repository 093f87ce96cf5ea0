"""`Reader`: fills tensors with boxes of what a checkpoint holds; it reads what it needs, checks it, and nothing else."""

from __future__ import annotations

import errno
import math
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from ..engine.sharded import wrap
from ..engine.views.copy_views import current
from ..runtime.holding import holding, slices
from ..runtime.machine import residence
from ..sharding.geometry import Box, box_shape, within
from ..sharding.mapping import DeviceMapping
from ..tensor.tensor import Tensor, public
from .errors import CheckpointError
from .files.boxes import common
from .files.checksums import BLOCK, DIGITS, checksum
from .files.head import HeadError, Kept, kept_in
from .files.index import Index, SavedShard, SavedTensor
from .memory import BUCKET, lies_plain, writable_bytes

__all__ = ["Reader", "open_file", "read_at"]

_WORKERS = min(4, os.cpu_count() or 1)
_OPEN = 128
"""Files that are held open at once, for all threads together."""
_NEAR = BLOCK
"""Bytes of rows that are read before the host copies what is wanted of them: they are in the processor's cache then."""
_RUN = 128 << 20
"""Bytes that one thread reads before it goes on elsewhere."""
Check = Callable[[SavedTensor, SavedShard, Callable[[int], None]], None]


class Reader:
    """A checkpoint that is about to be read: first all is said that is wanted, then all of it is read."""

    def __init__(self, path: Path, index: Index, verify: bool = True) -> None:
        self.path, self.index, self.verify = path, index, verify
        self.spans_processes = False
        """Whether any tensor that is wanted lies on devices of several processes."""
        self._wanted: list[_Want] = []
        self._then: list[Callable[[], object]] = []

    @property
    def nbytes(self) -> int:
        """How many bytes are wanted."""
        return sum(want.target.numel() * want.saved.dtype.itemsize for want in self._wanted)

    def want(self, name: str, target: torch.Tensor, box: Box | None = None) -> None:
        """A box of a tensor is to be read into a plain tensor of any device, strides and dtype."""
        saved = self.index.tensors[name]
        box = tuple((0, size) for size in saved.shape) if box is None else box
        for shard in saved.shards:
            shared = common(box, shard.box)
            if shared is not None:
                part = target.detach()[slices(within(shared, box))]
                self._wanted.append(_Want(saved, shard, within(shared, shard.box), part))

    def whole(self, name: str) -> torch.Tensor:
        """A tensor in host memory that will be the saved one."""
        saved = self.index.tensors[name]
        target = torch.empty(saved.shape, dtype=saved.dtype, device="cpu")
        self.want(name, target)
        return target

    def laid(self, name: str, mapping: DeviceMapping, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor that will be the saved one, in a layout, and in another dtype if one is given."""
        saved = self.index.tensors[name]
        layout, dtype = mapping.layout(len(saved.shape)), dtype or saved.dtype
        here = holding(layout)
        pieces = tuple(
            torch.empty(here.piece_shape(i, saved.shape), dtype=dtype, device=device)
            for i, device in enumerate(here.devices)
        )
        x = public(wrap(pieces, layout, saved.shape, asked=mapping, dtype=dtype))
        self.into(name, x)
        return x

    def into(self, name: str, target: torch.Tensor) -> None:
        """A tensor in any layout is to be overwritten; this process reads what its devices hold."""
        if not isinstance(target, Tensor):
            self.want(name, target)
            return
        here = holding(target._layout)
        self.spans_processes |= len(set(residence(target.mesh).owners)) > 1
        for i, piece in enumerate(current(target)):
            self.want(name, piece, here.box(i, target.shape))

    def then(self, act: Callable[[], object]) -> None:
        """Something is to be done when all is read."""
        self._then.append(act)

    def wanted(self) -> Iterator[tuple[SavedShard, Box, torch.Tensor]]:
        """All that is wanted: which part of which shard, and where it goes."""
        for want in self._wanted:
            yield want.shard, want.inner, want.target

    def finish(self) -> None:
        """Does what is to be done when all is read."""
        for act in self._then:
            act()

    @contextmanager
    def opened(self) -> Iterator[Callable[[Callable[[int], None]], None]]:
        """Opens the files that are needed, and gives what reads them; they may be removed from now on.

        Of more files than a system lets a program open, the rest is opened again when it is read.
        """
        needed: dict[str, list[_Want]] = {}
        for want in self._wanted:
            needed.setdefault(want.shard.file, []).append(want)
        with ExitStack() as stack:
            files: dict[str, int] = {}
            for name, wants in needed.items():
                with ExitStack() as closing:
                    kept = stack if len(files) < _OPEN else closing
                    file = kept.enter_context(self._open(name))
                    self._check_head(name, file, [(want.saved, want.shard) for want in wants])
                    if kept is stack:
                        files[name] = file
            yield lambda count: self._read(files, count)

    @contextmanager
    def checking(self, name: str, shards: list[tuple[SavedTensor, SavedShard]]) -> Iterator[Check]:
        """Opens a file, and gives what reads a shard of it to no end but to check it."""
        with self._open(name) as file:
            self._check_head(name, file, shards)
            bucket = _Bucket(pinned=False)

            def check(saved: SavedTensor, shard: SavedShard, count: Callable[[int], None]) -> None:
                with _named(self.path / name, shard.key):
                    nothing = _Want(saved, shard, (), torch.empty(0, device="cpu"))
                    _Filling(file, nothing, bucket, self.verify, count).check()

            yield check

    def _read(self, files: dict[str, int], count: Callable[[int], None]) -> None:
        local = threading.local()
        for want in self._wanted:
            if want.target.device.type == "cpu":
                want.target.data_ptr()  # parts it from copies that are shared until written to: two threads must not at once
        for device in {want.target.device for want in self._wanted if want.target.device.type == "cuda"}:
            torch.cuda.synchronize(device)  # threads have streams of their own, which do not wait for the program's

        def fill(run: list[_Want]) -> None:
            for name, wants in groupby(run, lambda want: want.shard.file):
                with nullcontext(files[name]) if name in files else self._open(name) as file:
                    for want in wants:
                        if stopped.is_set():
                            return
                        if not hasattr(local, "bucket"):
                            local.bucket = _Bucket(pinned=want.target.device.type == "cuda")
                        with torch.no_grad(), _named(self.path / name, want.shard.key):
                            _Filling(file, want, local.bucket, self.verify, count).run()

        stopped = threading.Event()
        runs = list(self._runs())
        if len(runs) == 1:
            fill(runs[0])
        elif runs:
            with ThreadPoolExecutor(_WORKERS, "weft checkpoint") as pool:
                futures = [pool.submit(fill, run) for run in runs]
                ended, waiting = wait(futures, return_when=FIRST_EXCEPTION)
                stopped.set()
                for future in waiting:
                    future.cancel()
                for future in ended:
                    future.result()

    def _runs(self) -> Iterator[list[_Want]]:
        """All that is wanted, in parts that lie together: a disk reads ahead, which it cannot where threads take turns."""
        most = min(_RUN, self.nbytes // _WORKERS)
        run: list[_Want] = []
        size = 0
        for want in sorted(self._wanted, key=lambda want: (want.shard.file, want.shard.start)):
            if run and size >= most:
                yield run
                run, size = [], 0
            run.append(want)
            size += want.target.numel() * want.saved.dtype.itemsize
        if run:
            yield run

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        path = self.path / name if self.path.is_dir() else self.path
        with open_file(path, self.path) as (file, size):
            said = self.index.files[name]
            if size != said.nbytes:
                raise CheckpointError(
                    f"the file {str(path)!r} is damaged, it has {size} bytes, but {said.nbytes} were saved: use another checkpoint"
                )
            yield file

    def _check_head(self, name: str, file: int, shards: list[tuple[SavedTensor, SavedShard]]) -> None:
        said = self.index.files[name]
        if said.checksum is None:
            return
        path = self.path / name
        with _named(path, "the head"):
            head = read_at(file, 0, said.head)
        if self.verify and checksum(head) != said.checksum:
            raise CheckpointError(
                f"the file {str(path)!r} is damaged, its head is not the one that was saved: it is another file, or use another checkpoint"
            )
        try:
            kept = kept_in(head, said.nbytes)
        except HeadError as error:
            raise CheckpointError(f"the file {str(path)!r} is damaged, {error}: use another checkpoint") from error
        for saved, shard in shards:
            if kept.get(shard.key) != Kept(saved.dtype, box_shape(shard.box), shard.start):
                raise CheckpointError(
                    f"the index says of {shard.key!r} what the file {str(path)!r} does not say: the checkpoint is damaged, use another one"
                )


@contextmanager
def open_file(path: Path, checkpoint: Path) -> Iterator[tuple[int, int]]:
    """An open file of a checkpoint and its size; what is no plain file is refused before it is opened."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{str(path)!r} is no plain file: use another checkpoint")
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"the checkpoint {str(checkpoint)!r} is incomplete, its file {path.name!r} is missing: copy the whole directory, or use another checkpoint"
        ) from error
    except OSError as error:
        raise CheckpointError(f"the file {str(path)!r} cannot be opened: {error}") from error
    try:
        yield file, os.fstat(file).st_size
    finally:
        os.close(file)


def read_at(file: int, start: int, size: int) -> bytes:
    """So many bytes of a file."""
    content = bytearray(size)
    _read_into(file, start, memoryview(content))
    return bytes(content)


def _read_into(file: int, start: int, target: memoryview) -> None:
    while target:
        got = os.preadv(file, [target], start)
        if not got:
            raise OSError(errno.EIO, "the file ends too early")
        target, start = target[got:], start + got


@contextmanager
def _named(path: Path, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot read {key!r} of {str(path)!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Want:
    """A box of a shard, and the tensor that it is read into."""

    saved: SavedTensor
    shard: SavedShard
    inner: Box
    target: torch.Tensor


class _Bucket:
    """Memory that a thread reads into what it cannot read straight to its place."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._memory: torch.Tensor | None = None
        self._bytes = memoryview(b"")

    def room(self, size: int, start: int = 0, stop: int = 0) -> tuple[torch.Tensor, memoryview]:
        """So many bytes, as a tensor and as bytes; they begin with those that were from `start` to `stop` in it."""
        kept = self._bytes[start:stop]
        if self._memory is None or self._memory.numel() < size:
            self._memory = None
            room = max(size, (BUCKET // 4 if self._pinned else _NEAR) + BLOCK)
            self._memory = torch.empty(room, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
            self._bytes = writable_bytes(self._memory)
        self._bytes[: len(kept)] = kept
        return self._memory[:size], self._bytes[:size]


class _Filling:
    """Reads one box of a shard into its place, block by block, each checked when it has been read."""

    def __init__(self, file: int, want: _Want, bucket: _Bucket, verify: bool, count: Callable[[int], None]) -> None:
        self.file, self.want, self.bucket, self.count = file, want, bucket, count
        self.nbytes = want.saved.shard_nbytes(want.shard)
        self.sums = want.shard.checksums if verify else None
        self._held = 0, 0
        """Which bytes of the shard the bucket holds; they have been checked."""

    def run(self) -> None:
        """Reads all of it."""
        want = self.want
        self._pour(box_shape(want.shard.box), want.inner, 0, want.target)
        self.count(want.target.numel() * want.saved.dtype.itemsize)

    def check(self) -> None:
        """Reads all of the shard, and keeps nothing."""
        for low, high in self._blocks(0, self.nbytes):
            self._read_bucket(low, high)
            self.count(high - low)

    def _pour(self, shape: tuple[int, ...], inner: Box, start: int, target: torch.Tensor) -> None:
        """Fills `target` with a box of the row-major tensor of this shape that begins at a byte of the shard."""
        if not shape:
            shape, inner, target = (1,), ((0, 1),), target.view(1)
        dtype = self.want.saved.dtype
        row = math.prod(shape[1:]) * dtype.itemsize
        (first, last), others = inner[0], inner[1:]
        if others == tuple((0, size) for size in shape[1:]) and lies_plain(target) and target.dtype == dtype:
            self._read_straight(start + first * row, writable_bytes(target))
            target.view(-1)[:0].zero_()  # autograd is to know that it was written to
            return
        if row > BUCKET:
            for i in range(first, last):
                self._pour(shape[1:], others, start + i * row, target[i - first])
            return
        step = max(1, (_NEAR if target.device.type == "cpu" else BUCKET // 4) // row)
        for i in range(first, last, step):
            until = min(last, i + step)
            rows = self._read_bucket(start + i * row, start + until * row).view(dtype).view(until - i, *shape[1:])
            target[i - first : until - first].copy_(rows[(slice(None), *slices(others))])

    def _read_straight(self, start: int, target: memoryview) -> None:
        stop = start + len(target)
        for low, high in self._blocks(start, stop):
            if start <= low and high <= stop:
                part = target[low - start : high - start]
                _read_into(self.file, self.want.shard.start + low, part)
                self._check(low, part)
            else:
                _, room = self.bucket.room(high - low)
                self._held = 0, 0
                _read_into(self.file, self.want.shard.start + low, room)
                self._check(low, room)
                a, z = max(start, low), min(stop, high)
                target[a - start : z - start] = room[a - low : z - low]

    def _read_bucket(self, start: int, stop: int) -> torch.Tensor:
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
        for a, z in blocks:
            part = room[a - low : z - low]
            _read_into(self.file, self.want.shard.start + a, part)
            self._check(a, part)
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

    def _check(self, low: int, part: memoryview) -> None:
        if self.sums is None:
            return
        at = low // BLOCK * DIGITS
        found, saved = checksum(part), self.sums[at : at + DIGITS]
        if found != saved:
            raise CheckpointError(
                f"{self.want.shard.key!r} is damaged in the file {self.want.shard.file!r}: bytes {low} to {low + len(part)} of it "
                f"have the checksum {found}, but {saved} was saved. Use another checkpoint"
            )
