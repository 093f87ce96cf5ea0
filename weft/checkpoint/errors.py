"""What goes wrong with a checkpoint."""

from __future__ import annotations

from ..errors import WeftError

__all__ = ["CheckpointError"]


class CheckpointError(WeftError, ValueError):
    """Raised when a checkpoint is missing, damaged, or does not fit what it is loaded into.

    >>> import weft
    >>> weft.checkpoint.load("nowhere")
    Traceback (most recent call last):
    weft.checkpoint.errors.CheckpointError: there is no checkpoint at 'nowhere': ...
    """
