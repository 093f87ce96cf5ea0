"""`Folded`: a reshape that merges dims, a later one of which is split, and whose elements stay where they are for now.

torch says products of many dims by products of few: a linear map of (batch, sequence, features) merges the first two dims,
attention scores merge batch and heads. A merged dim cannot be split as its later part was, so its elements would have to be
exchanged, only to be put back after the product. A folded tensor remembers what it was merged from, and products use that;
whatever else needs its elements makes the exchange then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..runtime.holding import Pieces
from ..sharding.layout import Layout
from .tensor import Stand, Tensor, stand_of

__all__ = ["Folded", "fold", "folded_ops"]

Exchange = Callable[[], Pieces]
FoldedOp = Callable[[torch._ops.OpOverload, tuple[object, ...], dict[str, object]], object]

folded_ops: dict[torch._ops.OpOverload, FoldedOp] = {}
"""What ops do with folded tensors; NotImplemented where they need the elements where the layout says."""


class _Later:
    """Pieces that are made when they are first asked for."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.made: Pieces | None = None

    def wait(self) -> Pieces:
        self.made = self.exchange()
        return self.made

    def done(self) -> bool:
        return True


class Folded(Tensor):
    """A tensor whose dims are merged from those of another, where its elements still lie."""

    _of: Stand
    """The other, also where that has become something else since."""
    _groups: tuple[int, ...]
    """For each dim, how many dims it was merged from; one of size 1 may be from none."""
    _written: int
    """How often the other had been written to."""
    _later: _Later
    """What its own pieces are made by."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        op = folded_ops.get(func)
        if op is not None and not torch.is_inference_mode_enabled():
            Tensor._refresh([x for x in args if isinstance(x, Tensor)])
            Tensor._refresh([x._unfolded for x in args if isinstance(x, Folded)])
            result = op(func, args, kwargs or {})
            if result is not NotImplemented:
                return result
        return Tensor._run(func, args, kwargs or {})

    @property
    def is_unmade(self) -> bool:
        """Whether its own pieces are not there yet."""
        return "_pieces" not in self.__dict__ and self._arriving is self._later

    def forget_fold(self) -> None:
        """From now on this tensor is what its pieces are: they were written to."""
        self._written = -1

    @property
    def _unfolded(self) -> Tensor:
        return self._of.tensor

    @property
    def is_folded(self) -> bool:
        """Whether it still is what the other tensor holds: neither was written to, nor made another, since."""
        if self._of.has_become or self._unfolded.is_inference() or self._unfolded._version != self._written:
            return False
        pieces = self.__dict__.get("_pieces")
        if pieces is not None and pieces is not self._later.made:
            return False
        return self._is_view() or self._version == 0


def fold(
    x: Tensor,
    groups: tuple[int, ...],
    layout: Layout,
    shape: Sequence[int],
    exchange: Exchange,
    strides: Sequence[int],
    offset: int,
) -> Folded:
    """The folded tensor of `x`; the exchange brings its elements to its layout."""
    tensor = torch.Tensor._make_wrapper_subclass(
        Folded, shape, strides=strides, storage_offset=offset, dtype=x.dtype, device=x.device, requires_grad=False
    )
    assert isinstance(tensor, Folded)
    tensor._layout, tensor._of, tensor._groups, tensor._written = layout, stand_of(x), groups, x._version
    tensor._later = tensor._arriving = _Later(exchange)
    return tensor
