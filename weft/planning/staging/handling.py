"""What processors do for a hop beside sending and receiving: messages to begin, and bytes to copy.

A part of a shard that lies in one stretch of memory leaves from its place and arrives in its place. Others are packed into a message
first, and taken out of it afterwards; what a device keeps of its own shard is copied, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch
from typing import NamedTuple

from ...caches import cached
from ...sharding.geometry import box, is_stretch, volume
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ..boxes.transfers import Transfer
from ..moving_steps import Exchange, Moves, Permute
from ..owners import Owners, owners_of_step
from ..reducing_steps import AllReduce, ReduceExchange, ReduceScatter
from ..step import Step
from .delegation import delegation
from .multicast import multicast

__all__ = ["Handling", "handling"]

LARGE = 128
"""On meshes of more devices nobody counts what is copied: that is for processes that share the cores of a few hosts."""
SAMPLES = 3


class Handling(NamedTuple):
    """What the processor of one device does in a hop: messages that arrive, and bytes that it copies."""

    messages: int
    copied: int


Transfers = Callable[[Slot], Iterable[Transfer]]


@cached(4096)
def handling(step: Step) -> tuple[Handling, ...]:
    """For each hop of a step, what the device with most to do does; nothing is known of what has no rows here.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4})
    >>> rows, columns, whole = Layout(mesh, (("tp",), ())), Layout(mesh, ((), ("tp",))), Layout(mesh, ((), ()))
    >>> handling(step_between(rows, whole, (8, 8), 4))
    (Handling(messages=3, copied=64),)
    >>> handling(step_between(columns, whole, (8, 8), 4))
    (Handling(messages=3, copied=256),)
    """
    if max(step.source.mesh.num_devices, step.target.mesh.num_devices) > LARGE:
        return ()
    return tuple(_hops(step))


@singledispatch
def _hops(step: Step) -> Sequence[Handling]:  # noqa: ARG001 - as every row
    return ()


@_hops.register(Moves)
@_hops.register(Exchange)
def _(step: Moves | Exchange) -> Sequence[Handling]:
    count = _Counting(step)
    if step.stages is None:
        # Whole shards that are permuted leave from their place.
        gives = (lambda _: ()) if isinstance(step, Permute) else step.sends
        return [count.moved(step.receives, gives, step.source)]
    routes = multicast(step.source, step.target, step.shape, step.stages)
    return [
        count.moved(lambda s: routes.receives(0, s), lambda s: routes.sends(0, s), step.source),
        count.moved(lambda s: routes.receives(1, s), lambda s: routes.sends(1, s), step.target),
    ]


@_hops.register(AllReduce)
@_hops.register(ReduceScatter)
@_hops.register(ReduceExchange)
def _(step: AllReduce | ReduceScatter | ReduceExchange) -> Sequence[Handling]:
    owners = owners_of_step(step, crowded=False)
    return _straight(step, owners) if step.stages is None else _delegated(step, owners)


def _straight(step: AllReduce | ReduceScatter | ReduceExchange, owners: Owners) -> Sequence[Handling]:
    count = _Counting(step, flat=owners.flat)
    hops = [count.reduced(owners.collects, owners.contributes)]
    if owners.spreads:
        hops.append(count.spread(owners.takes, reduced_in_place=owners.flat))
    return hops


def _delegated(step: AllReduce | ReduceScatter | ReduceExchange, owners: Owners) -> Sequence[Handling]:
    assert step.stages is not None
    count, work = _Counting(step, flat=owners.flat), delegation(owners, step.stages)

    def inside(slot: Slot) -> list[Transfer]:
        return [Transfer(member, slot, task.box) for task in work.tasks(slot) for member in task.members]

    def between(slot: Slot) -> list[Transfer]:
        return [Transfer(by, slot, where) for where, delegates in work.arriving(slot) for by in delegates]

    hops = [
        count.reduced(inside, lambda slot: [each for _, each in work.entrusts(slot)]),
        count.put_in_place(between),
    ]
    if owners.spreads:
        hops += [count.spread(lambda slot, hop=hop: work.takes(hop, slot)) for hop in (0, 1)]  # type: ignore[misc]
    return hops


class _Counting:
    """Counts for a few devices that stand for the rest."""

    def __init__(self, step: Step, *, flat: bool = False) -> None:
        self._step, self._flat = step, flat

    def moved(self, takes: Transfers, gives: Transfers, before: Layout) -> Handling:
        """Boxes go from shards to shards."""
        step, found = self._step, []
        for slot in _sample(step.target):
            listed = list(takes(slot))
            own = sum(volume(each.box) for each in listed if self._is_own(each))
            if own == sum(volume(each.box) for each in listed):
                own = 0  # a shard that stays as it is, is not copied before somebody writes to it
            found.append((len(_senders(listed, slot)), own + self._loose(listed, step.target, slot)))
        packed = max(self._loose(list(gives(slot)), before, slot, sent=True) for slot in _sample(before))
        messages, unpacked = (max(each) for each in zip(*found, strict=True))
        return Handling(messages, (unpacked + packed) * step.itemsize)

    def reduced(self, collects: Transfers, gives: Transfers) -> Handling:
        """Contributions go from shards to memory for the time being, and are added there."""
        slots = _sample(self._step.source)
        packed = max(self._loose(list(gives(slot)), self._step.source, slot, sent=True) for slot in slots)
        return Handling(max(len(_senders(collects(slot), slot)) for slot in slots), packed * self._step.itemsize)

    def put_in_place(self, collects: Transfers) -> Handling:
        """Contributions come together, and the result is copied to its place."""
        found = [(list(collects(slot)), slot) for slot in _sample(self._step.source)]
        copied = max(sum(volume(where) for where in {each.box for each in listed}) for listed, _ in found)
        return Handling(max(len(_senders(*each)) for each in found), copied * self._step.itemsize)

    def spread(self, takes: Transfers, *, reduced_in_place: bool = False) -> Handling:
        """Results go from memory for the time being to shards."""
        found = []
        for slot in _sample(self._step.target):
            listed = list(takes(slot))
            own = 0 if reduced_in_place else sum(volume(each.box) for each in listed if each.source_slot == slot)
            found.append((len(_senders(listed, slot)), own + self._loose(listed, self._step.target, slot)))
        messages, copied = (max(each) for each in zip(*found, strict=True))
        return Handling(messages, copied * self._step.itemsize)

    def _is_own(self, transfer: Transfer) -> bool:
        source, target = self._step.source.mesh, self._step.target.mesh
        return source.slot_ids[transfer.source_slot] == target.slot_ids[transfer.target_slot]

    def _loose(self, listed: Sequence[Transfer], layout: Layout, slot: Slot, *, sent: bool = False) -> int:
        """How many elements of a shard go into messages, or come from them, that are no stretch of it."""
        if self._flat:
            return 0
        shard = box(layout, self._step.shape, slot)
        messages: dict[Slot, list[Transfer]] = {}
        for each in listed:
            if not self._is_own(each):
                messages.setdefault(each.target_slot if sent else each.source_slot, []).append(each)
        return sum(
            sum(volume(each.box) for each in parts)
            for parts in messages.values()
            if len(parts) > 1 or not is_stretch(parts[0].box, shard)
        )


def _senders(listed: Iterable[Transfer], slot: Slot) -> set[Slot]:
    return {each.source_slot for each in listed if each.source_slot != slot}


def _sample(layout: Layout) -> list[Slot]:
    count = layout.mesh.num_devices
    return sorted({number * count // SAMPLES for number in range(SAMPLES)} | {count - 1})
