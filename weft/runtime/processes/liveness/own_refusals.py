"""What one process refuses of elements that only it has: the others raise the same where they next wait for it.

To agree on it first would cost every call an exchange. So who refuses something says so, and waits before its next call until
the others have refused it, too (`agreement.in_step`): those that look at the elements do so by themselves, the rest when they
wait for it in vain. A refusal is known by its number; processes that have counted as many are in step.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import ClassVar, TypedDict, cast

import torch

from ....errors import MismatchError
from .. import current_call, renewal, world
from ..group import Processes
from . import heartbeat

__all__ = ["are_in_step", "entered", "has_left_before", "heard", "is_told", "left", "raise_heard", "settled", "tell"]

_OF_MATRICES: type[Exception] = vars(torch.linalg)["LinAlgError"]  # which torch does not tell type checkers of
_KINDS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        AssertionError,
        AttributeError,
        FileNotFoundError,
        IndexError,
        MismatchError,
        NotImplementedError,
        OSError,
        PermissionError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        _OF_MATRICES,
        torch.OutOfMemoryError,
    )
}
"""Kinds of errors that are raised elsewhere as they were; others are runtime errors."""
_TOLD = "_weft_is_told"
_KEPT = 8
"""Of how many refusals others are told that have not heard of them: who waits for a process hears of one after another."""
_LONGEST = 2048
"""Characters of an error that others are told."""
Notes = Mapping[int, Mapping[str, object]]
"""The last signs of some processes."""


class CallsBegun(TypedDict):
    """Which calls a process had begun, in words that JSON has."""

    renewals: int
    """How often the processes had begun anew."""
    begun: dict[str, int]
    """How many calls had been begun among some processes."""


class Refusal(CallsBegun):
    """A refusal, in words that JSON has."""

    number: int
    kind: str
    text: str
    site: str
    by: int


class _Counted:
    """How many refusals this process has raised, its own and those of others."""

    refusals = 0
    is_met = True
    """Whether all others are known to have counted as many."""
    last: ClassVar[deque[Refusal]] = deque(maxlen=_KEPT)
    """The last of them, as others are told. Bound: `_KEPT`. Cleared: when this process joins or leaves."""


_begun: Counter[Processes] = Counter()
"""How many calls were begun among some processes. Bound: the sets of processes that communicate. Cleared: on renewal."""


class _CallUnderWay(threading.local):
    call: tuple[Processes, int] | None = None


_under_way = _CallUnderWay()


def entered(processes: Processes) -> None:
    """Notes that this thread begins a call among some processes."""
    _begun[processes] = here = _begun[processes] + 1
    _under_way.call = processes, here


def left() -> None:
    """Notes that the call is over."""
    _under_way.call = None


def are_in_step() -> bool:
    """Whether this process has refused nothing since it last met the others."""
    return _Counted.is_met


def is_told(error: BaseException) -> bool:
    """Whether others have been told of an error, or have told it."""
    return _TOLD in error.__dict__


def tell(error: Exception) -> None:
    """Says to the others that this process refuses something."""
    _note(_Counted.refusals + 1, error, str(current_call.site()), world.current().process)
    error.__dict__[_TOLD] = True


def heard(notes: Notes) -> Exception | None:
    """What another process has refused, and this one has not, as it is raised here; None where that may still come by itself."""
    for note in notes.values():
        told = next((each for each in _refusals(note) if each["number"] > _Counted.refusals), None)
        if told is not None and not _has_come(told["renewals"], told["begun"]):
            renewal.renew(max(renewal.number(), told["renewals"]) + 1)
            error = _KINDS.get(told["kind"], RuntimeError)(told["text"])
            error.add_note(f"process {told['by']} has refused it, at {told['site']}")
            _note(told["number"], error, told["site"], told["by"])
            error.__dict__[_TOLD] = True
            return error
    return None


def _refusals(note: Mapping[str, object]) -> list[Refusal]:
    """What a process has refused last, as it says in its sign of life."""
    told = note.get("refusals")
    return cast(list[Refusal], told) if isinstance(told, list) else []


def raise_heard(notes: Notes) -> None:
    """Raises what another process has refused, and this one has not."""
    error = heard(notes)
    try:
        if error is not None:
            raise error from None
    finally:
        del error  # else it would hold itself, and by its traceback the connections of before


def settled(notes: Notes) -> bool:
    """Whether all others have refused as much, or have gone; then this process is in step with them.

    Who has refused more is heard of when it is waited for: this process may come to that by itself.
    """
    mine = _Counted.refusals
    there = [_refusals(note) for note in notes.values() if not note.get("left")]
    if any(not told or told[-1]["number"] < mine for told in there):
        return False
    renewal.renew(
        max([renewal.number(), *(each["renewals"] for told in there for each in told if each["number"] <= mine)])
    )
    _Counted.is_met = True
    return True


def has_left_before(notes: Notes) -> bool:
    """Whether another process has left that had not come to the call under way here, and never will."""
    if _under_way.call is None:
        return False
    told = [note.get("begun") for note in notes.values() if note.get("left")]
    return any(
        isinstance(each, dict) and each["renewals"] == renewal.number() and not _has_come(**each) for each in told
    )


def _has_come(renewals: int, begun: Mapping[str, int]) -> bool:
    """Whether who refused something, or left, had come to the call that is under way here: then that is not waited for in vain."""
    call = _under_way.call
    if call is None or renewals != renewal.number():
        return False
    processes, number = call
    return begun.get(_named(processes), 0) >= number


def _note(number: int, error: Exception, site: str, by: int) -> None:
    signs = heartbeat.begin()
    _Counted.refusals, _Counted.is_met = number, signs is None
    if signs is None:
        return
    text = str(error)[:_LONGEST]
    told = Refusal(number=number, kind=type(error).__name__, text=text, site=site, by=by, **_begun_here())
    _Counted.last.append(told)
    signs.refusals = list(_Counted.last)
    signs.try_note()


def _begun_here() -> CallsBegun:
    return CallsBegun(
        renewals=renewal.number(), begun={_named(processes): count for processes, count in _begun.items()}
    )


def _leaving(_: world.Leaving) -> None:
    """Says which calls this process has come to, with its farewell."""
    signs = heartbeat.begun()
    if signs is not None:
        signs.begun = _begun_here()


def _named(processes: Processes) -> str:
    return "_".join(map(str, processes))


def _reset() -> None:
    _Counted.refusals, _Counted.is_met = 0, True
    _Counted.last.clear()


world.on_leave(_leaving)  # before the farewell: what was registered last leaves first
world.forget_on_change(_reset)
renewal.forget_on_renewal(_begun.clear)
