"""`Dim`: the size of one tensor dim, a number, a name, or arithmetic on names."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from keyword import iskeyword
from typing import SupportsIndex, TypeVar, final

from .polynomial import Floor, Polynomial

__all__ = ["AlgebraicDim", "Dim", "DimLike", "StaticDim", "SymbolicDim", "piece_size", "whole_size"]


class Dim:
    """The size of one tensor dim: a `StaticDim`, a `SymbolicDim` or an `AlgebraicDim`.

    `Dim(x)` and `Dim.of(x)` take a whole number, a name, an expression in names, or a `Dim`.
    Two dims are equal when they are the same size whatever the names stand for (0 or more).

    >>> batch = Dim("batch")
    >>> batch * 4 // 4 == batch, batch + batch == 2 * batch, batch - batch == 0
    (True, True, True)
    >>> Dim(8), batch, batch // 4
    (StaticDim(8), SymbolicDim('batch'), AlgebraicDim('batch // 4'))
    """

    __slots__ = ("_polynomial",)

    _polynomial: Polynomial

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
        return _dim(_parsed(value) if isinstance(value, str) else Polynomial.constant(_number(value)))

    @property
    def is_static(self) -> bool:
        """Whether the size is a number.

        >>> Dim(8).is_static, Dim("batch").is_static
        (True, False)
        """
        return self._polynomial.value is not None

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
        if self.symbols.isdisjoint(values):
            return self
        return _dim(self._polynomial.subs({str(name): Dim.of(value)._polynomial for name, value in values.items()}))

    def __add__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(self, other, Polynomial.__add__)

    def __radd__(self, other: SupportsIndex) -> Dim:
        return _combined(self, other, lambda a, b: b + a)

    def __sub__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(self, other, Polynomial.__sub__)

    def __rsub__(self, other: SupportsIndex) -> Dim:
        return _combined(self, other, lambda a, b: b - a)

    def __mul__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(self, other, Polynomial.__mul__)

    def __rmul__(self, other: SupportsIndex) -> Dim:
        return _combined(self, other, lambda a, b: b * a)

    def __floordiv__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(self, other, Polynomial.floordiv)

    def __rfloordiv__(self, other: SupportsIndex) -> Dim:
        return _combined(self, other, lambda a, b: b.floordiv(a))

    def __mod__(self, other: Dim | SupportsIndex) -> Dim:
        return _combined(self, other, _remainder)

    def __rmod__(self, other: SupportsIndex) -> Dim:
        return _combined(self, other, lambda a, b: _remainder(b, a))

    def __neg__(self) -> Dim:
        return _dim(self._polynomial.scaled(-1))

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
            return self._polynomial == other._polynomial
        if isinstance(other, str):
            return self._polynomial.name == other
        if isinstance(other, int):
            return self._polynomial.value == other
        return NotImplemented

    def __hash__(self) -> int:
        # Equal to the number or the name, so it must hash like them.
        if self._polynomial.value is not None:
            return hash(self._polynomial.value)
        return hash(self._polynomial.name or self._polynomial)

    def __bool__(self) -> bool:
        return self > 0

    def __int__(self) -> int:
        if self._polynomial.value is None:
            names = ", ".join(f"{name!r}: 8" for name in sorted(self.symbols))
            raise TypeError(
                f"the size {self} is no number yet: give its names sizes first, for instance .subs({{{names}}})"
            )
        return self._polynomial.value

    def __index__(self) -> int:
        return int(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot change ({name!r} was set): make a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot change ({name!r} was deleted): make a new one")

    def __reduce__(self) -> tuple[Callable[[DimLike], Dim], tuple[DimLike]]:
        return Dim.of, (self._polynomial.value if self._polynomial.value is not None else str(self),)

    def __str__(self) -> str:
        return str(self._polynomial)

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
        return _made(cls, Polynomial.constant(number))

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
        if not _is_name(name):
            raise ValueError(
                f"the name of a dim is letters, digits and _, not starting with a digit, but got {name!r}: "
                "use a name such as 'batch', or Dim.of(text) for an expression"
            )
        return _made(cls, Polynomial.symbol(name))

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
        folded = _parsed(expression)
        if folded.value is not None or folded.name is not None:
            raise ValueError(f"{expression!r} is {folded}, which needs no AlgebraicDim: use Dim.of({str(folded)!r})")
        return _made(cls, folded)


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
            return _dim(uncut.floordiv(Polynomial.constant(outer)))
    return size * count


_D = TypeVar("_D", bound=Dim)


def _made(cls: type[_D], polynomial: Polynomial) -> _D:
    made = object.__new__(cls)
    object.__setattr__(made, "_polynomial", polynomial)
    return made


def _dim(polynomial: Polynomial) -> Dim:
    if polynomial.value is not None:
        return StaticDim(polynomial.value)
    return _made(SymbolicDim if polynomial.name is not None else AlgebraicDim, polynomial)


def _number(value: object) -> int:
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    raise TypeError(
        f"a dim is a whole number, a name or a Dim, but got {value!r}: use for instance 8, 'batch' or Dim('batch') // 4"
    )


def _operand(value: object) -> Polynomial | None:
    if isinstance(value, Dim):
        return value._polynomial
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return Polynomial.constant(operator.index(value))
    return None


def _combined(dim: Dim, other: object, how: Callable[[Polynomial, Polynomial], Polynomial]) -> Dim:
    operand = _operand(other)
    return NotImplemented if operand is None else _dim(how(dim._polynomial, operand))


def _remainder(a: Polynomial, b: Polynomial) -> Polynomial:
    return a - b * a.floordiv(b)


# For each comparison of a and b: whether a - b or b - a decides it, and from which difference on it is true.
_COMPARISONS = {">": (1, 1), ">=": (1, 0), "<": (-1, 1), "<=": (-1, 0)}


def _decided(dim: Dim, sign: str, other: object) -> bool:
    operand = _operand(other)
    if operand is None:
        # The comparison's own way to say that it does not apply, which type checkers do not know outside of it.
        return NotImplemented  # type: ignore[no-any-return]
    direction, needed = _COMPARISONS[sign]
    difference = (dim._polynomial - operand).scaled(direction)
    least, negated_least = difference.least(), difference.scaled(-1).least()
    if least is not None and least >= needed:
        return True
    if negated_least is not None and negated_least >= 1 - needed:
        return False
    names = ", ".join(sorted(difference.symbols))
    raise ValueError(f"whether {dim} {sign} {operand} depends on {names}: give it a size first, with .subs(...)")


_OPERATORS: Mapping[type[ast.operator], Callable[[Polynomial, Polynomial], Polynomial]] = {
    ast.Add: Polynomial.__add__,
    ast.Sub: Polynomial.__sub__,
    ast.Mult: Polynomial.__mul__,
    ast.FloorDiv: Polynomial.floordiv,
    ast.Mod: _remainder,
}


def _is_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


def _parsed(text: str) -> Polynomial:
    if _is_name(text):
        return Polynomial.symbol(text)
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, _NotAnExpressionError):
        raise ValueError(
            f"a dim is written as a name or as names and whole numbers joined by + - * // %, but got {text!r}: "
            "use for instance 'batch' or 'batch // 4 + 1'"
        ) from None


class _NotAnExpressionError(Exception):
    """The text is Python, but not arithmetic on sizes."""


def _evaluated(node: ast.expr) -> Polynomial:
    match node:
        case ast.Name(name):
            return Polynomial.symbol(name)
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return Polynomial.constant(value)
        case ast.UnaryOp(ast.USub(), operand):
            return _evaluated(operand).scaled(-1)
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_evaluated(left), _evaluated(right))
    raise _NotAnExpressionError
