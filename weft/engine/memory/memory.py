"""`Memory`: what can be done with values, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ...planning.rearrangement import OpenRearrangement
from ...runtime.holding import Pieces
from ...runtime.strides import Strides
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...sharding.mesh import DeviceMesh, Slot
from ..sharded import ShardedTensor, made
from ..views.view import View

__all__ = ["Memory", "Part", "Spots"]

Part = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Spots:
    """Where an op runs: mesh coordinates and slots, and the mesh axes along which they differ."""

    axes: frozenset[str]
    places: tuple[tuple[tuple[int, ...], Slot], ...]


class Memory(ABC):
    """What can be done with values, wherever they lie.

    What is not abstract says how things are where nothing has to be done.
    """

    pieces_are_shards: ClassVar[bool]
    """Whether a piece is what a device holds, and not a whole value of which devices hold parts."""

    # Ops

    def held_whole(self, x: ShardedTensor) -> torch.Tensor | None:
        """The one plain tensor that is the value of `x`, where there is one."""
        return None

    def runs_whole(self, layouts: Sequence[Layout]) -> bool:
        """Whether an op with tensors and results in these layouts runs once, on whole values."""
        return False

    def runs_on_totals(self, outputs: Sequence[Layout]) -> bool:
        """Whether an op runs once, on whole values, although it leaves a reduction pending."""
        return False

    @abstractmethod
    def spots(self, mesh: DeviceMesh, layouts: Sequence[Layout]) -> Spots:
        """Where an op runs otherwise."""

    def part(self, layout: Layout, shape: Sequence[int], coords: tuple[int, ...]) -> Part | None:
        """What an op reads or makes of a piece at a spot, in a layout with the splits that tell spots apart; None: all."""
        return None

    # Movements

    @abstractmethod
    def put(
        self, whole: torch.Tensor, layout: Layout, asked: DeviceMapping | None = None, brought_to: str | None = None
    ) -> ShardedTensor:
        """A value in a layout; `brought_to` is the call that a user gives it to: all processes have to give the same one."""

    def relabeled(self, x: ShardedTensor, target: Layout, asked: DeviceMapping | None) -> ShardedTensor | None:
        """The same value in another layout; None where that takes more than to say so."""
        return None

    def on_whole(
        self, given: Sequence[ShardedTensor], target: Layout, op: Callable[..., torch.Tensor], *, is_view: bool
    ) -> ShardedTensor | None:
        """What an op on plain tensors gives, in a layout; None where the values do not lie whole."""
        return None

    @abstractmethod
    def rearrange(
        self,
        sources: Sequence[ShardedTensor],
        plan: Callable[[], tuple[OpenRearrangement, Sequence[int]]],
        target: Layout,
        shape: tuple[int, ...],
        op: str,
        whole: Callable[..., torch.Tensor],
        *,
        fill: float | None = None,
        into: ShardedTensor | None = None,
        is_view: bool = False,
    ) -> ShardedTensor:
        """What a rearrangement makes of (`into` and) the sources; the plan, which is for some sizes, may see dims in flat form.

        `whole` is the same on plain tensors, for where they lie whole; `is_view`: it gives a view of the one source.
        """

    # Views and writes

    @abstractmethod
    def show(
        self, y: ShardedTensor, x: ShardedTensor, view: View, *, is_moved: bool = True, is_copied: bool = False
    ) -> ShardedTensor:
        """`y` as the view of `x` that it is, which shows later writes to both.

        `is_moved`: elements had to come to where its layout says. `is_copied`: they were copied, in one memory too.
        """

    @abstractmethod
    def copies_views(self, x: ShardedTensor) -> bool:
        """Whether views of a tensor may be copies, or have to be told of."""

    def has_copied(self, y: ShardedTensor, x: ShardedTensor) -> bool:
        """Whether what a view op gave of `x` is a copy, because shards lie otherwise than the whole."""
        return False

    @abstractmethod
    def laid_like(self, y: ShardedTensor, x: ShardedTensor) -> ShardedTensor:
        """What was computed of all elements of `x`, with its strides."""

    def begun(self, y: ShardedTensor, offset: int) -> ShardedTensor:
        """A tensor that nobody else has, so far into its memory."""
        return y if int(y.storage_offset()) == offset else made(y._form, y._value, offset)

    def lies_in(self, x: ShardedTensor, strides: Strides) -> bool:
        """Whether elements lie as strides of the whole say, which `x` has."""
        return True

    def ordered(self, pieces: Pieces, strides: Strides) -> Pieces:
        """Pieces of a result as strides of the whole say."""
        return pieces

    def parted(self, written: ShardedTensor, read: torch.Tensor) -> torch.Tensor:
        """What is read for a write, in memory of its own where torch might refuse for parts of both."""
        return read

    # Shards and wholes

    @abstractmethod
    def assembled(self, shards: Sequence[torch.Tensor], layout: Layout, shape: tuple[int, ...]) -> Pieces:
        """The pieces of a tensor, from what each device of this process holds."""

    @abstractmethod
    def wholes(self, x: ShardedTensor) -> Pieces:
        """Copies of the whole value, for each combination of pending coordinates, of what this process holds."""

    @abstractmethod
    def from_wholes(self, wholes: Pieces, layout: Layout, shape: tuple[int, ...]) -> Pieces:
        """The pieces of a tensor, from whole values for each combination of pending coordinates."""
