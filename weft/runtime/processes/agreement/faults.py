"""Do some processes find a fault in what only they have? Under `WEFT_CHECK=1` all of them learn of it at once."""

from __future__ import annotations

from .. import world
from ..group import Processes
from .notes import notes_about
from .same_call import is_always_on

__all__ = ["agreed_fault", "fault_of_any", "faults_of_all"]


def agreed_fault(mine: str, processes: Processes) -> str:
    """What the first of these processes finds wrong, "" where none does; this process's own, where calls are not checked.

    >>> agreed_fault("index 9 is out of bounds", (0,))
    'index 9 is out of bounds'
    """
    return fault_of_any(mine, processes) if is_always_on() else mine


def fault_of_any(mine: str, processes: Processes) -> str:
    """The same, whether or not calls are checked.

    >>> fault_of_any("", (0,))
    ''
    """
    return next(filter(None, faults_of_all(mine, processes)), "")


def faults_of_all(mine: str, processes: Processes) -> list[str]:
    """What each of these processes finds wrong, in their order.

    >>> faults_of_all("matrix 3 is singular", (0,))
    ['matrix 3 is singular']
    """
    if len(processes) == 1 or world.current().is_fake:
        return [mine]
    told = {process: note.decode() for process, note in notes_about("fault", processes).exchanged(mine).items()}
    told[world.current().process] = mine
    return [told[process] for process in sorted(told)]
