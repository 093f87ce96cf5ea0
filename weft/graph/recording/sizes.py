"""Sizes as numbers: what a dim comes to when its names have sizes, in plain arithmetic that may pass below 0."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import TypeVar

from ...caches import cached
from ...sharding.dims import Dim
from ...sharding.dims.expression import SIGNS

__all__ = ["folded", "value_of"]

T = TypeVar("T")


def value_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The number a dim comes to.

    >>> value_of(Dim("n // 2 - 3"), {"n": 4})
    -1
    """
    if dim.is_static:
        return int(dim)
    return folded(dim, sizes.__getitem__, _applied)


def _applied(kernel: Callable[..., int], *operands: int) -> int:
    return kernel(*operands)


def folded(dim: Dim, name: Callable[[str], T], apply: Callable[..., T]) -> T:
    """A dim rebuilt from its parts: `name` gives what a name stands for, `apply(kernel, *operands)` an operation.

    >>> folded(Dim("n * 2"), str.upper, lambda kernel, *operands: f"{kernel.__name__}{operands}")
    "mul('N', 2)"
    """

    def visited(part: ast.expr) -> T:
        match part:
            case ast.Name(text):
                return name(text)
            case ast.Constant(int(value)):
                return value  # type: ignore[return-value]  # numbers stand for themselves
            case ast.UnaryOp(ast.USub(), operand):
                return apply(operator.neg, visited(operand))
            case ast.BinOp(left, sign, right):
                return apply(SIGNS[type(sign)], visited(left), visited(right))
        raise AssertionError(f"a dim is written as arithmetic on names, but {dim} is not")

    return visited(_parsed(str(dim)))


@cached(4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
