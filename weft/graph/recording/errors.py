"""The one kind of error that graphs add: an axis that is out of range."""

from __future__ import annotations

__all__ = ["AxisError"]


class AxisError(ValueError, IndexError):
    """Raised for a tensor dim that does not exist; both a `ValueError` and an `IndexError`.

    >>> issubclass(AxisError, ValueError) and issubclass(AxisError, IndexError)
    True
    """
