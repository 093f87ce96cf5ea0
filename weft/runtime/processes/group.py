"""`Group`: some of the processes, which communicate with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast, final

from torch._C import _distributed_c10d as c10d

from . import fork, renewal, world
from .transport.reading import Neighbours
from .transport.small_messages import SmallMessages

__all__ = ["Group", "Processes", "group_if_shared", "group_of"]

Processes = tuple[int, ...]
"""Some processes, in order."""


@final
class Group:
    """Some of the processes, this one among them, and the backends through which they communicate.

    Torch's own `new_group` has to be called by every process, or names a group by how many this process has made
    before; these groups are named by their members alone, so that only they take part in making one. Groups for a
    purpose of their own have connections of their own: what they send waits for nothing else.
    """

    def __init__(self, processes: Processes, here: world.World, purpose: str = "") -> None:
        if here.process not in processes:
            raise ValueError(f"process {here.process} is not among the processes {processes}")
        self.processes = processes
        self.index = processes.index(here.process)
        """The index of this process among them."""
        self.elsewhere = frozenset(i for i, process in enumerate(processes) if not here.is_near(process))
        """The indices of those that are on other hosts."""
        self._world, self.purpose = here, purpose
        self.is_fake = here.is_fake
        """Whether the others are only said to be there."""
        self._streamed = {kind for kind, name in here.backends if name == "nccl"}
        self._backends: dict[str, c10d.ProcessGroup] = {}
        self._number = 0
        self._under_way: list[Callable[[], bool]] = []
        self.small_messages: SmallMessages | None = None
        """Memory for small messages, unless it is in use or was never needed."""
        self.neighbours: Neighbours | None = None
        """Who can read whose memory, once they have tried."""

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self.processes)

    def next_number(self) -> int:
        """The number of the next exchange, the same in all processes that have made the same calls."""
        self._number = (self._number + 1) & 0x7FFFFFFF
        return self._number

    def known_backend(self, device_type: str) -> c10d.ProcessGroup | None:
        """What carries tensors on this kind of torch device, if it has been made."""
        return self._backends.get(device_type)

    def backend(self, device_type: str) -> c10d.ProcessGroup:
        """What carries tensors on this kind of torch device, made when it is first needed."""
        known = self._backends.get(device_type)
        if known is None:
            known = self._backends[device_type] = self._made(device_type)
        return known

    def _made(self, device_type: str) -> c10d.ProcessGroup:
        name = self._world.backend(device_type)
        members = "_".join(map(str, self.processes)) + self.purpose
        store = c10d.PrefixStore(f"{name}/{members}", renewal.store_of_calls())
        # The backends have a group's methods, whatever torch's type stubs say.
        if name == "gloo":
            gloo = c10d.ProcessGroupGloo(store, self.index, self.size, self._world.timeout)
            return cast(c10d.ProcessGroup, gloo)
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = self._world.timeout
        return cast(c10d.ProcessGroup, c10d.ProcessGroupNCCL(store, self.index, self.size, options))

    def is_streamed(self, device_type: str) -> bool:
        """Whether waiting only lets the device wait, and this process goes on."""
        return device_type in self._streamed

    def close(self) -> None:
        """Ends what carries tensors between accelerators, which would complain at the end of the program."""
        for kind in self._streamed & self._backends.keys():
            self._backends.pop(kind).shutdown()

    def abandon(self, is_over: Callable[[], bool] = lambda: True) -> None:
        """Gives up on what is under way. The backends would wait for it when they go, so they stay until `is_over()`."""
        if not self._under_way:
            fork.keep(self)
            _abandoned.append(self)
        self._under_way.append(is_over)

    def is_let_go(self) -> bool:
        """Lets go of backends that were abandoned, where all is over: it is soon, once the others have let go of theirs.

        Those of accelerators stay: what they still do is not known here.
        """
        if self._streamed & self._backends.keys() or not all(is_over() for is_over in self._under_way):
            return False
        fork.release(self)
        return True


_groups: dict[tuple[Processes, str], Group] = {}
"""Bound: the sets of processes that communicate, which meshes decide, and the few purposes. Cleared: when this process joins
or leaves, and when all begin anew."""
_abandoned: list[Group] = []
"""Bound: those by which something is under way that some process has not given up on, which ends with its connections, and the
last. Cleared: of those that are over, when all begin anew; in a child that is forked."""


def group_of(processes: Processes, purpose: str = "") -> Group:
    """The group of these processes, made when it is first needed and used from then on."""
    group = _groups.get((processes, purpose))
    if group is None:  # `setdefault`: another thread may have made it meanwhile
        group = _groups.setdefault((processes, purpose), Group(processes, world.current(), purpose))
    return group


def group_if_shared(processes: Processes) -> Group | None:
    """The group of these processes, unless this one is alone."""
    return group_of(processes) if len(processes) > 1 else None


def _left(last: world.Leaving) -> None:
    if not last.failed:
        for group in _groups.values():
            group.close()


def _forget() -> None:
    _abandoned[:] = [group for group in _abandoned if not group.is_let_go()]
    for group in _groups.values():
        if group.purpose:  # by which messages may be under way at any time
            group.abandon()
    _groups.clear()


def _forked() -> None:
    fork.keep(*_groups.values())
    _abandoned.clear()


world.on_leave(_left)
fork.on_fork(_forked)
renewal.forget_on_renewal(_forget)
