"""`Reader`: fills tensors with boxes of what a checkpoint holds; it reads what it needs, checks it, and nothing else."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from ..engine.sharded import wrap
from ..engine.views.copy_views import current
from ..runtime.holding import holding, slices
from ..sharding.geometry import Box, box_shape, common, whole_box, within
from ..sharding.mapping import DeviceMapping
from ..tensor.tensor import Tensor, public
from .errors import CheckpointError
from .files.access import open_file, read_at
from .files.blocks import Bucket, ShardBytes
from .files.checkers import Checkers, Laid, common_ground
from .files.checksums import checksum
from .files.filling import ReadPlace, ShardRows, fill, parts
from .files.head import HeadError, StoredTensor, kept_in, written_as
from .files.index import Index, SavedShard, SavedTensor

__all__ = ["Reader"]

_CORES = os.cpu_count() or 1
_WORKERS = min(4, _CORES)
"""Threads that read."""
_CHECKERS = 2
"""Threads that read besides, where checksums are taken, which are a fifth of the work and more, and cores are left."""
_OPEN = 128
"""Files that are held open at once, for all threads together."""
_RUN = 128 << 20
"""Bytes that one thread reads before it goes on elsewhere."""
_LEAST = 8 << 20
"""Bytes of a shard that are not cut: others are worth a thread of their own."""
Check = Callable[[SavedTensor, SavedShard, Callable[[int], None]], None]


class Reader:
    """A checkpoint that is about to be read: first all is said that is wanted, then all of it is read."""

    def __init__(self, path: Path, index: Index, verify: bool = True, *, together: bool = False) -> None:
        self.path, self.index, self.verify = path, index, verify
        self._shares = verify and together
        """Whether other processes read the same, and may share the work of checking."""
        self._wanted: list[_Want] = []
        self._laid: list[Laid] = []
        self._checkers: Checkers | None = None
        self._together = 1
        """Processes of this host that read this at once."""
        self._then: list[Callable[[], object]] = []
        self._heads: dict[str, Mapping[str, StoredTensor]] = {}
        self._whole: dict[SavedTensor, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """How many bytes are wanted."""
        return sum(want.place.target.numel() * want.saved.dtype.itemsize for want in self._wanted)

    def want(self, name: str, target: torch.Tensor, box: Box | None = None) -> None:
        """A box of a tensor is to be read into a plain tensor of any device, strides and dtype."""
        saved = self.index.tensors[name]
        box = whole_box(saved.shape) if box is None else box
        for shard in saved.shards:
            shared = common(box, shard.box)
            if shared is not None:
                part, inner = target.detach()[slices(within(shared, box))], within(shared, shard.box)
                if shard.order:
                    part, inner = part.permute(shard.order), tuple(inner[dim] for dim in shard.order)
                self._wanted.append(_Want(saved, shard, ReadPlace(inner, part)))

    def box(self, name: str, box: Box) -> torch.Tensor:
        """A tensor in host memory that will be a box of a saved one."""
        target = torch.empty(box_shape(box), dtype=self.index.tensors[name].dtype, device="cpu")
        self.want(name, target, box)
        return target

    def read_box(self, name: str, box: Box) -> torch.Tensor:
        """A box of a saved tensor, read now."""
        part = self.box(name, box)
        with self.opened() as read:
            read(lambda _: None)
        return part

    def whole(self, name: str) -> torch.Tensor:
        """A tensor in host memory that will be the saved one; what was one tensor under several names is one again."""
        saved = self.index.tensors[name]
        if saved not in self._whole:
            whole = self.box(name, tuple((0, size) for size in saved.shape))
            if not saved.shards:  # nothing says of empty ones whether they were one
                return whole
            self._whole[saved] = whole
        return self._whole[saved]

    def laid(self, name: str, mapping: DeviceMapping, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor that will be the saved one, in a layout, and in another dtype if one is given."""
        saved = self.index.tensors[name]
        layout, dtype = mapping.layout(len(saved.shape)), dtype or saved.dtype
        pieces = holding(layout).empty(saved.shape, dtype)
        x = public(wrap(pieces, layout, saved.shape, asked=mapping, dtype=dtype))
        self.into(name, x)
        return x

    def into(self, name: str, target: torch.Tensor) -> None:
        """A tensor in any layout is to be overwritten; this process reads what its devices hold."""
        if not isinstance(target, Tensor):
            self.want(name, target)
            return
        here = holding(target._layout)
        self._laid.append((name, target._layout))
        for i, piece in enumerate(current(target)):
            self.want(name, piece, here.box(i, target.shape))

    def ground(self) -> str | None:
        """Equal in processes that can share the work of checking; None in one that checks nothing, or cannot share."""
        return common_ground(self.path, self._laid) if self._shares else None

    def share_checks(self, processes: Sequence[int]) -> None:
        """These processes, this one among them, stand on one ground: each block is checked by one of those that read it."""
        self._together = len(processes)
        if len(processes) > 1:
            self._checkers = Checkers(processes, [(self.index.tensors[name], layout) for name, layout in self._laid])

    def then(self, act: Callable[[], object]) -> None:
        """Something is to be done when all is read."""
        self._then.append(act)

    def wanted(self) -> Iterator[tuple[SavedShard, Box, torch.Tensor]]:
        """All that is wanted: which part of which shard, and where it goes."""
        for want in self._wanted:
            yield want.shard, want.place.inner, want.place.target

    def finish(self) -> None:
        """Does what is to be done when all is read."""
        for act in self._then:
            act()

    @contextmanager
    def opened(self) -> Iterator[Callable[[Callable[[int], None]], None]]:
        """Opens the files that are needed, and gives what reads them; they may be removed from now on. Then nothing is wanted any more.

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
        self._wanted.clear()

    @contextmanager
    def checking(self, name: str, shards: list[tuple[SavedTensor, SavedShard]]) -> Iterator[Check]:
        """Opens a file, and gives what reads a shard of it to no end but to check it."""
        with self._open(name) as file:
            self._check_head(name, file, shards)
            bucket = Bucket(pinned=False)

            def check(saved: SavedTensor, shard: SavedShard, count: Callable[[int], None]) -> None:
                with _named(self.path, name, shard.key):
                    ShardBytes(file, shard, saved.shard_nbytes(shard), bucket, self.verify).check(count)

            yield check

    def _read(self, files: dict[str, int], count: Callable[[int], None]) -> None:
        targets = [want.place.target for want in self._wanted]
        for target in targets:
            if target.device.type == "cpu":
                target.data_ptr()  # parts it from copies that are shared until written to: two threads must not at once
        accelerators = {target.device for target in targets if target.device.type == "cuda"}
        for device in accelerators:
            torch.cuda.synchronize(device)  # threads have streams of their own, which do not wait for the program's
        local = threading.local()
        inferring = (
            torch.is_inference_mode_enabled()
        )  # threads begin without, and could not write to what is made in it

        @torch.inference_mode(inferring)
        def read(run: list[ShardRows]) -> None:
            if not hasattr(local, "bucket"):
                local.bucket = Bucket(pinned=bool(accelerators))
            try:
                for name, parts_of_file in groupby(run, lambda part: part.shard.file):
                    with nullcontext(files[name]) if name in files else self._open(name) as file:
                        for part in parts_of_file:
                            if stopped.is_set():
                                return
                            self._fill(part, file, local.bucket)
                            count(part.wanted)
            finally:
                local.bucket.settle()

        stopped = threading.Event()
        runs = list(self._runs())
        if self._checkers is not None:
            self._checkers.work_out(part.shard for run in runs for part in run)
        if len(runs) == 1:
            read(runs[0])
        elif runs:
            with ThreadPoolExecutor(self._workers, "weft checkpoint") as pool:
                futures = [pool.submit(read, run) for run in runs]
                ended, waiting = wait(futures, return_when=FIRST_EXCEPTION)
                stopped.set()
                for future in waiting:
                    future.cancel()
                for future in ended:
                    future.result()

    @property
    def _workers(self) -> int:
        """How many threads read. Handing out parts of rows is the interpreter's work, which more threads only take turns at."""
        cut = {
            want.place.target.device.type
            for want in self._wanted
            if not want.place.has_whole_rows(want.shard.stored_shape)
        }
        if cut:
            return min(2, _WORKERS) if "cpu" in cut else _WORKERS
        left = _CORES // self._together - _WORKERS
        return _WORKERS + (min(_CHECKERS, left) if self.verify and left > 0 else 0)

    def _fill(self, part: ShardRows, file: int, bucket: Bucket) -> None:
        checked = None if self._checkers is None else self._checkers.checked(part.shard)
        nbytes = math.prod(part.shape) * part.dtype.itemsize
        with torch.no_grad(), _named(self.path, part.shard.file, part.shard.key):
            fill(part, ShardBytes(file, part.shard, nbytes, bucket, self.verify, checked))

    def _runs(self) -> Iterator[list[ShardRows]]:
        """All that is wanted, in parts that lie together: a disk reads ahead, which it cannot where threads take turns."""
        rest = list(reversed(list(self._parts())))
        total, workers = sum(part.nbytes for part in rest), self._workers
        count = workers * max(1, math.ceil(total / workers / _RUN))  # so that all threads read as much
        ends = (total * i // count for i in range(1, count + 1))
        slack = min(_LEAST, total // count) // 2
        run, done, end = list[ShardRows](), 0, next(ends)
        while rest:
            part = rest.pop()
            if part.nbytes > _LEAST and done + part.nbytes > end + slack and part.rows[1] - part.rows[0] > 1:
                part, later = part.split(end - done)
                rest.append(later)
            run.append(part)
            done += part.nbytes
            if done + slack >= end:
                yield run
                run, end = [], next((end for end in ends if end > done), total)
        if run:
            yield run

    def _parts(self) -> Iterator[ShardRows]:
        """What is wanted of each shard, in the order of the files."""
        by_source: dict[object, list[_Want]] = {}
        for want in sorted(self._wanted, key=lambda want: (want.shard.file, want.shard.start)):
            by_source.setdefault(want.source, []).append(want)
        for wants in by_source.values():
            yield from parts(wants[0].saved, wants[0].shard, [want.place for want in wants])

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        path = self.path / name if self.path.is_dir() else self.path
        with open_file(path, self.path) as (file, stamp):
            said = self.index.files[name]
            if said.stamp not in (None, stamp):
                raise CheckpointError(f"the file {str(path)!r} was replaced after it was looked at: load it again")
            if stamp.nbytes != said.nbytes:
                raise CheckpointError(
                    f"the file {str(path)!r} is damaged, it has {stamp.nbytes} bytes, but {said.nbytes} were saved: use another checkpoint"
                )
            yield file

    def _check_head(self, name: str, file: int, shards: list[tuple[SavedTensor, SavedShard]]) -> None:
        if self.index.files[name].checksum is None:
            return
        if name not in self._heads:
            self._heads[name] = self._head(name, file)
        for saved, shard in shards:
            dtype, shape = written_as(saved.dtype, box_shape(shard.box))
            if self._heads[name].get(shard.key) != StoredTensor(dtype, shape, shard.start):
                raise CheckpointError(
                    f"the index says of {shard.key!r} what the file {str(self.path / name)!r} does not say: the checkpoint is damaged, use another one"
                )

    def _head(self, name: str, file: int) -> Mapping[str, StoredTensor]:
        """What the head of a file says."""
        said, path = self.index.files[name], self.path / name
        with _named(self.path, name, "the head"):
            head = read_at(file, 0, said.head)
        if self.verify and checksum(head) != said.checksum:
            raise CheckpointError(
                f"the file {str(path)!r} is damaged, its head is not the one that was saved: it is another file, or use another checkpoint"
            )
        try:
            return kept_in(head, said.nbytes)
        except HeadError as error:
            raise CheckpointError(f"the file {str(path)!r} is damaged, {error}: use another checkpoint") from error


@contextmanager
def _named(checkpoint: Path, name: str, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot read {key!r} of {str(checkpoint / name)!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Want:
    """What is wanted of a shard, and where it goes."""

    saved: SavedTensor
    shard: SavedShard
    place: ReadPlace

    @property
    def source(self) -> tuple[object, ...]:
        """Equal for what is read from the same bytes, as the same."""
        shard = self.shard
        return shard.file, shard.start, self.saved.dtype, shard.stored_shape, shard.checksums
