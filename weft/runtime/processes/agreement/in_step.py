"""`meet_if_apart`: who has refused something waits for the others to refuse it, too, before the next call."""

from __future__ import annotations

import time

from .. import world
from ..liveness import heartbeat, own_refusals
from ..liveness.waiting import Patience

__all__ = ["meet_if_apart"]

_FIRST_PAUSE, _LAST_PAUSE = 0.0005, 0.02
"""Seconds between looks at the signs of others: they mostly refuse the same at once, or wait for this process."""


def meet_if_apart() -> None:
    """Waits until all processes have refused what this one has.

    >>> meet_if_apart()
    """
    if own_refusals.are_in_step():
        return
    here, signs = world.current(), heartbeat.begin()
    others = [process for process in range(here.count) if process != here.process]
    patience, pause = Patience(tuple(range(here.count))), _FIRST_PAUSE
    while signs is not None and not own_refusals.settled(signs.notes(others)):
        if patience.is_over:
            raise patience.lost()
        time.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)
