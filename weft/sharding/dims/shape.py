"""`Shape`: the sizes of a tensor, one `Dim` per tensor dim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import SupportsIndex, final, overload

from .dim import Dim, DimLike, StaticDim

__all__ = ["Shape", "ShapeLike"]


@final
class Shape(tuple[Dim, ...]):
    """The sizes of a tensor: a tuple of dims, equal to the tuple or list of the same numbers or names.

    >>> shape = Shape([2, "batch", 4])
    >>> shape.rank, shape.numel(), shape.subs({"batch": 3}) == (2, 3, 4)
    (3, AlgebraicDim('batch * 8'), True)
    """

    __slots__ = ()

    def __new__(cls, dims: ShapeLike = ()) -> Shape:
        if isinstance(dims, Shape):
            return dims
        if isinstance(dims, (str, Dim)) or not isinstance(dims, Iterable):
            raise TypeError(f"a shape is a sequence of dims, but got {dims!r}: use Shape([{_shown(dims)}])")
        return super().__new__(cls, [Dim.of(dim) for dim in dims])

    @property
    def rank(self) -> int:
        """How many dims there are.

        >>> Shape([2, 3]).rank
        2
        """
        return len(self)

    @property
    def is_static(self) -> bool:
        """Whether every size is a number.

        >>> Shape([2, 3]).is_static, Shape([2, "batch"]).is_static
        (True, False)
        """
        return all(dim.is_static for dim in self)

    @property
    def symbols(self) -> frozenset[str]:
        """The names the sizes depend on.

        >>> sorted(Shape(["batch", "seq", 8]).symbols)
        ['batch', 'seq']
        """
        return frozenset().union(*(dim.symbols for dim in self))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes as plain numbers; all of them must be.

        >>> Shape([2, 3]).sizes
        (2, 3)
        """
        return tuple(int(dim) for dim in self)

    def numel(self) -> Dim:
        """How many elements a tensor of this shape has.

        >>> Shape([2, 3]).numel(), Shape([]).numel()
        (StaticDim(6), StaticDim(1))
        """
        count: Dim = StaticDim(1)
        for dim in self:
            count = count * dim
        return count

    def subs(self, values: Mapping[str, DimLike]) -> Shape:
        """The shape with names replaced by sizes.

        >>> Shape(["batch", "batch // 4"]).subs({"batch": 8})
        Shape([8, 2])
        """
        return Shape(dim.subs(values) for dim in self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Dim: ...

    @overload
    def __getitem__(self, index: slice) -> Shape: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Dim | Shape:
        if isinstance(index, slice):
            return Shape(super().__getitem__(index))
        return super().__getitem__(index)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __add__(self, other: Iterable[DimLike]) -> Shape:  # type: ignore[override]
        return Shape([*self, *other]) if isinstance(other, (tuple, list)) else NotImplemented

    def __radd__(self, other: Iterable[DimLike]) -> Shape:
        return Shape([*other, *self]) if isinstance(other, (tuple, list)) else NotImplemented

    def __getnewargs__(self) -> tuple[tuple[Dim, ...]]:
        return (tuple(self),)

    def __repr__(self) -> str:
        return f"Shape([{', '.join(map(_shown, self))}])"

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self))}]"


ShapeLike = Iterable[DimLike]
"""What stands for a shape: numbers, names, expressions and dims."""


def _shown(dim: object) -> str:
    return str(dim) if isinstance(dim, StaticDim) else repr(str(dim) if isinstance(dim, Dim) else dim)
