"""`StatePlan`: what it takes to bring a whole state into other layouts, dtypes and names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from ...devices import Device
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ..boxes.crossing import combined, volumes
from ..plans import Plan
from ..step import Bytes
from ..text import bytes_text, shape_text, table
from .buckets import PartSize, buckets
from .passage import Passage

__all__ = ["StateEntry", "StatePlan"]

_Place = tuple[Device, int]
"""Where a slot stands, as meshes that share devices say it alike."""
_MOST_ROWS = 16


@final
@dataclass(frozen=True, slots=True)
class StateEntry:
    """One tensor of the new state: its name, what it is made of, and how that gets there.

    >>> from weft.planning.states.passage import Position
    >>> from weft.sharding.mesh import make_mesh
    >>> split = Position(Layout(make_mesh({"tp": 2}), (("tp",),)), (4,), (0,))
    >>> StateEntry("w", ("w",), (Passage(split, split, (4,), 4),), None, 4, 4).bytes_received.total
    0
    """

    name: str
    sources: tuple[str, ...]
    """The names of the tensors that it is made of."""
    passages: tuple[Passage, ...]
    """What becomes of regions of these."""
    plan: Plan | None
    """Where a reduction is pending, before or after, or the way leads through hosts: the plan of this tensor, which moves by itself."""
    source_itemsize: int
    target_itemsize: int

    @property
    def bytes_received(self) -> Bytes:
        """What the busiest device receives of this tensor, and what all do."""
        if self.plan is not None:
            return self.plan.bytes_received
        each = [sum(loads) for loads in zip(*(one.received_everywhere() for one in self.passages), strict=True)]
        return Bytes(max(each), sum(each))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the new tensor."""
        return self.plan.shape if self.plan is not None else self.passages[0].target.shape

    @property
    def target(self) -> Layout:
        """The layout of the new tensor."""
        return self.plan.target if self.plan is not None else self.passages[0].target.layout

    @property
    def held(self) -> Iterator[tuple[Layout, tuple[int, ...], int]]:
        """What devices hold of it, before and after: layouts, shapes, and bytes an element."""
        if self.plan is not None:
            yield self.plan.source, self.plan.shape, self.source_itemsize
        for passage in self.passages:
            yield passage.source.layout, passage.shape, self.source_itemsize
        yield self.target, self.shape, self.target_itemsize


