"""`Polynomial`: sums of products of sizes, with whole factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

from ...caches import cached

__all__ = ["Floor", "Monomial", "Polynomial", "product", "total"]

Monomial = tuple[tuple["str | Floor", int], ...]
"""Atoms with their powers, sorted; the empty one belongs to the constant."""


@final
@dataclass(frozen=True, slots=True)
class Floor:
    """A floor division that stays one: `numerator // divisor`.

    >>> str(Floor(Polynomial.symbol("b"), Polynomial.constant(4)))
    'b // 4'
    """

    numerator: Polynomial
    divisor: Polynomial

    def __str__(self) -> str:
        return f"{self.numerator._as_operand()} // {self.divisor._as_operand()}"


@final
class Polynomial:
    """A polynomial with whole factors over *atoms*: names, and floor divisions that do not come out even.

    >>> b, two = Polynomial.symbol("b"), Polynomial.constant(2)
    >>> str((b + two) * (b - two))
    'b * b - 4'
    """

    __slots__ = ("__dict__", "_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        kept = [(monomial, factor) for monomial, factor in terms.items() if factor]
        kept.sort(key=lambda term: _order(term[0]))
        object.__setattr__(self, "terms", tuple(kept))
        object.__setattr__(self, "_hash", hash(self.terms))

    @classmethod
    def constant(cls, value: int) -> Polynomial:
        """A number.

        >>> str(Polynomial.constant(3))
        '3'
        """
        return cls({(): value})

    @classmethod
    def symbol(cls, name: str) -> Polynomial:
        """A named size.

        >>> str(Polynomial.symbol("batch"))
        'batch'
        """
        return cls({((name, 1),): 1})

    @cached_property
    def value(self) -> int | None:
        """The number this is, or `None` where it depends on a name."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () else None

    @cached_property
    def name(self) -> str | None:
        """The name this is, or `None` where it is anything else."""
        match self.terms:
            case ((((str(name), 1),), 1),):
                return name
        return None

    @cached_property
    def offset(self) -> int:
        """The constant term."""
        return dict(self.terms).get((), 0)

    @cached_property
    def slope(self) -> Polynomial:
        """Everything but the constant term."""
        return Polynomial({monomial: factor for monomial, factor in self.terms if monomial})

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names this depends on."""
        return frozenset(
            name
            for monomial, _ in self.terms
            for atom, _ in monomial
            for name in ((atom,) if isinstance(atom, str) else atom.numerator.symbols | atom.divisor.symbols)
        )

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial(total(self.terms, other.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other.scaled(-1)

    def __mul__(self, other: Polynomial) -> Polynomial:
        return Polynomial(total((product(a, b), x * y) for a, x in self.terms for b, y in other.terms))

    def scaled(self, factor: int) -> Polynomial:
        """The polynomial times a number."""
        return Polynomial({monomial: c * factor for monomial, c in self.terms})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Polynomial):
            return NotImplemented
        return self is other or (self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Polynomial cannot change ({name!r} was set): make a new one")

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        # A positive term first, so that no text starts with a minus unless it must.
        terms = sorted(self.terms, key=lambda term: term[1] < 0) if self.terms[0][1] < 0 else self.terms
        text = "".join(f" {'-' if factor < 0 else '+'} {_term(monomial, abs(factor))}" for monomial, factor in terms)
        if text.startswith(" + "):
            return text[3:]
        # Python reads -b // 4 as (-b) // 4.
        first = _term(terms[0][0], -terms[0][1])
        return f"-({first}){text[3 + len(first) :]}" if "//" in first else f"-{text[3:]}"

    def _as_operand(self) -> str:
        simple = self.name is not None or (self.value is not None and self.value >= 0)
        return str(self) if simple else f"({self})"


@cached(4096)
def _order(monomial: Monomial) -> tuple[int, str]:
    return -sum(power for _, power in monomial), _term(monomial, 1)


def _term(monomial: Monomial, factor: int) -> str:
    if not monomial:
        return str(factor)
    alone = len(monomial) == 1 and monomial[0][1] == 1 and factor == 1
    names = [
        str(atom) if isinstance(atom, str) or alone else f"({atom})" for atom, power in monomial for _ in range(power)
    ]
    return " * ".join(names if factor == 1 else [*names, str(factor)])


def total(*parts: Iterable[tuple[Monomial, int]]) -> dict[Monomial, int]:
    """The sum of terms.

    >>> total([((), 1)], [((), 2)])
    {(): 3}
    """
    summed: dict[Monomial, int] = {}
    for terms in parts:
        for monomial, factor in terms:
            summed[monomial] = summed.get(monomial, 0) + factor
    return summed


def product(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials.

    >>> product((("a", 1),), (("a", 1), ("b", 1)))
    (('a', 2), ('b', 1))
    """
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: (isinstance(item[0], Floor), str(item[0]))))
