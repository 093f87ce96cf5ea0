"""`verify`: reads all of a checkpoint and says everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from ..progress import shown
from ..reading import Reader
from .index import SavedShard, SavedTensor
from .opening import index_at

__all__ = ["Verified", "verify"]

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found to be right: so many tensors and bytes in so many files.

    >>> import torch, weft
    >>> weft.checkpoint.save({"x": torch.ones(4)}, "checkpoint")
    >>> weft.checkpoint.verify("checkpoint")
    Verified(tensors=1, files=1, nbytes=16, checksums=True)
    """

    tensors: int
    files: int
    nbytes: int
    checksums: bool
    """Whether the bytes were compared with checksums; files of other libraries have none."""


def verify(path: str | os.PathLike[str], *, progress: bool = False) -> Verified:
    """Reads a whole checkpoint, in this process alone, and raises `CheckpointError` with all that is wrong.

    >>> import pathlib, torch, weft
    >>> weft.checkpoint.save({"x": torch.ones(4)}, "checkpoint")
    >>> (file,) = pathlib.Path("checkpoint").glob("*.safetensors")
    >>> file.write_bytes(file.read_bytes()[:-1] + b"!") > 0
    True
    >>> weft.checkpoint.verify("checkpoint")
    Traceback (most recent call last):
    weft.checkpoint.errors.CheckpointError: the checkpoint 'checkpoint' is damaged: 'x' is damaged in the file ...
    """
    where = Path(path)
    index = index_at(where)
    reader = Reader(where, index)
    shards = {(shard.file, shard.start): (saved, shard) for saved in index.tensors.values() for shard in saved.shards}
    total = sum(saved.shard_nbytes(shard) for saved, shard in shards.values())
    by_file: dict[str, list[tuple[SavedTensor, SavedShard]]] = {name: [] for name in index.files}
    for saved, shard in shards.values():
        by_file[shard.file].append((saved, shard))
    with shown("verifying", total, progress) as count, ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda item: list(_problems(reader, item[0], item[1], count)), by_file.items())
        problems = [problem for each in found for problem in each]
    if problems:
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listed = "\n  ".join(problems[:_SHOWN])
        raise CheckpointError(f"the checkpoint {str(where)!r} is damaged: {listed}{more}")
    checked = all(file.checksum is not None for file in index.files.values())
    return Verified(len(index.tensors), len(index.files), total, checked)


def _problems(
    reader: Reader, file: str, shards: list[tuple[SavedTensor, SavedShard]], count: Callable[[int], None]
) -> Iterator[str]:
    """What is wrong with a file and the shards in it."""
    with ExitStack() as stack:
        try:
            read = stack.enter_context(reader.checking(file, shards))
        except CheckpointError as error:
            yield str(error)
            return
        for saved, shard in shards:
            try:
                read(saved, shard, count)
            except CheckpointError as error:
                yield str(error)
