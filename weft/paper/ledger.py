"""`Ledger`: which memory a device holds from when to when, and what for."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import final

import torch

from ..devices import Device
from .lines import Line

__all__ = ["KINDS", "Allocation", "Ledger"]

KINDS = ("parameters", "gradients", "optimizer state", "inputs", "kept for backward", "movements", "working")
"""What memory is for, in the order in which it is shown."""


@final
@dataclass(slots=True, eq=False)
class Allocation:
    """Memory that one device holds for a while, from one moment of the ledger to another."""

    device: Device | None
    nbytes: int
    made: int
    op: str
    line: Line
    kind: str | None = None
    freed: int | None = None
    holders: int = 1
    """Storages that share it until they are written to."""


@final
class Ledger:
    """All memory of a program on paper: a storage is held from when it is first seen until torch lets go of it."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.now = 0
        """How many ops, allocations and releases there were."""
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], Allocation]] = {}

    def note(self, x: torch.Tensor, device: Device | None, op: str, line: Line, kind: str | None = None) -> Allocation:
        """The memory of a tensor, which begins now if it is new."""
        storage = x.untyped_storage()
        known = self._live.get(storage._cdata)
        if known is not None:
            return known[1]
        self.now += 1
        made = Allocation(device, storage.nbytes(), self.now, op, line, kind)
        self.allocations.append(made)
        self._hold(storage, made)
        return made

    def device_of(self, x: torch.Tensor, default: Device | None) -> Device | None:
        """The device whose memory a tensor has."""
        known = self._live.get(x.untyped_storage()._cdata)
        return default if known is None else known[1].device

    def share(self, x: torch.Tensor, of: torch.Tensor) -> None:
        """Notes that a tensor has the memory of another until one of both is written to."""
        known = self._live.get(of.untyped_storage()._cdata)
        storage = x.untyped_storage()
        if known is not None and storage._cdata not in self._live:
            known[1].holders += 1
            self._hold(storage, known[1])

    def part(self, x: torch.Tensor, op: str, line: Line) -> None:
        """Notes a write to a tensor: it gets memory of its own."""
        storage = x.untyped_storage()
        known = self._live.get(storage._cdata)
        if known is None or known[1].holders == 1:
            return
        old = known[1]
        old.holders -= 1
        self.now += 1
        made = Allocation(old.device, old.nbytes, self.now, op, line, old.kind)
        self.allocations.append(made)
        self._live[storage._cdata] = (known[0], made)

    def resize(self, x: torch.Tensor, device: Device | None, line: Line) -> None:
        """Notes that the memory of a tensor is given back, or is there anew."""
        storage = x.untyped_storage()
        known = self._live.get(storage._cdata)
        if known is None or known[1].nbytes == storage.nbytes():
            return
        self.now += 1
        if known[1].freed is None:
            known[1].freed = self.now
        made = Allocation(device, storage.nbytes(), self.now, "a block", line, "movements")
        self.allocations.append(made)
        self._live[storage._cdata] = (known[0], made)

    def mark(self, x: torch.Tensor, kind: str) -> None:
        """Says what the memory of a tensor is for."""
        known = self._live.get(x.untyped_storage()._cdata)
        if known is not None:
            known[1].kind = kind

    def live(self) -> list[Allocation]:
        """What is held now."""
        return [made for _, made in self._live.values()]

    def _hold(self, storage: torch.UntypedStorage, made: Allocation) -> None:
        key = storage._cdata
        self._live[key] = (weakref.ref(storage, lambda _: self._let_go(key)), made)

    def _let_go(self, key: int) -> None:
        found = self._live.pop(key, None)
        if found is not None:
            found[1].holders -= 1
            if not found[1].holders:
                self.now += 1
                found[1].freed = self.now
