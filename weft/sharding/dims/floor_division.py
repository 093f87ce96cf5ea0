"""Floor division of sizes, and the normal form that makes equal sizes equal polynomials.

    rule                                                  why it holds
    (n*q + r) // n              ->  q + r // n            factors of r lie in 0 .. n-1
    (g*p + k) // (g*n)          ->  (p + k//g) // n       common factors cancel
    (p // m + k) // n           ->  (p + k*m) // (m*n)    nested cuts are one cut
    (-p + k) // n               ->  -((p - k + n-1) // n) of the two, the smaller factors stay
    sum of (p + k) // n, k < n  ->  p                     the pieces of a whole are the whole

Remainders need no rule of their own, since `p % n` is `p - n * (p // n)`. Equal normal forms mean equal sizes. The
converse holds for everything that cutting and joining dims makes; floor divisions of different multiples of one size,
such as (2*b) // 5 and b // 5 + (b + 2) // 5, are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...caches import cached
from .polynomial import Floor, Monomial, Polynomial, product, total

__all__ = ["divided", "folded", "substituted"]

LARGEST_CUT = 4096
"""Beyond this many pieces, sums of pieces are left as they are: folding costs time in proportion."""


def divided(numerator: Polynomial, divisor: Polynomial) -> Polynomial:
    """The quotient, rounded down, in normal form.

    >>> b, two = Polynomial.symbol("b"), Polynomial.constant(2)
    >>> str(divided(b * two + Polynomial.constant(5), two))
    'b + 2'
    """
    if divisor.value is None:
        return _by_sizes(numerator, divisor)
    if divisor.value == 0:
        raise ZeroDivisionError(f"cannot divide the size {numerator} by 0: use a divisor of 1 or more")
    if divisor.value < 0:
        return divided(numerator.scaled(-1), divisor.scaled(-1))
    return folded(Polynomial(_divided(numerator, divisor.value)))


def substituted(polynomial: Polynomial, values: Mapping[str, Polynomial]) -> Polynomial:
    """The polynomial with names replaced, in normal form.

    >>> b = Polynomial.symbol("b")
    >>> str(substituted(divided(b, Polynomial.constant(4)), {"b": Polynomial.constant(10)}))
    '2'
    """
    if polynomial.symbols.isdisjoint(values):
        return polynomial
    result = Polynomial.constant(0)
    for monomial, factor in polynomial.terms:
        term = Polynomial.constant(factor)
        for atom, power in monomial:
            if isinstance(atom, str):
                replaced = values[atom] if atom in values else Polynomial.symbol(atom)
            else:
                replaced = divided(substituted(atom.numerator, values), substituted(atom.divisor, values))
            for _ in range(power):
                term = term * replaced
        result = result + term
    return folded(result)


@cached(4096)
def _divided(numerator: Polynomial, n: int) -> Mapping[Monomial, int]:
    """The terms of a floor division by a positive number, not folded yet."""
    whole, rest = _split_off(numerator, n)
    # p // n == -((n-1 - p) // n): of the two, the lighter one becomes the atom.
    more, negated = _split_off(Polynomial.constant(n - 1) - rest, n)
    if _weight(negated) < _weight(rest):
        cut = _cut(negated, n).items()
        return total(whole.items(), ((m, -f) for m, f in more.items()), ((m, -f) for m, f in cut))
    return total(whole.items(), _cut(rest, n).items())


def _split_off(numerator: Polynomial, n: int) -> tuple[dict[Monomial, int], Polynomial]:
    """The numerator as `n * whole + rest`, with every factor of the rest in 0 .. n-1 and the rest folded."""
    whole: dict[Monomial, int] = {}
    seen: set[Polynomial] = set()
    while numerator not in seen:
        seen.add(numerator)
        whole = total(whole.items(), ((monomial, factor // n) for monomial, factor in numerator.terms))
        rest = Polynomial({monomial: factor % n for monomial, factor in numerator.terms})
        numerator = folded(rest, modulus=n)
    return whole, rest


def _weight(rest: Polynomial) -> tuple[int, str]:
    return sum(factor for _, factor in rest.slope.terms), str(rest.slope)


def _cut(rest: Polynomial, n: int) -> Mapping[Monomial, int]:
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


def _by_sizes(numerator: Polynomial, divisor: Polynomial) -> Polynomial:
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
    quotient = Polynomial(whole)
    rest = folded(numerator - quotient * divisor)
    if rest.value == 0:
        return folded(quotient)
    return folded(quotient + Polynomial({((Floor(rest, divisor), 1),): 1}))


@dataclass(frozen=True, slots=True)
class _CutFamily:
    """The cuts `(base + k) // n` of one base, times one cofactor."""

    cofactor: Monomial
    base: Polynomial


def _families(polynomial: Polynomial) -> dict[_CutFamily, dict[tuple[int, int], int]]:
    families: dict[_CutFamily, dict[tuple[int, int], int]] = {}
    for monomial, factor in polynomial.terms:
        for at, (atom, power) in enumerate(monomial):
            if isinstance(atom, Floor) and atom.divisor.value is not None:
                left = ((atom, power - 1),) if power > 1 else ()
                family = _CutFamily(monomial[:at] + left + monomial[at + 1 :], atom.numerator.slope)
                families.setdefault(family, {})[atom.divisor.value, atom.numerator.offset] = factor
    return families


def folded(polynomial: Polynomial, modulus: int = 0) -> Polynomial:
    """The polynomial with sums of pieces folded; with a modulus, multiples of it count as nothing.

    >>> b, one, two = Polynomial.symbol("b"), Polynomial.constant(1), Polynomial.constant(2)
    >>> str(folded(divided(b, two) + divided(b + one, two)))
    'b'
    """
    seen = {polynomial}
    while True:
        for family, cuts in _families(polynomial).items():
            shorter = _with_family_folded(polynomial, family, cuts, modulus)
            if shorter not in seen:
                seen.add(shorter)
                polynomial = shorter
                break
        else:
            return polynomial


def _with_family_folded(
    polynomial: Polynomial, family: _CutFamily, cuts: Mapping[tuple[int, int], int], modulus: int
) -> Polynomial:
    count = math.lcm(*(n for n, _ in cuts))
    if count > LARGEST_CUT or (len(cuts) == 1 and count != 2):
        return polynomial
    rest, base = dict(polynomial.terms), dict(family.base.terms)
    for n, k in cuts:
        atom = Floor(Polynomial({**base, (): k}), Polynomial.constant(n))
        del rest[product(family.cofactor, ((atom, 1),))]

    def said(parts: Iterable[_Part]) -> Polynomial:
        terms = list(rest.items())
        for n, k, factor in parts:
            cut = _divided(Polynomial({**base, (): k}), n)
            terms += ((product(family.cofactor, monomial), f * factor) for monomial, f in cut.items())
        return Polynomial(total(terms))

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
        yield [part for part in [(1, 0, coarse[0]), *dropped] if part[2]]
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
