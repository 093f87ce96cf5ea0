"""`Collection`: how a process brings the contributions to what it reduces together, and passes results on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

import torch

from ....planning.boxes.transfers import Transfer
from ....planning.owners import Owners
from ....sharding.geometry import Box, box_shape, has_elements, volume
from ....sharding.layout import Layout
from ....sharding.mesh import Slot
from ...holding import holding
from ...machine import residence
from .. import world
from ..group import Processes
from ..transport.messages import MessageList, Messages, StoredBox, part, whole_part
from .occupancy import occupancy, order_of, slots_of, stored_part

__all__ = ["ArrivingStretch", "Bundle", "Collection", "ReducedBox", "collection"]

Bundle = tuple[StoredBox, ...]
"""Contributions of one process to one box, which it reduces before it sends them."""

_Key = tuple[Slot, Box, int]
"""What both ends know a bundle by: the owner, the box, and which contribution where each travels by itself."""


@final
@dataclass(frozen=True, slots=True)
class ArrivingStretch:
    """A stretch of what arrives from the others."""

    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True)
class ReducedBox:
    """One box that this process reduces, from bundles of its own and others that arrive, in order of contribution."""

    shape: tuple[int, ...]
    device: torch.device
    parts: tuple[Bundle | ArrivingStretch, ...]
    into: StoredBox | None
    """The stretch of a new piece that the result is, where it is one."""


@final
@dataclass(frozen=True, slots=True)
class Collection:
    """How this process brings contributions together, and passes results on."""

    results: tuple[ReducedBox, ...]
    sends: tuple[tuple[int, tuple[Bundle, ...]], ...]
    """To which process of the group."""
    receives: tuple[tuple[int, ArrivingStretch], ...]
    """From which process of the group; what one sends arrives in one stretch."""
    arriving: int
    """How many elements arrive."""
    spread: Messages | None
    """From results to new pieces; None where the results are the new pieces."""


@dataclass(frozen=True, slots=True)
class _Contribution:
    """What one process gives to one box: stored here, or arriving."""

    process: int
    key: _Key
    parts: list[StoredBox]


def collection(owners: Owners, processes: Processes) -> Collection:
    """How this process brings contributions together. What it holds anywhere does not travel to it."""
    here = world.current().process
    leaving = _leaving(owners, here)
    boxes = list(_boxes(owners, here))
    sizes: dict[tuple[int, _Key], int] = {
        (each.process, each.key): volume(where)
        for _, where, contributions in boxes
        for each in contributions
        if each.process != here
    }
    arrivals: dict[tuple[int, _Key], ArrivingStretch] = {}
    at = 0
    for process, key in sorted(sizes):
        arrivals[process, key] = ArrivingStretch(at, at + sizes[process, key])
        at += sizes[process, key]
    devices = residence(owners.step.target.mesh).torch_devices
    results = tuple(
        ReducedBox(
            box_shape(where),
            devices[slot],
            tuple(tuple(each.parts) if each.process == here else arrivals[each.process, each.key] for each in all_),
            _part_of(owners, owners.step.target, slot, where) if owners.flat else None,
        )
        for slot, where, all_ in boxes
    )
    return Collection(
        results,
        tuple(
            (index, tuple(tuple(parts) for _, parts in sorted(leaving[process].items())))
            for index, process in enumerate(processes)
            if process in leaving
        ),
        _stretches(arrivals, processes),
        at,
        _spread(owners, [(slot, where) for slot, where, _ in boxes], processes, here) if owners.spreads else None,
    )


def _stretches(
    arrivals: dict[tuple[int, _Key], ArrivingStretch], processes: Processes
) -> tuple[tuple[int, ArrivingStretch], ...]:
    """Where in what arrives each process's part lies."""
    found: dict[int, ArrivingStretch] = {}
    for (process, _), each in arrivals.items():  # process by process, one after another
        start = found[process].start if process in found else each.start
        found[process] = ArrivingStretch(start, each.stop)
    return tuple((processes.index(process), each) for process, each in found.items() if each.stop > each.start)


def _leaving(owners: Owners, here: int) -> dict[int, dict[_Key, list[StoredBox]]]:
    """The bundles that this process sends to each other one."""
    source = owners.step.source
    process_of = residence(source.mesh).owners
    found: dict[int, dict[_Key, list[StoredBox]]] = {}
    for slot in slots_of(source.mesh).get(here, ()):
        for transfer in owners.contributes(slot):
            to = process_of[transfer.target_slot]
            if to == here or not _works(owners, transfer.target_slot, to) or not has_elements(transfer.box):
                continue
            if occupancy(source, to).same_shard(slot) is None:
                key = transfer.target_slot, transfer.box, -1 if owners.bundles else slot
                found.setdefault(to, {}).setdefault(key, []).append(_part_of(owners, source, slot, transfer.box))
    return found


def _boxes(owners: Owners, here: int) -> Iterator[tuple[Slot, Box, list[_Contribution]]]:
    """The boxes that this process reduces, with who contributes."""
    source = owners.step.source
    process_of = residence(source.mesh).owners
    held = occupancy(source, here)
    for slot in slots_of(source.mesh).get(here, ()):
        if not _works(owners, slot, here):
            continue
        for where, members in _by_box(owners.collects(slot)):
            found: dict[tuple[int, int], _Contribution] = {}
            for member in members:
                near = held.same_shard(member)
                by = process_of[member] if near is None else here
                which = -1 if owners.bundles else member
                given = found.setdefault((by, which), _Contribution(by, (slot, where, which), []))
                if near is not None:
                    given.parts.append(_part_of(owners, source, near, where))
            yield slot, where, list(found.values())


def _spread(owners: Owners, boxes: list[tuple[Slot, Box]], processes: Processes, here: int) -> Messages:
    """Who passes which results on to whom."""
    target = owners.step.target
    process_of = residence(target.mesh).owners
    number = {key: index for index, key in enumerate(boxes)}
    found = MessageList()
    for slot in occupancy(target, here).slots:
        for transfer in owners.takes(slot):
            into = _part_of(owners, target, slot, transfer.box)
            by = process_of[transfer.source_slot]
            if not into.size:
                continue
            if by == here and owners.flat and transfer.source_slot == slot:
                continue  # it is reduced there
            if by == here:
                found.copy(whole_part(number[transfer.source_slot, transfer.box], transfer.box), into)
            else:
                found.arrive(by, order_of(transfer), into)
    for owner in slots_of(target.mesh).get(here, ()):
        for transfer in owners.gives(owner):
            to = process_of[transfer.target_slot]
            if to != here and has_elements(transfer.box) and occupancy(target, to).is_first(transfer.target_slot):
                found.leave(to, order_of(transfer), whole_part(number[owner, transfer.box], transfer.box))
    return found.among(processes)


def _works(owners: Owners, slot: Slot, process: int) -> bool:
    """Whether a slot reduces for all that would do the same in its memory."""
    return owners.spreads or occupancy(owners.step.target, process).is_first(slot)


def _part_of(owners: Owners, layout: Layout, slot: Slot, where: Box) -> StoredBox:
    if not owners.flat:
        return stored_part(layout, owners.step.shape, slot, where)
    stored = holding(layout)
    piece = stored.piece_of[slot]
    return part(piece, where, (math.prod(stored.piece_shape(piece, owners.step.shape)),))


def _by_box(transfers: Iterable[Transfer]) -> list[tuple[Box, list[Slot]]]:
    found: dict[Box, list[Slot]] = {}
    for transfer in transfers:
        found.setdefault(transfer.box, []).append(transfer.source_slot)
    return list(found.items())
