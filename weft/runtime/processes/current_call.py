"""`CollectiveCall`: what a process is doing when it communicates, in words that another process understands."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch

from ...caches import cached
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh

__all__ = [
    "SAME_CALLS",
    "CollectiveCall",
    "at",
    "call_between",
    "current",
    "fingerprint",
    "finished",
    "last",
    "set_call_site",
    "site",
    "started",
]

SAME_CALLS = (
    "Every process has to make the same calls in the same order. To read a value (item(), full_tensor()) and to save are such calls, too: "
    "take them out of what some processes do alone, as in `if weft.on_main():`"
)
"""What errors say of processes that do not."""


@final
@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One call that communicates: the op, what it moves and between which layouts, and where the user called it."""

    op: str
    what: str
    site: str = "an unknown line"

    def __str__(self) -> str:
        return f"{self.op} of {self.what}, called at {self.site}"

    def to_json(self) -> dict[str, str]:
        """The call in words that JSON has."""
        return {"op": self.op, "what": self.what, "site": self.site}

    @classmethod
    def from_json(cls, words: object) -> CollectiveCall | None:
        """The call that another process wrote down; None if it is none."""
        if not isinstance(words, dict):
            return None
        op, what, site = (words.get(name) for name in ("op", "what", "site"))
        if isinstance(op, str) and isinstance(what, str) and isinstance(site, str):
            return cls(op, what, site)
        return None

    @property
    def fingerprint(self) -> int:
        """What tells this kind of call from others in 8 bytes, the same in every process."""
        return _fingerprint(self.op, self.what)

    def is_like(self, other: CollectiveCall) -> bool:
        """Whether two processes do the same."""
        return (self.op, self.what) == (other.op, other.what)


@cached(8192)
def _fingerprint(op: str, what: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{op} {what}".encode(), digest_size=8).digest(), "little")


@cached(8192)
def call_between(op: str, source: Layout, target: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> CollectiveCall:
    """The call that moves a tensor from a layout to another."""
    name = str(dtype).removeprefix("torch.")
    sizes = ", ".join(map(str, shape))
    if source.mesh == target.mesh:
        return CollectiveCall(op, f"{name}[{sizes}] from {source} to {target} on {_named(source.mesh)}")
    return CollectiveCall(
        op, f"{name}[{sizes}] from {source} on {_named(source.mesh)} to {target} on {_named(target.mesh)}"
    )


def _named(mesh: DeviceMesh) -> str:
    """A mesh with its devices, a line of which is named by its ends."""
    devices = mesh.devices
    ids = [device.id for device in devices]
    if ids == list(range(ids[0], ids[0] + len(ids))) and len(ids) > 2:
        return f"{mesh} ({devices[0]} to {devices[-1]})"
    return f"{mesh} ({', '.join(map(str, devices))})"


_site: Callable[[], object] = lambda: "an unknown line"  # noqa: E731 - until the layer that knows replaces it
_under_way: dict[int, tuple[CollectiveCall, object]] = {}
"""By thread, what it does and where that was called: put into words only when they are needed. While one thread makes a call
of all processes, another may wait for mail. Bound: the threads that communicate. Cleared: each call when it is done."""
_last: tuple[CollectiveCall, object] | None = None


def set_call_site(site: Callable[[], object]) -> None:
    """Lets the layer that knows the user's code say where a call comes from; what it gives says so as a text."""
    global _site  # noqa: PLW0603 - the one place that replaces it
    _site = site


class _WorkedFor(threading.local):
    site: object = None


_elsewhere = _WorkedFor()


def site() -> object:
    """Where in the user's program this thread is, or what it works for was called."""
    return _elsewhere.site or _site()


@contextmanager
def at(site: object) -> Iterator[None]:
    """Says that this thread works for a call that was made elsewhere."""
    _elsewhere.site = site
    try:
        yield
    finally:
        _elsewhere.site = None


def started(call: CollectiveCall) -> None:
    """Notes that this thread begins a call."""
    _under_way[threading.get_ident()] = call, site()


def finished() -> None:
    """Notes that the call is done."""
    global _last  # noqa: PLW0603 - what this process did last is one thing
    _last = _under_way.pop(threading.get_ident(), _last)


def current() -> CollectiveCall | None:
    """What this thread communicates now, or else, whoever asks, what another one does."""
    mine = _under_way.get(threading.get_ident())
    return _said(mine if mine is not None else next(iter(list(_under_way.values())), None))


def fingerprint(number: int) -> int:
    """What tells one exchange of the call under way from all others, in 8 bytes; the same in every process."""
    mine = _under_way.get(threading.get_ident())
    kind = 0 if mine is None else mine[0].fingerprint
    mixed = (kind ^ number * 0x9E3779B97F4A7C15) & (1 << 64) - 1
    return mixed - (1 << 64) if mixed >> 63 else mixed


def last() -> CollectiveCall | None:
    """What this process communicated last."""
    return _said(_last)


def _said(noted: tuple[CollectiveCall, object] | None) -> CollectiveCall | None:
    return None if noted is None else CollectiveCall(noted[0].op, noted[0].what, str(noted[1]))
