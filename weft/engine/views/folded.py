"""`Fold`: a reshape that merges dims, a later one of which is split, and whose elements stay where they are for now.

torch says products of many dims by products of few: a linear map of (batch, sequence, features) merges the first two dims,
attention scores merge batch and heads. A merged dim cannot be split as its later part was, so its elements would have to be
exchanged, only to be put back after the product. A folded tensor remembers what it was merged from, and products use that;
whatever else needs its elements makes the exchange then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import final
from weakref import WeakValueDictionary, ref

import torch

from ...rules.call import BoundCall
from ...runtime.holding import Pieces
from ...runtime.traced import tracers
from ...sharding.layout import Layout
from ..form import form_of
from ..sharded import ShardedTensor, Stand, made, requires_grad, stand_of
from ..total import Total
from ..value import Value, value_from

__all__ = ["Fold", "fold", "fold_of", "folded_ops", "is_unmade", "make_results"]

Exchange = Callable[[], tuple[Pieces, Total | None]]
FoldedOp = Callable[[BoundCall], object]

_traced: WeakValueDictionary[int, ShardedTensor] = WeakValueDictionary()
"""Those that a compiler has seen being made. Bound: the folded tensors of programs being traced. Cleared: with them."""

folded_ops: dict[torch._ops.OpOverload, FoldedOp] = {}
"""What ops do with folded tensors; NotImplemented where they need the elements where the layout says.

Bound: the ops there are. Cleared: never.
"""


@final
class _Later:
    """Pieces that are made when they are first asked for; the tensor that asks is held by nothing here, and can go without a search for it."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.made: Pieces | None = None
        self.value: ref[Value] | None = None

    def wait(self) -> Pieces:
        self.made, total = self.exchange()
        value = None if self.value is None else self.value()
        if value is not None:
            value.total = total
        return self.made

    def done(self) -> bool:
        return True


@final
class Fold:
    """What the dims of a tensor were merged from."""

    def __init__(
        self, stand: Stand, groups: tuple[int, ...], written: int, later: _Later, through: ShardedTensor | None
    ) -> None:
        self._stand, self.through = stand, through
        """`through`: another folded tensor, of which this is a view."""
        self.groups = groups
        """For each dim, how many dims it was merged from; one of size 1 may be from none."""
        self._written = written
        """How often the other tensor had been written to."""
        self.later = later

    @property
    def of(self) -> ShardedTensor:
        """The other tensor, where the elements lie."""
        return self._stand.tensor

    def forget(self) -> None:
        """From now on the tensor is what its pieces are: they were written to."""
        self._written = -1

    def holds(self, x: ShardedTensor) -> bool:
        """Whether a tensor still is what the other holds: neither was written to, nor made another, since."""
        if self._stand.has_become or self.of.is_inference() or self.of._version != self._written:
            return False
        if x._value.is_made and x._value.pieces is not self.later.made:
            return False
        if self.through is not None and fold_of(self.through) is None:
            return False  # a copy that it is a view of was written to
        return x._is_view() or x._version == 0


def fold_of(x: object) -> Fold | None:
    """What a tensor is folded from, if it still is."""
    if not isinstance(x, ShardedTensor):
        return None
    fold = x._value.fold
    return fold if fold is not None and fold.holds(x) else None


def is_unmade(x: ShardedTensor) -> bool:
    """Whether a tensor is folded, or only some devices have it, and its own pieces are not there yet."""
    value = x._value
    if value.is_read_late:
        return True
    return value.fold is not None and not value.is_made and value.source is value.fold.later


def fold(
    x: ShardedTensor,
    groups: tuple[int, ...],
    layout: Layout,
    shape: Sequence[int],
    exchange: Exchange,
    strides: Sequence[int],
    offset: int,
    through: ShardedTensor | None = None,
) -> ShardedTensor:
    """The folded tensor of `x`; the exchange brings its elements to its layout. `through`: another folded one, of which it is a view."""
    later = _Later(exchange)
    value = value_from(later)
    later.value = ref(value)
    value.fold = Fold(stand_of(x), groups, x._version, later, through)
    folded = made(form_of(layout, shape, strides, x.dtype, x.device, is_special=True), value, offset)
    if value.tracers:
        _traced[id(folded)] = folded
    return folded


def make_results(asks: FrameType | None) -> None:
    """Makes folded tensors without gradients that a program which is traced gives, before its way back is.

    Torch asks for the pieces of results when both ways are traced, and what is sent then could not be part of the way there. Results are
    what the function has at hand that asks for gradients (`asks`); others that are left nobody may ever need.
    """
    left = [x for x in _traced.values() if is_unmade(x) and not requires_grad(x)]
    if not left or asks is None:
        return
    looking = tracers()
    given = {id(x) for found in asks.f_locals.values() if isinstance(found, (list, tuple)) for x in found}
    for x in left:
        if id(x) in given and x._value.tracers == looking:
            x._value.pieces  # noqa: B018 - asking for them makes them
