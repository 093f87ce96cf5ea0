"""`Bound`: which indices torch takes along a dim; a device that has a part of the dim cannot tell from its part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["Bound"]


@final
@dataclass(frozen=True, slots=True)
class Bound:
    """An index of a call: what it may be, and what torch raises for others."""

    at: int
    """Which of the call's tensors the index is."""
    dim: int
    """The dim of the first tensor that it counts along."""
    size: int
    least: int = 0
    error: type[Exception] = IndexError
    called: int | None = None
    """The dim as torch's error calls it, where that differs: of several indices it counts only the dims they take."""
    words: str = "index {index} is out of bounds for dimension {dim} with size {size}"
    ignored: int | None = None
    """What it may be besides, where a call says so."""

    is_seen: bool = False
    """Whether torch looks wherever the op runs, since all of the dim is there: whoever runs it need not be told."""

    def text(self, index: int | None = None) -> str:
        """What the error says; None: which index it is, is not known.

        >>> Bound(1, 0, 4).text(7)
        'index 7 is out of bounds for dimension 0 with size 4'
        """
        dim = self.dim if self.called is None else self.called
        return self.words.format(index="of a tensor" if index is None else index, dim=dim, size=self.size)
