"""What the makers of schedules are asked for: numbers from 1 on."""

from __future__ import annotations

__all__ = ["check_counts"]


def check_counts(schedule: str, **counts: int) -> None:
    """Raises for a number of stages, places, chunks or microbatches that is none.

    >>> check_counts("gpipe", stages=0)
    Traceback (most recent call last):
    ValueError: gpipe takes a whole number of stages from 1 on, but got 0
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{schedule} takes a whole number of {name} from 1 on, but got {count!r}")
