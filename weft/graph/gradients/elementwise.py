# ruff: noqa: ARG005 - every row of a table takes the same arguments
"""Transposes of arithmetic. `g` is the gradient of the result `y`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from weft.graph.gradients.table import TRANSPOSES, Backward, Contribution, differentiable, transpose_of, unbroadcast
from weft.graph.ops import elementwise as ops
from weft.graph.recording.values import TensorLike, TensorValue

V: TypeAlias = TensorValue
Operand: TypeAlias = TensorValue | float

# d op(x)
_UNARY: dict[str, Callable[[V, V, V], V]] = {
    "neg": lambda g, x, y: -g,
    "abs": lambda g, x, y: g * ops.sign(x),
    "exp": lambda g, x, y: g * y,
    "log": lambda g, x, y: g / x,
    "log1p": lambda g, x, y: g / (x + 1),
    "sqrt": lambda g, x, y: g / (y * 2),
    "rsqrt": lambda g, x, y: g * y * y * y * -0.5,
    "reciprocal": lambda g, x, y: -(g * y * y),
    "square": lambda g, x, y: g * x * 2,
    "sin": lambda g, x, y: g * ops.cos(x),
    "cos": lambda g, x, y: -(g * ops.sin(x)),
    "tanh": lambda g, x, y: g * (1 - y * y),
    "erf": lambda g, x, y: g * ops.exp(-(x * x)) * (2 / math.sqrt(math.pi)),
    "sigmoid": lambda g, x, y: g * y * (1 - y),
    "relu": lambda g, x, y: ops.where(y > 0, g, 0.0),
    "silu": lambda g, x, y: _silu(g, x),
    "gelu": lambda g, x, y: _gelu(g, x),
    "gelu_tanh": lambda g, x, y: _gelu_tanh(g, x),
}

# d op(a, b) / da and / db
_BINARY: dict[str, tuple[Callable[[V, Operand, Operand, V], V], Callable[[V, Operand, Operand, V], V]]] = {
    "add": (lambda g, a, b, y: g, lambda g, a, b, y: g),
    "sub": (lambda g, a, b, y: g, lambda g, a, b, y: -g),
    "mul": (lambda g, a, b, y: g * b, lambda g, a, b, y: g * a),
    "div": (lambda g, a, b, y: g / b, lambda g, a, b, y: -(g * y / b)),
    "mod": (lambda g, a, b, y: g, lambda g, a, b, y: -(g * ops.floordiv(a, b))),
    "pow": (lambda g, a, b, y: g * b * _power(a, b), lambda g, a, b, y: g * _log_times(a, y)),
    "maximum": (lambda g, a, b, y: _shared(g, a, b, ops.greater), lambda g, a, b, y: _shared(g, b, a, ops.greater)),
    "minimum": (lambda g, a, b, y: _shared(g, a, b, ops.less), lambda g, a, b, y: _shared(g, b, a, ops.less)),
    "atan2": (lambda g, a, b, y: g * b / (a * a + b * b), lambda g, a, b, y: -(g * a / (a * a + b * b))),
}


def _silu(g: V, x: V) -> V:
    gate = ops.sigmoid(x)
    return g * gate * (1 + x * (1 - gate))


def _gelu(g: V, x: V) -> V:
    below = (1 + ops.erf(x * math.sqrt(0.5))) * 0.5
    density = ops.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return g * (below + x * density)


def _gelu_tanh(g: V, x: V) -> V:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    t = ops.tanh((x + x * x * x * cubic) * scale)
    slope = (1 + x * x * (3 * cubic)) * scale
    return g * ((1 + t) * 0.5 + x * (1 - t * t) * slope * 0.5)


def _power(a: Operand, b: Operand) -> TensorLike:
    """`a ** (b - 1)`, and 0 where `b` is 0, whatever `a` is."""
    if not isinstance(b, TensorValue):
        return ops.pow(a, b - 1) if b else 0.0
    return ops.where(b == 0, 0.0, ops.pow(a, b - 1))


def _log_times(a: Operand, y: V) -> V:
    """`log(a) * y`, and 0 where `a` is 0, as torch has it."""
    if not isinstance(a, TensorValue):
        return y * math.log(a) if a > 0 else y * 0
    return ops.where(a == 0, 0.0, ops.log(a) * y)


def _shared(g: V, mine: Operand, other: Operand, wins: Callable[[TensorLike, TensorLike], V]) -> V:
    """All of the gradient for who wins, half for each of two that are equal."""
    return ops.where(wins(mine, other), g, ops.where(ops.equal(mine, other), g * 0.5, 0.0))


def _unary_row(name: str) -> None:
    formula = _UNARY[name]

    @transpose_of(name)
    def row(back: Backward) -> Iterable[Contribution]:
        (x,) = back.call.args
        assert isinstance(x, TensorValue)
        yield x, formula(back.grad, x, back.result).cast(x.dtype)


def _binary_row(name: str) -> None:
    formulas = _BINARY[name]

    @transpose_of(name)
    def row(back: Backward) -> Iterable[Contribution]:
        a, b = back.call.args
        for operand, formula in zip((a, b), formulas, strict=True):
            if isinstance(operand, TensorValue) and differentiable(operand.type):
                yield operand, unbroadcast(formula(back.grad, a, b, back.result), operand)  # type: ignore[arg-type]


for _name in _UNARY:
    _unary_row(_name)
for _name in _BINARY:
    _binary_row(_name)


@transpose_of("where")
def _where(back: Backward) -> Iterable[Contribution]:
    condition, x, y = back.call.args
    assert isinstance(condition, TensorValue)
    if isinstance(x, TensorValue):
        yield x, unbroadcast(ops.where(condition, back.grad, 0.0), x)
    if isinstance(y, TensorValue):
        yield y, unbroadcast(ops.where(condition, 0.0, back.grad), y)


@transpose_of("clamp")
def _clamp(back: Backward) -> Iterable[Contribution]:
    x, lower, upper = back.call.args
    assert isinstance(x, TensorValue)
    inside = ops.logical_and(x >= lower, x <= upper)  # type: ignore[operator]
    yield x, ops.where(inside, back.grad, 0.0)


@transpose_of("cast")
def _cast(back: Backward) -> Iterable[Contribution]:
    x, _ = back.call.args
    assert isinstance(x, TensorValue)
    yield x, back.grad.cast(x.dtype)


__all__ = ["TRANSPOSES"]
