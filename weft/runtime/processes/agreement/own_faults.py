"""`of_one_process`: what fails of that which only one process brings fails in all of them.

A shard, the rows of a batch, what runs on one device: each process has its own, so one alone may fail. The others would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ....errors import WeftError
from ...traced import is_traced
from .. import fork, world
from ..liveness import own_refusals
from ..transport.async_ops import settle

__all__ = ["of_one_process", "tell_others"]


@contextmanager
def of_one_process() -> Iterator[None]:
    """Surrounds what a process does with its own part: what is raised there, the others raise, too.

    >>> with of_one_process():
    ...     shards = [1, 2]
    """
    try:
        yield
    except Exception as error:
        tell_others(error)
        raise


def tell_others(error: Exception) -> None:
    """Tells the other processes, unless it is them who have told of it, or the error is about them."""
    here = world.joined()
    if here is None or here.count == 1 or here.is_fake or fork.is_child() or is_traced():
        return
    if isinstance(error, WeftError) or own_refusals.is_told(error):
        return
    with suppress(Exception):  # which whoever uses what was asked for hears of
        settle()  # the others still count on that
    own_refusals.tell(error)
