"""`Polynomial`: whole-number arithmetic on named sizes, kept in one normal form so that equal means equal.

A polynomial has whole coefficients over *atoms*: names, and floor divisions that do not come out even.
Remainders need no atom of their own, since `p % n` is `p - n * (p // n)`.

    rule                                                  name
    (n*q + r) // n              ->  q + r // n            coefficients of r lie in 0 .. n-1
    (g*p + k) // (g*n)          ->  (p + k//g) // n       common factors cancel
    (p // m + k) // n           ->  (p + k*m) // (m*n)    nested cuts are one cut
    (-p + k) // n               ->  -((p - k + n-1) // n) of the two, the smaller coefficients stay
    sum of (p + k) // n, k < n  ->  p                     the pieces of a whole are the whole

Equal normal forms mean equal sizes. The converse holds for everything that cutting and joining dims makes; floor
divisions of different multiples of one size, such as (2*b) // 5 and b // 5 + (b + 2) // 5, are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

__all__ = ["Atom", "Floor", "Monomial", "Polynomial"]

Atom = "str | Floor"
"""What a polynomial treats as a variable."""

Monomial = tuple[tuple["str | Floor", int], ...]
"""Atoms with their powers, sorted; the empty one belongs to the constant."""

LARGEST_CUT = 4096
"""Beyond this many pieces, sums of pieces are left as they are: folding costs time in proportion."""


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
    """A polynomial over sizes, in normal form.

    >>> b = Polynomial.symbol("b")
    >>> str((b * Polynomial.constant(4)).floordiv(Polynomial.constant(4)))
    'b'
    """

    __slots__ = ("__dict__", "_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        """Takes terms that are already folded; `Polynomial.of` folds them."""
        kept = [(monomial, factor) for monomial, factor in terms.items() if factor]
        kept.sort(key=lambda term: _order(term[0]))
        self.terms = tuple(kept)
        self._hash = hash(self.terms)

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

    @classmethod
    def of(cls, terms: Mapping[Monomial, int]) -> Polynomial:
        """The polynomial with these terms, sums of pieces folded."""
        return _folded(cls(terms))

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
        return Polynomial.of(_sum(self.terms, other.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other.scaled(-1)

    def __mul__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of(_sum((_times(a, b), x * y) for a, x in self.terms for b, y in other.terms))

    def scaled(self, factor: int) -> Polynomial:
        """The polynomial times a number."""
        return Polynomial.of({monomial: c * factor for monomial, c in self.terms})

    def floordiv(self, other: Polynomial) -> Polynomial:
        """The quotient, rounded down.

        >>> b, two = Polynomial.symbol("b"), Polynomial.constant(2)
        >>> str((b * two + Polynomial.constant(5)).floordiv(two))
        'b + 2'
        """
        if other.value is None:
            return _divided_by_sizes(self, other)
        if other.value == 0:
            raise ZeroDivisionError(f"cannot divide the size {self} by 0")
        if other.value < 0:
            return self.scaled(-1).floordiv(other.scaled(-1))
        return Polynomial.of(_divided(self, other.value))

    def subs(self, values: Mapping[str, Polynomial]) -> Polynomial:
        """The polynomial with names replaced."""
        if self.symbols.isdisjoint(values):
            return self
        total = Polynomial.constant(0)
        for monomial, factor in self.terms:
            product = Polynomial.constant(factor)
            for atom, power in monomial:
                if isinstance(atom, str):
                    replaced = values[atom] if atom in values else Polynomial.symbol(atom)
                else:
                    replaced = atom.numerator.subs(values).floordiv(atom.divisor.subs(values))
                for _ in range(power):
                    product = product * replaced
            total = total + product
        return total

    def least(self) -> int | None:
        """A number that this never falls below while every name is 0 or more, or `None` where none is known.

        >>> b, four = Polynomial.symbol("b"), Polynomial.constant(4)
        >>> (b - b.floordiv(four)).least()
        0
        """
        bounds = [_least(self, keep_sizes=True), _least(self, keep_sizes=False)]
        return max((bound for bound in bounds if bound is not None), default=None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Polynomial):
            return NotImplemented
        return self is other or (self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

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


def _sum(*parts: Iterable[tuple[Monomial, int]]) -> dict[Monomial, int]:
    total: dict[Monomial, int] = {}
    for terms in parts:
        for monomial, factor in terms:
            total[monomial] = total.get(monomial, 0) + factor
    return total


def _times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: (isinstance(item[0], Floor), str(item[0]))))


def _divided(numerator: Polynomial, n: int) -> dict[Monomial, int]:
    """The terms of a floor division by a positive number, not folded yet."""
    whole, rest = _split_off(numerator, n)
    # p // n == -((n-1 - p) // n): of the two, the lighter one becomes the atom.
    more, negated = _split_off(Polynomial.constant(n - 1) - rest, n)
    if _weight(negated) < _weight(rest):
        cut = _cut(negated, n).items()
        return _sum(whole.items(), ((m, -f) for m, f in more.items()), ((m, -f) for m, f in cut))
    return _sum(whole.items(), _cut(rest, n).items())


def _split_off(numerator: Polynomial, n: int) -> tuple[dict[Monomial, int], Polynomial]:
    """The numerator as `n * whole + rest`, with every factor of the rest in 0 .. n-1 and the rest folded."""
    whole: dict[Monomial, int] = {}
    seen: set[Polynomial] = set()
    while numerator not in seen:
        seen.add(numerator)
        whole = _sum(whole.items(), ((monomial, factor // n) for monomial, factor in numerator.terms))
        rest = Polynomial({monomial: factor % n for monomial, factor in numerator.terms})
        numerator = _folded(rest, modulus=n)
    return whole, rest


def _weight(rest: Polynomial) -> tuple[int, str]:
    return sum(factor for _, factor in rest.slope.terms), str(rest.slope)


def _cut(rest: Polynomial, n: int) -> dict[Monomial, int]:
    """The terms of `rest // n` for a rest that nothing can be split off."""
    if not rest.slope.terms:
        return {}
    common = math.gcd(n, *(factor for _, factor in rest.slope.terms))
    if common > 1:
        smaller = {monomial: factor // common for monomial, factor in rest.slope.terms}
        return _divided(Polynomial({**smaller, (): rest.offset // common}), n // common)
    match rest.slope.terms:
        case ((((Floor(inner, cut), 1),), 1),) if cut.value is not None:
            return _divided(inner + Polynomial.constant(rest.offset * cut.value), cut.value * n)
    return {((Floor(rest, Polynomial.constant(n)), 1),): 1}


def _divided_by_sizes(numerator: Polynomial, divisor: Polynomial) -> Polynomial:
    """Floor division by something with names in it: what divides evenly comes out, the rest stays one atom."""
    whole: dict[Monomial, int] = {}
    if len(divisor.terms) == 1:
        ((base, count),) = divisor.terms
        for monomial, factor in numerator.terms:
            powers = dict(monomial)
            if factor % count == 0 and all(powers.get(atom, 0) >= power for atom, power in base):
                left = {atom: power - dict(base).get(atom, 0) for atom, power in monomial}
                whole[tuple((atom, power) for atom, power in left.items() if power)] = factor // count
    elif numerator.terms:
        factor = numerator.terms[0][1] // divisor.terms[0][1]
        if numerator == divisor.scaled(factor):
            whole[()] = factor
    quotient = Polynomial.of(whole)
    rest = numerator - quotient * divisor
    if rest.value == 0:
        return quotient
    return quotient + Polynomial({((Floor(rest, divisor), 1),): 1})


@dataclass(frozen=True, slots=True)
class _Family:
    """The cuts `(base + k) // n` of one base, times one cofactor."""

    cofactor: Monomial
    base: Polynomial


def _families(polynomial: Polynomial) -> dict[_Family, dict[tuple[int, int], int]]:
    families: dict[_Family, dict[tuple[int, int], int]] = {}
    for monomial, factor in polynomial.terms:
        for at, (atom, power) in enumerate(monomial):
            if isinstance(atom, Floor) and atom.divisor.value is not None:
                left = ((atom, power - 1),) if power > 1 else ()
                family = _Family(monomial[:at] + left + monomial[at + 1 :], atom.numerator.slope)
                families.setdefault(family, {})[atom.divisor.value, atom.numerator.offset] = factor
    return families


def _folded(polynomial: Polynomial, modulus: int = 0) -> Polynomial:
    """Folds sums of pieces until nothing changes; with a modulus, multiples of it count as nothing."""
    seen = {polynomial}
    while True:
        for family, cuts in _families(polynomial).items():
            folded = _with_family_folded(polynomial, family, cuts, modulus)
            if folded not in seen:
                seen.add(folded)
                polynomial = folded
                break
        else:
            return polynomial


def _with_family_folded(
    polynomial: Polynomial, family: _Family, cuts: Mapping[tuple[int, int], int], modulus: int
) -> Polynomial:
    count = math.lcm(*(n for n, _ in cuts))
    if count > LARGEST_CUT or (len(cuts) == 1 and count != 2):
        return polynomial
    rest = dict(polynomial.terms)
    for (n, k), factor in cuts.items():
        atom = Floor(Polynomial({**dict(family.base.terms), (): k}), Polynomial.constant(n))
        rest = _sum(rest.items(), [(_times(family.cofactor, ((atom, 1),)), -factor)])

    def said(parts: Iterable[_Part]) -> Polynomial:
        total = rest
        for n, k, factor in parts:
            cut = _divided(Polynomial({**dict(family.base.terms), (): k}), n)
            total = _sum(total.items(), ((_times(family.cofactor, m), f * factor) for m, f in cut.items()))
        return Polynomial(total)

    return min((said(parts) for parts in _ways_to_say(count, cuts, modulus)), key=lambda way: _length(way, modulus))


_Part = tuple[int, int, int]
"""A piece and how often it counts: `n, k, factor` for `factor * ((base + k) // n)`."""


def _length(polynomial: Polynomial, modulus: int) -> tuple[int, int, int, str]:
    factors = [factor % modulus if modulus else factor for _, factor in polynomial.terms]
    return sum(map(bool, factors)), sum(map(abs, factors)), sum(f < 0 for f in factors), str(polynomial)


def _ways_to_say(count: int, cuts: Mapping[tuple[int, int], int], modulus: int) -> Iterator[list[_Part]]:
    """The same sum of pieces with the whole taken out as often as one of its pieces counts, once for each piece."""

    def reduced(factors: Mapping[int, int]) -> dict[int, int]:
        return {k: factor % modulus if modulus else factor for k, factor in factors.items()}

    # Every cut in terms of the finest one: (p + k) // n is the sum of (p + k + j*n) // count for j < count/n.
    fine = dict.fromkeys(range(count), 0)
    for (n, k), factor in cuts.items():
        for at in range(k, count, n):
            fine[at] += factor
    coarse_count, coarse = _coarsened(count, reduced(fine))
    dropped = [(count, k, factor - factor % modulus) for k, factor in fine.items()] if modulus else []
    if coarse_count == 1:
        yield [(1, 0, coarse[0]), *dropped]
        return
    for shift in sorted(set(coarse.values())):
        exact = {k: factor - shift for k, factor in coarse.items()}
        left = reduced(exact)
        more = [(coarse_count, k, exact[k] - left[k]) for k in exact]
        pieces = _joined(coarse_count, {k: factor for k, factor in left.items() if factor})
        yield [part for part in [(1, 0, shift), *pieces, *dropped, *more] if part[2]]


def _coarsened(count: int, factors: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """The fewest pieces in which this sum of pieces can be said."""
    factors = dict(factors)
    for prime in _primes(count):
        while count % prime == 0:
            period = count // prime
            if any(factors[(k + period) % count] != factor for k, factor in factors.items()):
                break
            factors = {k: factors[k] for k in range(period)}
            count = period
    return count, factors


def _joined(count: int, factors: dict[int, int]) -> list[_Part]:
    """Pieces with every full set of neighbours joined into the larger piece they make up."""
    parts: list[_Part] = []
    for prime in _primes(count):
        period = count // prime
        for k in sorted(k for k in factors if k < period):
            members = [k + j * period for j in range(prime)]
            values = {factors.get(member, 0) for member in members}
            if len(values) == 1 and period > 1:
                (factor,) = values
                parts.append((period, k, factor))
                for member in members:
                    del factors[member]
    return parts + [(count, k, factor) for k, factor in factors.items()]


def _primes(n: int) -> list[int]:
    found, p = [], 2
    while p * p <= n:
        if n % p == 0:
            found.append(p)
            while n % p == 0:
                n //= p
        p += 1
    return [*found, n] if n > 1 else found


def _never_negative(monomial: Monomial) -> bool:
    return all(isinstance(atom, str) or power % 2 == 0 or _is_size(atom) for atom, power in monomial)


def _is_size(atom: Floor) -> bool:
    numerator, divisor = atom.numerator.least(), atom.divisor.least()
    return numerator is not None and divisor is not None and numerator >= 0 and divisor >= 0


def _least(bound: Polynomial, *, keep_sizes: bool) -> int | None:
    """A lower bound, found by replacing floor divisions with what they cannot pass; see `Polynomial.least`."""
    scale = 1
    while (step := _without_one_floor(bound, keep_sizes)) is not None:
        bound, factor = step
        scale *= factor
    if any(factor < 0 or not _never_negative(monomial) for monomial, factor in bound.terms if monomial):
        return None
    return -(-bound.offset // scale)


def _without_one_floor(polynomial: Polynomial, keep_sizes: bool) -> tuple[Polynomial, int] | None:
    """A lower bound of `n` times the polynomial that has one floor division less, and that `n`."""
    for monomial, factor in polynomial.terms:
        match monomial:
            case ((Floor(numerator, divisor), 1),) if divisor.value is not None:
                if keep_sizes and factor > 0 and _never_negative(monomial):
                    continue
                n = divisor.value
                # p/n - (n-1)/n <= p // n <= p/n
                slack = 0 if factor < 0 else (n - 1) * factor
                rest = ((m, f * n) for m, f in polynomial.terms if m != monomial)
                return Polynomial(_sum(rest, ((m, f * factor) for m, f in numerator.terms), [((), -slack)])), n
    return None
