"""What a launcher such as torchrun says in the environment: that there are other processes, and which of them this is."""

from __future__ import annotations

import os

__all__ = ["devices_per_process", "has_place", "is_launched", "note_joined", "number"]

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
JOINED = "WEFT_JOINED"
"""Which process has taken the place that the other variables name. Those that it starts inherit them, and are none."""


def has_place() -> bool:
    """Whether a launcher has given this process, or one that has started it, a place among others.

    >>> has_place()
    False
    """
    # Asked by every movement of a process that is alone, so the usual answer comes first.
    if "WORLD_SIZE" not in os.environ or not all(name in os.environ for name in VARIABLES):
        return False
    return number("WORLD_SIZE") > 1


def is_launched() -> bool:
    """Whether a launcher has started this process together with others.

    >>> is_launched()
    False
    """
    if not has_place():
        return False
    who, _, place = os.environ.get(JOINED, "").partition(" ")
    return place != _place() or who == str(os.getpid())


def note_joined(process_id: int) -> None:
    """Notes which process has the place that the launcher gave to this one, for those that it starts."""
    if is_launched():
        os.environ[JOINED] = f"{process_id} {_place()}"


def _place() -> str:
    return " ".join(os.environ[name] for name in VARIABLES)


def number(name: str) -> int:
    """A variable of the launcher."""
    text = os.environ[name]
    if not text.isdecimal():
        raise ValueError(f"{name} is a whole number that a launcher sets, but it is {text!r}")
    return int(text)


def devices_per_process(count: int | None) -> int:
    """How many devices each process owns: what is asked for, or what the environment says."""
    if count is None:
        text = os.environ.get("WEFT_DEVICES_PER_PROCESS", "1")
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"WEFT_DEVICES_PER_PROCESS is a whole number, 1 or more, but it is {text!r}")
        return int(text)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"devices_per_process is a whole number, 1 or more, but got {count!r}")
    return count
