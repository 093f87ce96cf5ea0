"""Files of a checkpoint are opened and read here; what is no plain file, or ends too early, is said."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import CheckpointError

__all__ = ["FileStamp", "open_file", "read_at", "read_into"]


class FileStamp(NamedTuple):
    """What is another of a file that has taken the place of another one: its size, and when it was last written to."""

    nbytes: int
    written: int


@contextmanager
def open_file(path: Path, checkpoint: Path) -> Iterator[tuple[int, FileStamp]]:
    """An open file of a checkpoint and its stamp; what is no plain file is refused before it is opened."""
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
        found = os.fstat(file)
        yield file, FileStamp(found.st_size, found.st_mtime_ns)
    finally:
        os.close(file)


def read_at(file: int, start: int, size: int) -> bytes:
    """So many bytes of a file."""
    content = bytearray(size)
    read_into(file, start, memoryview(content))
    return bytes(content)


def read_into(file: int, start: int, target: memoryview) -> None:
    """Fills memory with what a file has from a byte on."""
    got = 0
    while got < len(target):
        more = os.preadv(file, [target[got:] if got else target], start + got)
        if not more:
            raise OSError(errno.EIO, "the file ends too early")
        got += more
