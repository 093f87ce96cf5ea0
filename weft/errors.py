"""The few kinds of error that Weft raises beyond Python's own."""

from __future__ import annotations

__all__ = [
    "ConversionError",
    "MismatchError",
    "PaperError",
    "PlanError",
    "ReshardError",
    "ScheduleError",
    "TimeoutError",
    "WeftError",
]


class WeftError(Exception):
    """The common parent of Weft's own errors.

    >>> issubclass(ConversionError, WeftError)
    True
    """


class ConversionError(WeftError, ValueError):
    """Raised when a sharding spec conversion would lose information.

    >>> raise ConversionError("axis order ('tp', 'dp') of dim 0 would be lost")
    Traceback (most recent call last):
    weft.errors.ConversionError: axis order ('tp', 'dp') of dim 0 would be lost
    """


class PlanError(WeftError, ValueError):
    """Raised when no plan leads from one layout to another, or none fits the memory limit.

    >>> issubclass(PlanError, ValueError)
    True
    """


class PaperError(WeftError, RuntimeError):
    """Raised when a program that runs on paper asks for what paper does not have.

    >>> issubclass(PaperError, RuntimeError)
    True
    """


class ReshardError(WeftError, RuntimeError):
    """Raised for an implicit movement under `weft.reshard_policy("raise")`.

    >>> issubclass(ReshardError, RuntimeError)
    True
    """


class ScheduleError(WeftError, ValueError):
    """Raised for a pipeline schedule that cannot run: incomplete, out of order, standing still, or over its memory.

    >>> issubclass(ScheduleError, ValueError)
    True
    """


class MismatchError(WeftError, RuntimeError):
    """Raised when processes of one program call different things.

    >>> issubclass(MismatchError, RuntimeError)
    True
    """


class TimeoutError(WeftError, RuntimeError):  # noqa: A001 - users catch weft.errors.TimeoutError by this name
    """Raised when another process does not arrive at a collective in time.

    >>> issubclass(TimeoutError, RuntimeError)
    True
    """
