"""`Alone`: the value of a tensor that only some devices have, though its layout says that all along some axes do.

That is what is selected of a split dim (`stack[3]`), and what is computed of it. It is sent when the others need it. Ops whose other
tensors are there anyway, or whose rows can be sent there, run where it is: see `running_alone`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, final

import torch

from ...planning.rearrangement import Part, Rearrangement, Run, Side
from ...runtime.holding import Pieces, holding
from ...runtime.reduction import neutral
from ...runtime.strides import Strides, in_order
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh, Slot
from ..form import form_of, special
from ..memory import memory_of
from ..moves.rearranging import note_rearrangement, rearranged
from ..sharded import ShardedTensor, made, wrap
from ..value import value_from

__all__ = ["Alone", "Home", "Values", "alone", "alone_of", "holders", "number_along"]

Values = dict[Slot | None, torch.Tensor]
"""What each device of this process that has the value has of it; None stands for the one memory of all devices."""


@final
class Home:
    """Which devices have a value: those that have a number along some axes. There is one of so many `groups`."""

    __slots__ = ("axes", "group", "groups", "mesh", "number")

    def __init__(self, mesh: DeviceMesh, axes: tuple[str, ...], number: int, group: int, groups: int) -> None:
        self.mesh, self.axes, self.number = mesh, axes, number
        self.group, self.groups = group, groups
        """Which index of the split dim was selected, and how many it has."""

    def is_as(self, other: Home) -> bool:
        """Whether another value is on the same devices."""
        return self.mesh == other.mesh and self.axes == other.axes and self.number == other.number

    @property
    def count(self) -> int:
        """How many devices there are along the axes."""
        return self.mesh.group_size(self.axes)


def number_along(mesh: DeviceMesh, axes: tuple[str, ...], coords: tuple[int, ...]) -> int:
    """The number of a device along some axes, the first of which is the major one.

    >>> from weft.sharding.mesh import make_mesh
    >>> number_along(make_mesh({"a": 2, "b": 3}), ("b", "a"), (1, 2))
    5
    """
    found = 0
    for axis in axes:
        found = found * mesh.axis_size(axis) + coords[mesh.index_of[axis]]
    return found


def holders(layout: Layout, home: Home) -> tuple[Slot | None, ...]:
    """The devices of this process that have a value at a home; None for the one memory of all."""
    if not memory_of(layout).pieces_are_shards:
        return (None,)
    mesh = home.mesh
    owned = holding(layout).residence.owned
    return tuple(slot for slot in owned if number_along(mesh, home.axes, mesh.coords(slot)) == home.number)


def _stacked(layout: Layout, home: Home) -> Layout:
    """Of all that devices along the axes of a home have, one after another along a new dim in front."""
    waiting = {axis: kind for axis, kind in layout.pending if axis not in home.axes}
    return layout.with_pending(waiting).with_dim(0, home.axes)


@final
class Alone:
    """What pieces come from that are sent when they are asked for. `values` gives what there is, which writes may have changed."""

    reads_late: ClassVar[bool] = True

    def __init__(
        self,
        home: Home,
        layout: Layout,
        shape: Sequence[int],
        dtype: torch.dtype,
        strides: Strides,
        values: Callable[[], Values],
        op: str,
        pieces: Callable[[], Pieces] | None = None,
    ) -> None:
        """`pieces` gives them, where they are views of the pieces of another tensor: that one is sent, and once."""
        self.home, self.layout, self.shape, self.dtype = home, layout, tuple(shape), dtype
        self.values, self.op = values, op
        self._strides, self._pieces = strides, pieces

    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return True

    def wait(self) -> Pieces:
        """The pieces as the layout says."""
        if self._pieces is not None:
            return self._pieces()
        if any(axis in self.layout.pending_axes for axis in self.home.axes):
            return self._contributions()
        plan = self._plan()
        if not memory_of(self.layout).pieces_are_shards:
            self.tell()
            return self._contributions() if self.layout.pending else (self.values()[None],)
        side = plan.sources[0]
        here, own = holding(side.layout), self.values()
        pieces = tuple(
            own[slot].unsqueeze(0)
            if slot in own
            else torch.empty(here.piece_shape(k, side.shape), dtype=self.dtype, device=device)
            for k, (slot, device) in enumerate(zip(here.slots, here.devices, strict=True))
        )
        stack = wrap(pieces, side.layout, side.shape, dtype=self.dtype)
        sent = rearranged([stack], plan.target.layout, plan.target.shape, plan.parts, self.op, torch.clone)
        return tuple(in_order(piece.squeeze(0), self._strides) for piece in sent._value.pieces)

    def tell(self) -> None:
        """Logs and reports what it moves to give it to the others."""
        note_rearrangement(self._plan(), self.dtype.itemsize, self.op)

    def _plan(self) -> Rearrangement:
        """What it takes to give it to the others."""
        source = Side.of(_stacked(self.layout, self.home), (self.home.count, *self.shape))
        target = Side.of(self.layout.with_dim(0), (1, *self.shape))
        return Rearrangement((source,), target, (Part(0, (Run(1, source=self.home.number), *map(Run, self.shape))),))

    def _contributions(self) -> Pieces:
        """What devices contribute to a reduction: those that have the value that, and others what changes nothing.

        In one memory the value is reduced over all other axes too, and the first device along these contributes it.
        """
        here, own, home = holding(self.layout), self.values(), self.home
        kinds, index_of = dict(self.layout.pending), home.mesh.index_of
        others = [index_of[axis] for axis in kinds if axis not in home.axes] if None in own else []
        nothing = neutral(next(iter(kinds.values())), self.dtype)
        pieces = []
        for k, (slot, coords, device) in enumerate(zip(here.slots, here.coords, here.devices, strict=True)):
            is_at_home = home.axes[0] not in kinds or number_along(home.mesh, home.axes, coords) == home.number
            if is_at_home and not any(coords[at] for at in others):
                pieces.append(own[None if None in own else slot])
            else:
                pieces.append(torch.full(here.piece_shape(k, self.shape), nothing, dtype=self.dtype, device=device))
        return tuple(in_order(piece, self._strides) for piece in pieces)


def alone_of(x: object) -> Alone | None:
    """What a tensor is that only some devices have; None where all have what its layout says."""
    if not isinstance(x, ShardedTensor) or x._value.is_made:
        return None
    source = x._value.source
    return source if isinstance(source, Alone) else None


def alone(value: Alone, strides: Strides, device: torch.device, offset: int = 0) -> ShardedTensor:
    """The tensor of such a value."""
    form = form_of(value.layout, value.shape, strides, value.dtype, device)
    return made(special(form), value_from(value), offset)
