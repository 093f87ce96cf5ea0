"""What one process refuses of elements that only it has: the others raise the same where they next wait for it.

To agree on it first would cost every call an exchange. So who refuses something says so, and waits before its next call until
the others have refused it, too (`agreement.in_step`): those that look at the elements do so by themselves, the rest when they
wait for it in vain. A refusal is known by its number; processes that have counted as many are in step.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import torch

from .. import current_call, renewal, world
from ..group import Processes
from . import heartbeat

__all__ = ["are_in_step", "entered", "heard", "is_told", "left", "raise_heard", "settled", "tell"]

_OF_MATRICES: type[Exception] = vars(torch.linalg)["LinAlgError"]  # which torch does not tell type checkers of
_KINDS: Mapping[str, type[Exception]] = {
    "IndexError": IndexError,
    "ValueError": ValueError,
    _OF_MATRICES.__name__: _OF_MATRICES,
    "OutOfMemoryError": torch.OutOfMemoryError,
}
"""Kinds of errors that are raised elsewhere as they were; others are runtime errors."""
_TOLD = "_weft_is_told"
_KEPT = 16
"""Of how many refusals it is kept how often processes had begun anew."""
_LONGEST = 4096
"""Characters of an error that others are told."""
Notes = Mapping[int, Mapping[str, object]]
"""The last signs of some processes."""


class _Counted:
    """How many refusals this process has raised, its own and those of others."""

    refusals = 0
    is_met = True
    """Whether all others are known to have counted as many."""
    renewals: ClassVar[dict[int, int]] = {}
    """How often processes had begun anew at each of the last refusals. Bound: `_KEPT`. Cleared: when this process joins or leaves."""


_begun: Counter[Processes] = Counter()
"""How many calls were begun among some processes. Bound: the sets of processes that communicate. Cleared: on renewal."""
_under_way = threading.local()


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
        told = note.get("refusal")
        if isinstance(told, dict) and told["number"] > _Counted.refusals and not _has_come(told):
            renewal.renew(max(renewal.number(), _renewals(told, told["number"])) + 1)
            error = _KINDS.get(told["kind"], RuntimeError)(told["text"])
            error.add_note(f"process {told['by']} has refused it, at {told['site']}")
            _note(told["number"], error, told["site"], told["by"])
            error.__dict__[_TOLD] = True
            return error
    return None


def raise_heard(notes: Notes) -> None:
    """Raises what another process has refused, and this one has not."""
    error = heard(notes)
    if error is not None:
        raise error


def settled(notes: Notes) -> bool:
    """Whether all others have refused as much, or have gone; then this process is in step with them.

    Who has refused more is heard of when it is waited for: this process may come to that by itself.
    """
    there = [note for note in notes.values() if not (note.get("left") or note.get("failure"))]
    told = [each for each in (note.get("refusal") for note in there) if isinstance(each, dict)]
    if len(told) < len(there) or any(each["number"] < _Counted.refusals for each in told):
        return False
    renewal.renew(max([renewal.number(), *(_renewals(each, _Counted.refusals) for each in told)]))
    _Counted.is_met = True
    return True


def _renewals(told: Mapping[str, object], number: int) -> int:
    """How often a process had begun anew when it had refused so much."""
    known = told["renewals"]
    assert isinstance(known, dict)
    return max((count for at, count in known.items() if int(at) <= number), default=0)


def _has_come(told: Mapping[str, object]) -> bool:
    """Whether who refused something had come to the call that is under way here: then it does not wait for that one in vain."""
    call = getattr(_under_way, "call", None)
    begun = told["begun"]
    if call is None or not isinstance(begun, dict) or told["renewed"] != renewal.number():
        return False
    processes, number = call
    return bool(begun.get(_named(processes), 0) >= number)


def _note(number: int, error: Exception, site: str, by: int) -> None:
    signs = heartbeat.begin()
    _Counted.refusals, _Counted.is_met = number, signs is None
    _Counted.renewals[number] = renewal.number()
    if len(_Counted.renewals) > _KEPT:
        del _Counted.renewals[min(_Counted.renewals)]
    if signs is None:
        return
    signs.refusal = {
        "number": number,
        "renewals": dict(_Counted.renewals),
        "renewed": renewal.number(),
        "kind": type(error).__name__,
        "text": str(error)[:_LONGEST],
        "site": site,
        "by": by,
        "begun": {_named(processes): count for processes, count in _begun.items()},
    }
    signs.try_note()


def _named(processes: Processes) -> str:
    return "_".join(map(str, processes))


def _reset() -> None:
    _Counted.refusals, _Counted.is_met = 0, True
    _Counted.renewals.clear()


world.forget_on_change(_reset)
renewal.forget_on_renewal(_begun.clear)
