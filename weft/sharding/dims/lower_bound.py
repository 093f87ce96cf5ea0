"""Lower bounds of sizes, which decide comparisons where no number is known."""

from __future__ import annotations

from .polynomial import Floor, Monomial, Polynomial, total

__all__ = ["least"]


def least(polynomial: Polynomial) -> int | None:
    """A number that this never falls below while every name is 0 or more, or `None` where none is known.

    >>> b, four = Polynomial.symbol("b"), Polynomial.constant(4)
    >>> least(b * four + four), least(four - b)
    (4, None)
    """
    bounds = [_least(polynomial, keep_sizes=True), _least(polynomial, keep_sizes=False)]
    return max((bound for bound in bounds if bound is not None), default=None)


def _never_negative(monomial: Monomial) -> bool:
    return all(isinstance(atom, str) or power % 2 == 0 or _is_size(atom) for atom, power in monomial)


def _is_size(atom: Floor) -> bool:
    numerator, divisor = least(atom.numerator), least(atom.divisor)
    return numerator is not None and divisor is not None and numerator >= 0 and divisor >= 0


def _least(bound: Polynomial, *, keep_sizes: bool) -> int | None:
    """A lower bound, found by replacing floor divisions with what they cannot pass."""
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
                return Polynomial(total(rest, ((m, f * factor) for m, f in numerator.terms), [((), -slack)])), n
    return None
