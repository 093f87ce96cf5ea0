"""One saver at a time: the folder of a checkpoint is locked while a save writes to it; the lock goes with its process."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import final

from ..errors import CheckpointError

if sys.platform != "win32":
    import fcntl

__all__ = ["FolderLock"]


@final
class FolderLock:
    """A lock on a folder.

    >>> import pathlib
    >>> first = FolderLock(pathlib.Path("."))
    >>> FolderLock(pathlib.Path("."))
    Traceback (most recent call last):
    weft.checkpoint.errors.CheckpointError: another program saves to '.' right now: ...
    >>> first.release()
    """

    def __init__(self, path: Path) -> None:
        self._folder: int | None = None
        if sys.platform == "win32":
            return
        self._folder = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return  # a file system without locks: a save checks its files before it ends
            self.release()
            raise CheckpointError(
                f"another program saves to {str(path)!r} right now: wait for it, or save to another folder"
            ) from error

    def release(self) -> None:
        """Lets others save."""
        if self._folder is not None:
            if sys.platform != "win32":
                with contextlib.suppress(OSError):  # said, because a child may hold the folder open too
                    fcntl.flock(self._folder, fcntl.LOCK_UN)
            os.close(self._folder)
            self._folder = None
