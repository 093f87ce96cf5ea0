"""Do all processes make the same call? Messages say which call they belong to; where they come too late, this does.

Small messages begin with the fingerprint of their call, so calls that begin with such an exchange among all their
processes are compared by it, each of them and for nothing. Before others the processes meet: an exchange of fingerprints
alone, for the first call of each kind, or one of words in the store, for every call (`WEFT_CHECK=1`).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable

import torch

from ....errors import MismatchError
from .. import current_call, renewal, world
from ..current_call import CollectiveCall
from ..group import Processes, group_of
from ..transport.exchange import swap
from .difference import different_calls
from .notes import notes_about

__all__ = ["check", "compare", "is_always_on", "is_off"]

MOST_KINDS = 256
"""How many kinds of one op are compared: a program whose sizes never repeat does not wait at each of them for ever."""
MOST_MEETING = 16
"""How many processes meet by messages; more would open a connection between any two of them for this alone."""

_kinds: dict[tuple[Processes, str], set[int]] = {}
"""Bound: `MOST_KINDS` fingerprints for each op and set of processes. Cleared: when this process joins or leaves."""
renewal.forget_on_renewal(_kinds.clear)


def is_always_on() -> bool:
    """Whether every call is checked, not only the first of each kind."""
    return os.environ.get("WEFT_CHECK", "0") not in ("", "0", "off")


def is_off() -> bool:
    """Whether no call is checked."""
    return os.environ.get("WEFT_CHECK") == "off"


def check(call: CollectiveCall, processes: Processes, *, is_compared: bool = False) -> None:
    """Raises `MismatchError` if one of these processes makes another call.

    `is_compared`: the call begins with messages between all of them that say which call they belong to.
    """
    if len(processes) == 1 or is_off() or world.current().is_fake:
        return
    if is_always_on():
        compare(current_call.current() or call, processes)
        return
    # Where calls are compared by messages, all are: one that waits in the store would not meet one that has sent some.
    by_messages = len(processes) <= MOST_MEETING and world.current().backend("cpu") is not None
    if (by_messages and is_compared) or not _is_new(call, processes):
        return
    if by_messages:
        swap(group_of(processes), {}, {}, torch.device("cpu"), limit=0)
    else:
        compare(current_call.current() or call, processes)


Difference = Callable[[CollectiveCall, int, CollectiveCall, int], MismatchError]
"""The error for two processes that differ: the call of this one, its index, and those of the other."""


def compare(call: CollectiveCall, processes: Processes, value: str = "", differs: Difference = different_calls) -> None:
    """Raises if one of these processes makes another call, or (`differs`) the same with another value."""
    here = world.current().process
    notes = notes_about("call", processes).exchanged(json.dumps({**call.to_json(), "value": value}))
    for process, note in notes.items():
        words = json.loads(note)
        theirs = CollectiveCall.from_json(words)
        if theirs is not None and not theirs.is_like(call):
            raise different_calls(call, here, theirs, process)
        if theirs is not None and words["value"] != value:
            raise differs(call, here, theirs, process)
        if theirs is not None and theirs.site != call.site and is_always_on():
            _warn_of_lines(call, here, theirs, process)


def _warn_of_lines(mine: CollectiveCall, here: int, other: CollectiveCall, process: int) -> None:
    """Calls that are alike are taken for one, from wherever they come, and what one process had left out is not missed."""
    warnings.warn(
        "processes make the same call from different lines:\n"
        f"  process {here}: {mine}\n"
        f"  process {process}: {other}\n"
        "  Where one of them has left a call out, or made one more, they take each other's values for those of another call: "
        "let all processes make it in one line.",
        UserWarning,
        stacklevel=2,
    )


def _is_new(call: CollectiveCall, processes: Processes) -> bool:
    """Whether this kind of call has not been made before; of ops with very many kinds, none is after some time."""
    known = _kinds.setdefault((processes, call.op.partition(" ")[0]), set())
    if call.fingerprint in known or len(known) >= MOST_KINDS:
        return False
    known.add(call.fingerprint)
    return True
