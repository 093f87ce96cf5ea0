"""`Value`: what a tensor holds, and how that hangs together with what other tensors hold."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol, final

import torch

from ..rules.call import each_of
from ..runtime.holding import Pieces
from ..runtime.traced import Tracer, seen_by, tracers
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping

if TYPE_CHECKING:
    from .moves.resolving import Turned
    from .ragged.rows import RaggedRows
    from .sharded import ShardedTensor, Stand
    from .total import Total
    from .views.copy_views import Shown
    from .views.folded import Fold

__all__ = ["UNMADE", "Flat", "Lender", "Source", "Unmade", "Value", "value_from", "value_of"]

Flat = tuple[Layout, DeviceMapping | None, bool, Layout | None, bool, bool]
"""What torch.compile knows of a tensor beside its pieces: how it lies, as what it was asked for, whether somebody watches, the
layout of its gradient where that is another, whether it is a leaf, whose gradient is brought to that layout, and whether it is a view
that is a copy."""


class Source(Protocol):
    """Where pieces come from that are not there yet."""

    def done(self) -> bool:
        """Whether there is nothing to wait for."""

    def wait(self) -> Pieces:
        """The pieces."""


class Lender(Protocol):
    """Whose memory values have, where it is taken away for a time and filled again."""

    def lend(self, value: Value) -> None:
        """Notes one more value with that memory."""


@final
class Unmade:
    """Stands for the resolved form of a pending tensor that an operation has needed, and had without making one."""


UNMADE = Unmade()


@final
class _Made:
    """Makes the pieces of a value when they are first asked for; those that are there are found without asking this."""

    def __get__(self, value: Value, _: type[Value]) -> Pieces:
        source = value.source
        if source is None:
            there: Pieces = value.__dict__["pieces"]  # another thread was quicker
            return there
        # Where several threads wait for them, all get those of the first.
        made = source.wait() if not value.tracers else _traced(value, source)
        pieces: Pieces = value.__dict__.setdefault("pieces", made)
        value.source = None
        return pieces


def _traced(value: Value, source: Source) -> Pieces:
    """The pieces of a tensor in a traced program, made while those look on who did when it was."""
    with seen_by(value.tracers):
        return source.wait()


@final
class Value:
    """The pieces of a tensor, and what is known of them. Everything but the pieces is mostly absent."""

    pieces = _Made()
    """What this process stores; made when they are first asked for, where they come from a `source`."""
    source: Source | None = None
    """What the pieces come from, until they are there: an op on its way, contributions, an exchange put off."""
    total: Total | None = None
    """In one memory: the whole value of a pending tensor, where an op has computed it."""
    shown: Shown | None = None
    """What this shows of another tensor, where it is a view whose elements had to move."""
    fold: Fold | None = None
    """What its dims were merged from, where its elements still lie there."""
    rows: RaggedRows | None = None
    """Where its rows lie, where that is not where its layout says: see `weft.engine.ragged`."""
    told: tuple[int, torch.Tensor] | None = None
    """The whole value on the host, where it was needed as an index there, and which version of the tensor that was."""
    turned: Turned | None = None
    """The pending tensor that this is a view of, where it has all elements of it."""
    resolved: ShardedTensor | Unmade | None = None
    """The same value with nothing pending, once an operation has needed it; who asks for it again makes it, if need be."""
    resolved_at: int = 0
    """How many writes to pending tensors there had been when `resolved` was made."""
    is_gradient_brought: bool = False
    """Whether the gradient of the tensor is brought to its layout when it arrives: see `moves.gradient_home`."""
    is_traced_leaf: bool = False
    """Whether the tensor stands for a leaf that is an input of a program that is traced."""
    is_traced_input: bool = False
    """Whether it stands for one, and nobody has asked yet whether it has a gradient."""
    is_traced_copy: bool = False
    """Whether it stands for a view that is a copy, which a program may not write to."""
    counted_beside: list[weakref.ref[ShardedTensor]] | None = None
    """Tensors that were given one memory, by `x.data = y`: torch counts the writes to each for itself."""
    stand: weakref.ref[Stand] | None = None
    """What views of the tensor hold."""
    is_viewed: bool = False
    """Whether views of the tensor have been made; they may be gone."""
    as_viewed: tuple[bool, int] | None = None
    """What each view asks of the tensor: whether it is an inference tensor, and where it begins. None where that has to be asked."""
    has_other_views: bool = False
    """Whether torch takes for views of it what shows other memory, since one of them was given that, by `x.data = y`."""
    nowhere: torch.UntypedStorage | None = None
    """What stands for its memory in a process that has none of it: see `weft.engine.kept`."""
    lent_by: Lender | None = None
    """Whose memory this is, where it comes and goes; views have it from what they show."""
    flat: tuple[list[str], Flat] | None = None
    """What a compiler was told of the tensor, and by which names it has the pieces: see `weft.tensor.flattening`."""
    tracers: tuple[Tracer, ...] = ()
    """Which modes of a compiler looked on, where the pieces are not there yet, or may be read again: it may ask for them when
    it has left these."""
    readable: object = None
    """The whole, for who has asked for an address to read it at; kept as long as the tensor."""

    @property
    def is_made(self) -> bool:
        """Whether the pieces are there."""
        return "pieces" in self.__dict__

    @property
    def is_put_off(self) -> bool:
        """Whether its rows lie elsewhere than the layout says, or only some devices have it, and nothing has been sent."""
        return not self.is_made and (self.rows is not None or self.is_read_late)

    @property
    def is_read_late(self) -> bool:
        """Whether its pieces are read, where they lie, when they are asked for: what is written until then shows."""
        return not self.is_made and getattr(self.source, "reads_late", False)

    def note_views(self, views: object) -> None:
        """Notes that these show the tensor, and lets them have memory that comes and goes, where it has such."""
        self.is_viewed = True
        if self.lent_by is not None:
            for each in each_of(views):
                value = getattr(each, "_value", None)
                if isinstance(value, Value):
                    self.lent_by.lend(value)

    def lend(self, by: Lender) -> None:
        """Notes that the memory is another's, who takes it away for a time."""
        self.lent_by, self.as_viewed = by, None

    def taken(self) -> Value:
        """The same memory for a tensor that becomes what another is: what was only known of that one stays behind."""
        value = value_of(self.pieces)
        value.shown, value.total, value.counted_beside = self.shown, self.total, self.counted_beside
        return value


def value_of(pieces: Pieces) -> Value:
    """What a tensor holds that has these pieces."""
    value = Value()
    value.pieces = pieces
    return value


def value_from(source: Source) -> Value:
    """What a tensor holds whose pieces come from somewhere, when they are asked for."""
    value = Value()
    value.source = source
    looking = tracers()
    if looking:
        value.tracers = looking
    return value
