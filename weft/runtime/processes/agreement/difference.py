"""What processes are told that make different calls: all sides, in words."""

from __future__ import annotations

import json

from ....errors import MismatchError
from .. import current_call
from ..current_call import CollectiveCall
from ..group import Group
from ..liveness import own_refusals
from .notes import notes_about

__all__ = ["different_calls", "out_of_step"]


def different_calls(mine: CollectiveCall, here: int, other: CollectiveCall, process: int) -> MismatchError:
    """The error for this process and another that makes another call; tells the rest, too."""
    return _told(
        "processes make different calls:\n"
        f"  process {here}: {mine}\n"
        f"  process {process}: {other}\n"
        f"  {current_call.SAME_CALLS}."
    )


def out_of_step(group: Group, number: int) -> MismatchError:
    """The error for processes whose messages do not belong together. All of them have seen it, so all say what they do."""
    here, mine = group.processes[group.index], current_call.current()
    assert mine is not None
    notes = notes_about("difference", group.processes).exchanged(json.dumps({**mine.to_json(), "number": number}))
    lines = [f"  process {here}: {mine} (exchange {number} among them)"]
    for process, note in notes.items():
        words = json.loads(note)
        other = CollectiveCall.from_json(words)
        if other is not None and not other.is_like(mine):
            return different_calls(mine, here, other, process)
        lines.append(f"  process {process}: {other} (exchange {words['number']} among them)")
    return _told(
        "processes are out of step:\n"
        + "\n".join(lines)
        + f"\n  {current_call.SAME_CALLS}. WEFT_CHECK=1 checks each of them."
    )


def _told(text: str) -> MismatchError:
    """The error that all of these processes raise, and those that wait for one of them: who catches it is in step with the others."""
    error = MismatchError(text)
    own_refusals.tell(error)
    return error
