"""Totals: in one memory, the value of a pending tensor is computed whole, and its contributions when somebody looks at them.

What is pending is a label too, as other layouts are: an op that leaves a reduction pending runs once, on whole values, and
resolving its result is to change the label. Contributions are asked for by `local_shards`, by writes in place, and on the
way to other memories; they are computed then, each for itself, from what the op read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import torch

from ..runtime.holding import Pieces
from ..runtime.in_process import fill_pending
from ..sharding.layout import Layout

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = ["Origin", "Total", "known_total", "written"]

Mark = tuple["Tensor", object, int]
"""An input, the memory it had, and a number that changes when that is written to."""


@final
class Total:
    """The whole value of a pending tensor; nobody writes to it. Tensors that share memory share `written`."""

    __slots__ = ("value", "written")

    def __init__(self, value: torch.Tensor, written: list[bool]) -> None:
        self.value = value
        self.written = written


def known_total(x: Tensor) -> torch.Tensor | None:
    """The whole value of a pending tensor, if it is known and the tensor was not written to since."""
    total = x._total
    return None if total is None or total.written[0] else total.value


def written(x: Tensor) -> None:
    """Before a write to a tensor: from now on its contributions, and those of its views, say what its value is."""
    total = x._total
    if total is not None and not total.written[0]:
        _ = x._pieces
        total.written[0] = True


@final
class Origin:
    """Where contributions come from: the op that left them pending, and what it read."""

    __slots__ = ("_compute", "_marks", "_results")

    def __init__(self, compute: Callable[[], object], inputs: Sequence[Tensor], is_view: bool) -> None:
        self._compute = compute
        self._marks: list[Mark] | None = None if is_view else [_mark(x) for x in inputs]
        self._results: Sequence[Tensor] | None = None

    def contributions(self, k: int, total: torch.Tensor, layout: Layout) -> Pieces:
        """The pieces of the k-th result."""
        # A view is one of whatever its base has now; other ops are computed again only from what they have read.
        if self._marks is not None and not all(map(_is_unchanged, self._marks)):
            return fill_pending(total, layout)
        with torch.inference_mode(total.is_inference()), torch.no_grad():
            if self._results is None:
                result = self._compute()
                self._results = list(result) if isinstance(result, (tuple, list)) else [result]  # type: ignore[list-item]
            pieces = self._results[k]._pieces
            return pieces if self._marks is None else tuple(_like(total, piece) for piece in pieces)


@final
class Contributions:
    """The pieces of a pending tensor whose total is known."""

    __slots__ = ("_k", "_layout", "_origin", "_total")

    def __init__(self, origin: Origin, k: int, total: torch.Tensor, layout: Layout) -> None:
        self._origin, self._k, self._total, self._layout = origin, k, total, layout

    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return True

    def wait(self) -> Pieces:
        """Computes them."""
        return self._origin.contributions(self._k, self._total, self._layout)


def _mark(x: Tensor) -> Mark:
    total = x._total
    if total is not None and not total.written[0]:
        return x, total, 0
    memory = x._pieces[0]
    return x, memory, -1 if memory.is_inference() else memory._version


def _is_unchanged(mark: Mark) -> bool:
    x, memory, version = mark
    if isinstance(memory, Total):
        return x._total is memory and not memory.written[0]
    assert isinstance(memory, torch.Tensor)
    return version >= 0 and x._pieces[0] is memory and memory._version == version


def _like(total: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """A contribution with the strides of the total: views of the one are views of the other."""
    if piece.stride() == total.stride() or 0 in total.stride():
        return piece
    return torch.empty_strided(total.shape, total.stride(), dtype=piece.dtype, device=piece.device).copy_(piece)
