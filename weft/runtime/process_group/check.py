"""Do all processes make the same call? They tell each other before they make it, the first time or every time.

What they tell goes through the launcher's store and not through the collective itself, which a process that calls
something else would confuse.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache

from torch._C import _distributed_c10d as c10d

from ...errors import MismatchError
from . import watch, world
from .calls import Call
from .group import Processes
from .waiting import TURN, Patience

__all__ = ["check"]

_seen: set[tuple[Processes, str, str]] = set()
_counts: dict[Processes, int] = {}


def _forget(_: object) -> None:
    _seen.clear()
    _counts.clear()
    _store.cache_clear()


world.on_change(_forget)


@lru_cache(maxsize=1)
def _store() -> c10d.Store:
    store = c10d.PrefixStore("check", watch.cloned(world.store()))
    store.set_timeout(min(TURN, world.current().timeout))
    return store


def is_always_on() -> bool:
    """Whether every call is checked, not only the first of each kind."""
    return os.environ.get("WEFT_CHECK", "0") not in ("", "0")


def check(call: Call, processes: Processes) -> None:
    """Raises `MismatchError` if one of these processes makes another call."""
    if len(processes) == 1:
        return
    key = (processes, call.op, call.what)
    if key in _seen and not is_always_on():
        return
    _seen.add(key)
    count = _counts[processes] = _counts.get(processes, 0) + 1
    here = world.current()
    members = "_".join(map(str, processes))
    _store().set(f"{members}/{count}/{here.process}", json.dumps(call.to_json()))
    others = [process for process in processes if process != here.process]
    notes = _awaited([f"{members}/{count}/{process}" for process in others], processes)
    for process, note in zip(others, notes, strict=True):
        theirs = Call.from_json(json.loads(note))
        if theirs is not None and not theirs.is_like(call):
            raise _mismatch(call, here.process, theirs, process)
    if count > 2:  # all have told of the last call, so all have read about the one before it
        _store().delete_key(f"{members}/{count - 2}/{here.process}")


def _awaited(keys: list[str], processes: Processes) -> list[bytes]:
    """The notes under these keys, once they are there; waits in turns that a signal can interrupt."""
    patience = Patience(processes)
    while True:
        try:
            return _store().multi_get(keys)
        except RuntimeError as error:
            if patience.is_over or "timeout" not in str(error).lower():
                raise patience.lost() from None
            patience.take_turn()


def _mismatch(call: Call, here: int, other: Call, process: int) -> MismatchError:
    error = MismatchError(
        "processes make different calls:\n"
        f"  process {here}: {call}\n"
        f"  process {process}: {other}\n"
        "  Every process has to make the same calls in the same order."
    )
    watch.note_failure(f"it made another call than process {process}: {call}")
    return error
