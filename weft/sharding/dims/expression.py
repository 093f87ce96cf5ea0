"""Arithmetic on sizes, written as text or applied to polynomials; every result is in normal form."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from keyword import iskeyword

from .floor_division import divided, folded
from .polynomial import Polynomial

__all__ = ["ARITHMETIC", "SIGNS", "is_name", "parsed"]


def _remainder(a: Polynomial, b: Polynomial) -> Polynomial:
    return folded(a - b * divided(a, b))


ARITHMETIC: Mapping[Callable[[int, int], int], Callable[[Polynomial, Polynomial], Polynomial]] = {
    operator.add: lambda a, b: folded(a + b),
    operator.sub: lambda a, b: folded(a - b),
    operator.mul: lambda a, b: folded(a * b),
    operator.floordiv: divided,
    operator.mod: _remainder,
}
"""What each operation on numbers is on polynomials."""

SIGNS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
"""The operations that a size is written in."""


def is_name(text: str) -> bool:
    """Whether a size can be named like this.

    >>> is_name("batch_dp"), is_name("2 words"), is_name("if")
    (True, False, False)
    """
    return text.isidentifier() and not iskeyword(text)


def parsed(text: str) -> Polynomial:
    """The polynomial that a text says.

    >>> str(parsed("batch*2 + batch//4*4 + batch%4"))
    'batch * 3'
    """
    if is_name(text):
        return Polynomial.symbol(text)
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, _NotArithmeticError):
        raise ValueError(
            f"a dim is written as a name or as names and whole numbers joined by + - * // %, but got {text!r}: "
            "use for instance 'batch' or 'batch // 4 + 1'"
        ) from None


class _NotArithmeticError(Exception):
    """The text is Python, but not arithmetic on sizes."""


def _evaluated(node: ast.expr) -> Polynomial:
    match node:
        case ast.Name(name):
            return Polynomial.symbol(name)
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return Polynomial.constant(value)
        case ast.UnaryOp(ast.USub(), operand):
            return folded(_evaluated(operand).scaled(-1))
        case ast.BinOp(left, sign, right) if type(sign) in SIGNS:
            return ARITHMETIC[SIGNS[type(sign)]](_evaluated(left), _evaluated(right))
    raise _NotArithmeticError
