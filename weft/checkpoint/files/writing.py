"""Files are written as a stream: each byte is checksummed and written once, and goes to the disk while the next follow."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from ..memory import host_parts, readable_bytes
from .checksums import BlockChecksums, checksum
from .head import head_bytes, written_as
from .index import SavedFile

__all__ = ["WrittenFile", "replace", "sync_folder", "write_file", "write_whole"]

_SYNC_BYTES = 32 << 20
"""So many new bytes are sent to the disk at once."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a file turned out to be: itself, and for each key where it begins and its checksums."""

    file: SavedFile
    shards: Mapping[str, tuple[int, str]]


def write_file(path: Path, shards: Mapping[str, torch.Tensor]) -> Generator[int, None, WrittenFile]:
    """Writes shards as a safetensors file that is on the disk when this ends; yields how many bytes went, part by part."""
    head, kept = head_bytes((key, *written_as(x.dtype, tuple(x.shape))) for key, x in shards.items())
    found: dict[str, tuple[int, str]] = {}
    with _Stream(path) as stream:
        stream.write(memoryview(head))
        for key, place in kept.items():
            sums = BlockChecksums()
            for part in host_parts(shards[key].detach()):
                for block in sums.through(readable_bytes(part)):
                    stream.write(block)
                    yield len(block)
            found[key] = place.start, sums.text()
    size = len(head) + sum(place.nbytes for place in kept.values())
    return WrittenFile(SavedFile(size, len(head), checksum(head)), found)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a small file, which is on the disk when this returns."""
    with _Stream(path) as stream:
        stream.write(memoryview(content))


def replace(path: Path, content: bytes, token: str) -> None:
    """Replaces a file at once: whoever reads finds the old content or the new."""
    temporary = path.with_name(f".{path.name}.{token}")
    try:
        write_whole(temporary, content)
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Sends the names in a folder to the disk; a file system that cannot be asked for that does it by itself."""
    try:
        folder = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


class _Stream:
    """A file that is written from its beginning to its end, with a thread that sends it to the disk meanwhile."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), _mode(path))
        self._new = 0
        self._syncer: threading.Thread | None = None
        self._error: OSError | None = None

    def __enter__(self) -> _Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._join()
            if kind is None:
                os.fsync(self._file)
        finally:
            os.close(self._file)

    def write(self, data: memoryview) -> None:
        """Writes all of it."""
        self._new += len(data)
        while data:
            data = data[os.write(self._file, data) :]
        if self._new >= _SYNC_BYTES and (self._syncer is None or not self._syncer.is_alive()):
            self._join()
            self._new = 0
            self._syncer = threading.Thread(target=self._sync, name="weft checkpoint sync")
            self._syncer.start()

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._error = error

    def _join(self) -> None:
        if self._syncer is not None:
            self._syncer.join()
            self._syncer = None
        if self._error is not None:
            raise self._error


def _mode(path: Path) -> int:
    """Others may do with a file what they may do with its folder, except run it."""
    return path.parent.stat().st_mode & 0o666
