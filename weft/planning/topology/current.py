"""The topology of this program: what the user says, what was found at start, or what this machine's file and environment say."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import final

from .keeping import said_topology
from .topology import Topology

__all__ = ["as_topology", "current_topology", "find_topology_by", "on_topology_change", "use_topology"]

Finder = Callable[[], Topology | None]


@final
class _KnownMachine:
    """What is known of the machine that this program runs on."""

    def __init__(self) -> None:
        self.given: Topology | None = None
        self.known: Topology | None = None
        self.find: Finder = lambda: None
        self.listeners: list[Callable[[], None]] = []

    def forget(self) -> None:
        """Looks again, when somebody asks."""
        self.known = None


_machine = _KnownMachine()


def current_topology() -> Topology:
    """The topology that plans, ops and prices go by: what `use_topology` was given, else what was found.

    >>> current_topology().devices_per_host is None
    True
    """
    known = _machine.known
    if known is None:
        known = _machine.known = _machine.given or _machine.find() or said_topology() or Topology()
    return known


@final
class use_topology:  # noqa: N801 - called like a function, and usable with `with`
    """Says on which machine this program runs: a `Topology`, a preset, a file of `weft bench --links`, or None for what is
    found; for good, or inside a `with` block. All processes have to say the same.

    >>> with use_topology("h100"):
    ...     current_topology().devices_per_host
    8
    """

    def __init__(self, topology: Topology | str | os.PathLike[str] | None) -> None:
        said = as_topology(topology)
        self._before = _machine.given
        _give(said)

    def __enter__(self) -> Topology:
        return current_topology()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _give(self._before)


def as_topology(said: Topology | str | os.PathLike[str] | None) -> Topology | None:
    """A topology that may be said by its name or file; None for what is found.

    >>> as_topology("a100").devices_per_host
    8
    """
    if said is not None and not isinstance(said, (Topology, str, os.PathLike)):
        raise TypeError(f"a topology is a Topology, the name of one or a file, but got {said!r}")
    return said if said is None or isinstance(said, Topology) else said_topology(os.fspath(said))


def _give(topology: Topology | None) -> None:
    if topology == _machine.given:
        return
    _machine.given = topology
    _machine.forget()
    for tell in _machine.listeners:
        tell()


def find_topology_by(finder: Finder) -> Callable[[], None]:
    """Registers what finds the topology of running processes; gives what is to be called when it may have changed."""
    _machine.find = finder
    _machine.forget()
    return _machine.forget


def on_topology_change(listener: Callable[[], None]) -> None:
    """Registers what has to be forgotten when the user says another topology."""
    _machine.listeners.append(listener)
