"""`Dim`: the size of one tensor dim, a number, a name, or arithmetic on names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import SupportsIndex, TypeGuard, TypeVar, final

from ...frozen import Unchanging
from .expression import ARITHMETIC, is_name, parsed
from .floor_division import divided, folded, substituted
from .lower_bound import least
from .polynomial import Floor, Polynomial

__all__ = ["AlgebraicDim", "Dim", "DimLike", "StaticDim", "SymbolicDim", "piece_size", "whole_size"]


class Dim(Unchanging):
    """The size of one tensor dim: a `StaticDim`, a `SymbolicDim` or an `AlgebraicDim`.

    `Dim(x)` and `Dim.of(x)` take a whole number, a name, an expression in names, or a `Dim`.
    Two dims are equal when they are the same size whatever the names stand for (0 or more).

    >>> batch = Dim("batch")
    >>> batch * 4 // 4 == batch, batch + batch == 2 * batch, batch - batch == 0
    (True, True, True)
    >>> Dim(8), batch, batch // 4
    (StaticDim(8), SymbolicDim('batch'), AlgebraicDim('batch // 4'))
    """

    __slots__ = ("_said", "_size")

    _size: int | None
    _said: Polynomial | None  # not made for a number until it meets a name

    def __new__(cls, value: DimLike) -> Dim:
        return Dim.of(value)

    @staticmethod
    def of(value: DimLike) -> Dim:
        """The dim that a number, a name, an expression or a dim stands for.

        >>> Dim.of("batch * 2 + 1").subs({"batch": 3})
        StaticDim(7)
        """
        if isinstance(value, Dim):
            return value
        return _dim(parsed(value)) if isinstance(value, str) else StaticDim(value)

    @property
    def is_static(self) -> bool:
        """Whether the size is a number.

        >>> Dim(8).is_static, Dim("batch").is_static
        (True, False)
        """
        return self._size is not None

    @property
    def symbols(self) -> frozenset[str]:
        """The names the size depends on.

        >>> sorted(Dim("batch * seq + 1").symbols)
        ['batch', 'seq']
        """
        return self._polynomial.symbols

    def subs(self, values: Mapping[str, DimLike]) -> Dim:
        """The dim with names replaced by sizes; names it does not depend on are ignored.

        >>> Dim("batch // 4").subs({"batch": 10})
        StaticDim(2)
        """
        if self._size is not None or self.symbols.isdisjoint(values):
            return self
        sizes = {str(name): Dim.of(value)._polynomial for name, value in values.items()}
        return _dim(substituted(self._polynomial, sizes))

    @property
    def _polynomial(self) -> Polynomial:
        return Polynomial.constant(self._size or 0) if self._said is None else self._said

    def __add__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(operator.add, self, other)

    def __radd__(self, other: SupportsIndex) -> Dim:
        return _combined(operator.add, other, self)

    def __sub__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(operator.sub, self, other)

    def __rsub__(self, other: SupportsIndex) -> Dim:
        return _combined(operator.sub, other, self)

    def __mul__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(operator.mul, self, other)

    def __rmul__(self, other: SupportsIndex) -> Dim:
        return _combined(operator.mul, other, self)

    def __floordiv__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(operator.floordiv, self, other)

    def __rfloordiv__(self, other: SupportsIndex) -> Dim:
        return _combined(operator.floordiv, other, self)

    def __mod__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(operator.mod, self, other)

    def __rmod__(self, other: SupportsIndex) -> Dim:
        return _combined(operator.mod, other, self)

    def __neg__(self) -> Dim:
        return _combined(operator.sub, 0, self)

    def __lt__(self, other: Dim | SupportsIndex) -> bool:
        return _decided(self, "<", other)

    def __le__(self, other: Dim | SupportsIndex) -> bool:
        return _decided(self, "<=", other)

    def __gt__(self, other: Dim | SupportsIndex) -> bool:
        return _decided(self, ">", other)

    def __ge__(self, other: Dim | SupportsIndex) -> bool:
        return _decided(self, ">=", other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self._size == other._size and self._said == other._said
        if isinstance(other, str):
            return self._said is not None and self._said.name == other
        if isinstance(other, int):
            return self._size == other
        return NotImplemented

    def __hash__(self) -> int:
        # Equal to the number or the name, so it must hash like them.
        return hash(self._size) if self._said is None else hash(self._said.name or self._said)

    def __bool__(self) -> bool:
        return self > 0

    def __int__(self) -> int:
        if self._size is None:
            names = ", ".join(f"{name!r}: 8" for name in sorted(self.symbols))
            raise TypeError(
                f"the size {self} is no number yet: give its names sizes first, for instance .subs({{{names}}})"
            )
        return self._size

    def __index__(self) -> int:
        return int(self)

    def __reduce__(self) -> tuple[Callable[[DimLike], Dim], tuple[DimLike]]:
        return Dim.of, (str(self) if self._size is None else self._size,)

    def __str__(self) -> str:
        return str(self._size if self._said is None else self._said)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


@final
class StaticDim(Dim):
    """A size that is a number, 0 or more.

    >>> StaticDim(8) + 2, int(StaticDim(8)), StaticDim(8) == 8
    (StaticDim(10), 8, True)
    """

    __slots__ = ()

    def __new__(cls, size: SupportsIndex) -> StaticDim:
        number = _number(size)
        if number < 0:
            raise ValueError(f"the size of a dim is 0 or more, but got {number}: drop the minus, or take out the dim")
        return _made(cls, number, None)

    def __repr__(self) -> str:
        return f"StaticDim({self})"


@final
class SymbolicDim(Dim):
    """A size that has a name and no number yet, 0 or more.

    >>> SymbolicDim("batch"), SymbolicDim("batch").name, SymbolicDim("batch") == "batch"
    (SymbolicDim('batch'), 'batch', True)
    """

    __slots__ = ()

    def __new__(cls, name: str) -> SymbolicDim:
        if not isinstance(name, str):
            raise TypeError(f"the name of a dim is a string, but got {name!r}: use SymbolicDim('batch')")
        if not is_name(name):
            raise ValueError(
                f"the name of a dim is letters, digits and _, not starting with a digit, but got {name!r}: "
                "use a name such as 'batch', or Dim.of(text) for an expression"
            )
        return _made(cls, None, Polynomial.symbol(name))

    @property
    def name(self) -> str:
        """The name.

        >>> SymbolicDim("batch").name
        'batch'
        """
        return str(self)


@final
class AlgebraicDim(Dim):
    """A size that is arithmetic on names.

    >>> AlgebraicDim("batch // 4 + 1"), SymbolicDim("batch") * 2
    (AlgebraicDim('batch // 4 + 1'), AlgebraicDim('batch * 2'))
    """

    __slots__ = ()

    def __new__(cls, expression: str) -> AlgebraicDim:
        if not isinstance(expression, str):
            raise TypeError(
                f"an AlgebraicDim is written as text, but got {expression!r}: use AlgebraicDim('batch // 4')"
            )
        said = parsed(expression)
        if said.value is not None or said.name is not None:
            raise ValueError(f"{expression!r} is {said}, which needs no AlgebraicDim: use Dim.of({str(said)!r})")
        return _made(cls, None, said)


DimLike = Dim | SupportsIndex | str
"""What stands for a dim: a number, a name or expression, or a `Dim`."""


def piece_size(size: DimLike, count: int, index: int) -> Dim:
    """The size of piece `index` when a dim is cut into `count` balanced pieces; the pieces add up to the dim.

    >>> [int(piece_size(10, 4, i)) for i in range(4)]
    [3, 3, 2, 2]
    >>> piece_size("batch", 4, 0), sum(piece_size("batch", 4, i) for i in range(4))
    (AlgebraicDim('(batch + 3) // 4'), SymbolicDim('batch'))
    """
    if not 0 <= index < count:
        raise ValueError(f"piece {index} of {count} does not exist: pieces are numbered 0 to count - 1")
    # The pieces of q*n + r are q + 1 for the first r and q for the others, which is this quotient.
    return (Dim.of(size) + (count - 1 - index)) // count


def whole_size(piece: DimLike, count: int) -> Dim:
    """The dim whose piece 0 of `count` is this one, as far as one piece tells: the largest that can be.

    >>> whole_size(3, 4), whole_size("(batch + 3) // 4", 4)
    (StaticDim(12), SymbolicDim('batch'))
    """
    size = Dim.of(piece)
    match size._polynomial.slope.terms:
        case ((((Floor(numerator, divisor), 1),), 1),) if divisor.value is not None and divisor.value % count == 0:
            outer = divisor.value // count
            uncut = numerator + Polynomial.constant(divisor.value * size._polynomial.offset - outer * (count - 1))
            return _dim(divided(uncut, Polynomial.constant(outer)))
    return size * count


_D = TypeVar("_D", bound=Dim)


def _made(cls: type[_D], size: int | None, said: Polynomial | None) -> _D:
    made = object.__new__(cls)
    object.__setattr__(made, "_size", size)
    object.__setattr__(made, "_said", said)
    return made


def _dim(polynomial: Polynomial) -> Dim:
    if polynomial.value is not None:
        return StaticDim(polynomial.value)
    return _made(SymbolicDim if polynomial.name is not None else AlgebraicDim, None, polynomial)


def _is_number(value: object) -> TypeGuard[SupportsIndex]:
    # The plain type first: asking for a protocol takes microseconds, and nearly every size is a plain number.
    return type(value) is int or (hasattr(type(value), "__index__") and not isinstance(value, bool | Dim))


def _number(value: object) -> int:
    if _is_number(value):
        return operator.index(value)
    raise TypeError(
        f"a dim is a whole number, a name or a Dim, but got {value!r}: use for instance 8, 'batch' or Dim('batch') // 4"
    )


def _operand(value: object) -> int | Polynomial | None:
    if isinstance(value, Dim):
        return value._polynomial if value._size is None else value._size
    return operator.index(value) if _is_number(value) else None


def _polynomial(operand: int | Polynomial) -> Polynomial:
    return Polynomial.constant(operand) if isinstance(operand, int) else operand


def _combined(how: Callable[[int, int], int], left: object, right: object) -> Dim:
    a, b = _operand(left), _operand(right)
    if a is None or b is None:
        # An operator's own way to say that it does not apply, which type checkers do not know outside of it.
        return NotImplemented  # type: ignore[no-any-return]
    if isinstance(a, int) and isinstance(b, int) and b:
        return StaticDim(how(a, b))
    return _dim(ARITHMETIC[how](_polynomial(a), _polynomial(b)))


# For each comparison of a and b: whether a - b or b - a decides it, and from which difference on it is true.
_COMPARISONS = {">": (1, 1), ">=": (1, 0), "<": (-1, 1), "<=": (-1, 0)}


def _decided(dim: Dim, sign: str, other: object) -> bool:
    operand = _operand(other)
    if operand is None:
        return NotImplemented  # type: ignore[no-any-return]
    direction, needed = _COMPARISONS[sign]
    difference = folded((dim._polynomial - _polynomial(operand)).scaled(direction))
    low, negated_low = least(difference), least(folded(difference.scaled(-1)))
    if low is not None and low >= needed:
        return True
    if negated_low is not None and negated_low >= 1 - needed:
        return False
    names = ", ".join(sorted(difference.symbols))
    raise ValueError(f"whether {dim} {sign} {operand} depends on {names}: give it a size first, with .subs(...)")