@final
@dataclass(frozen=True, slots=True)
class StatePlan:
    """What moves when a state gets other layouts, dtypes and names: the tensors, the bytes, the memory, the messages.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> state = {"w": weft.zeros(1024, mapping=weft.NamedMapping(mesh, weft.P("tp")))}
    >>> plan = weft.plan_state(state, weft.NamedMapping(mesh, weft.P()))
    >>> plan.bytes_received, plan.lower_bound.total, plan.messages
    (Bytes(max=3072, total=12288), 12288, 12)
    """

    entries: tuple[StateEntry, ...]
    bucket: int
    """The most bytes that go from one process to another at once, in one message or several."""
    bytes_received: Bytes = field(init=False)
    lower_bound: Bytes = field(init=False)
    peak_memory: int = field(init=False)
    """What the fullest device holds of the tensors before and after, without what is packed for the way."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Plans are long, and looked up often."""

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        kinds = Counter(self._kinds())
        received, held = _DeviceSums(), _DeviceSums()
        least = 0
        for (passages, plan, source_itemsize, target_itemsize), count in kinds.items():
            entry = StateEntry("", (), passages, plan, source_itemsize, target_itemsize)
            for passage in passages:
                received.add(passage.target.layout, passage.received_everywhere(), count)
                least += passage.lower_bound.total * count
            if plan is not None:
                received.add(plan.target, [plan.received(slot) for slot in range(plan.target.mesh.num_devices)], count)
                least += plan.lower_bound.total * count
            for layout, shape, itemsize in entry.held:
                held.add(layout, volumes(layout, shape), count * itemsize)
        total = sum(entry.bytes_received.total for entry in self.entries if entry.plan is not None)
        total += sum(
            passage.bytes_received.total * count for (passages, *_), count in kinds.items() for passage in passages
        )
        object.__setattr__(self, "bytes_received", Bytes(received.most, total))
        object.__setattr__(self, "lower_bound", Bytes(min(received.most, least), least))
        object.__setattr__(self, "peak_memory", held.most)
        object.__setattr__(self, "_hash", hash((self.entries, self.bucket)))

    @property
    def passages(self) -> Iterator[tuple[StateEntry, Passage]]:
        """All passages, in order."""
        for entry in self.entries:
            for passage in entry.passages:
                yield entry, passage

    def _kinds(self) -> Iterator[tuple[tuple[Passage, ...], Plan | None, int, int]]:
        for entry in self.entries:
            yield entry.passages, entry.plan, entry.source_itemsize, entry.target_itemsize

    @property
    def messages(self) -> int:
        """How many messages go from device to device, if each is a process of its own."""
        return sum(len(buckets(parts, self.bucket)) for parts in self._streams().values())

    def _streams(self) -> dict[tuple[_Place, _Place], list[PartSize]]:
        """The parts that go from one device to another."""
        found: dict[tuple[_Place, _Place], list[PartSize]] = {}
        for _, passage in self.passages:
            givers, takers = passage.source.layout.mesh.slot_ids, passage.target.layout.mesh.slot_ids
            for slot, taker in enumerate(takers):
                for each in passage.receives(slot):
                    giver = givers[each.source_slot]
                    shape = tuple(stop - start for start, stop in each.box)
                    if giver != taker and 0 not in shape:
                        found.setdefault((giver, taker), []).append(PartSize(shape, passage.itemsize))
        return found

    def __str__(self) -> str:
        received, bound = self.bytes_received, self.lower_bound
        count = len(self.entries)
        least = f"at least {bytes_text(bound.total)}"
        lines = [
            f"Plan of a state of {count} tensor{'' if count == 1 else 's'}, {bytes_text(self._nbytes())}",
            f"  received  {bytes_text(received.max)} on the busiest device, {bytes_text(received.total)} in all ({least})",
            f"  memory    {bytes_text(self.peak_memory)} on the fullest device, before and after together",
            f"  messages  of at most {bytes_text(self.bucket)}",
        ]
        return "\n".join([*lines, "", *("  " + line for line in table(self._rows()))]) if count else lines[0]

    def _nbytes(self) -> int:
        return sum(math.prod(entry.shape) * entry.target_itemsize for entry in self.entries)

    def _rows(self) -> Sequence[Sequence[str]]:
        kinds: dict[object, list[StateEntry]] = {}
        for entry, kind in zip(self.entries, self._kinds(), strict=True):
            kinds.setdefault(kind, []).append(entry)
        rows = [("", "such as", "shape", "from", "to", "received")]
        listed = sorted(kinds.values(), key=lambda alike: -alike[0].bytes_received.total * len(alike))
        for alike in listed[:_MOST_ROWS]:
            first = alike[0]
            source = first.plan.source if first.plan is not None else first.passages[0].source.layout
            rows.append(
                (
                    f"{len(alike)} ×",
                    first.name,
                    shape_text(first.shape),
                    f"{source} on {source.mesh}",
                    f"{first.target} on {first.target.mesh}",
                    bytes_text(first.bytes_received.total * len(alike)),
                )
            )
        if len(listed) > _MOST_ROWS:
            rest = sum(map(len, listed[_MOST_ROWS:]))
            rows.append((f"{rest} ×", "others", "", "", "", ""))
        return rows

    def to_dict(self) -> dict[str, object]:
        """The plan in words and numbers that JSON has."""
        return {
            "tensors": {
                entry.name: {
                    "from": list(entry.sources),
                    "shape": list(entry.shape),
                    "layout": str(entry.target),
                    "bytes_received": entry.bytes_received.total,
                }
                for entry in self.entries
            },
            "bytes_received": {"max": self.bytes_received.max, "total": self.bytes_received.total},
            "lower_bound": {"max": self.lower_bound.max, "total": self.lower_bound.total},
            "peak_memory": self.peak_memory,
            "bucket": self.bucket,
        }


class _DeviceSums:
    """Numbers by device, added up over meshes that may share some."""

    def __init__(self) -> None:
        self._by_mesh: dict[DeviceMesh, list[int]] = {}

    def add(self, layout: Layout, numbers: Sequence[int], times: int) -> None:
        """Adds a number for each slot of a layout's mesh, so many times."""
        have = self._by_mesh.get(layout.mesh)
        new = [number * times for number in numbers]
        self._by_mesh[layout.mesh] = new if have is None else [a + b for a, b in zip(have, new, strict=True)]

    @property
    def most(self) -> int:
        """What the device with the most has."""
        if len(self._by_mesh) <= 2:
            return max(combined(list(self._by_mesh.items())), default=0) if self._by_mesh else 0
        sums: Counter[_Place] = Counter()
        for mesh, numbers in self._by_mesh.items():
            for place, number in zip(mesh.slot_ids, numbers, strict=True):
                sums[place] += number
        return max(sums.values(), default=0)
