"""Notices: what one process writes down once, and others read when they need it. As JSON; nothing is ever unpickled."""

from __future__ import annotations

import json

from torch._C import _distributed_c10d as c10d

from ....caches import cached
from .. import world
from ..store_client import ask, own_connection
from .awaiting import awaited

__all__ = ["notice", "noticed", "write_notice"]


@cached(1, cleared_by=world.forget_on_change)
def _store() -> c10d.Store:
    return c10d.PrefixStore("notices", own_connection(world.store()))


def write_notice(name: str, value: object) -> None:
    """Writes down what JSON has words for, under a name that nothing was written under before."""
    _store().set(name, json.dumps(value))


def notice(name: str, writer: int) -> object:
    """What a process has written down under a name; waits for it."""
    (found,) = awaited(_store(), [name], (writer,))
    return json.loads(found)


def noticed(name: str) -> list[object]:
    """What has been written down under a name, as a list of one; an empty one if nothing has, or nobody can say."""
    try:
        return [json.loads(_store().get(name))] if ask(lambda: _store().check([name])) else []
    except (RuntimeError, ValueError):  # whoever keeps the store has gone, or torch has left it
        return []
