# ruff: noqa: A001 - torch's own names
"""Arithmetic, element by element, with torch's broadcasting and promotion."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.nn import functional

from ..recording.graph import Graph
from ..recording.op import Argument, Kernel, Op
from ..recording.types import DTypeLike, TensorType, torch_dtype
from ..recording.values import TensorLike, TensorValue, operation
from .inference import broadcast_shape, common_device, result_dtype

Unary: TypeAlias = Callable[[TensorLike], TensorValue]
Binary: TypeAlias = Callable[[TensorLike, TensorLike], TensorValue]

_EXAMPLE = """{sentence}

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("{dtype}", ["batch", 4])]) as graph:
    ...     str({call}.type)
    '{result}'
    """


def elementwise(op: Op, operands: tuple[TensorLike, ...], *, numbers: bool = True) -> TensorValue:
    """Record an op that treats each element alike; plain numbers stay plain where the kernel takes them."""
    graph = Graph.current()
    on = next((operand.device for operand in operands if isinstance(operand, TensorValue)), None)
    args: list[Argument] = [
        operand if numbers and on is not None and isinstance(operand, (bool, int, float)) else graph.tensor(operand, on)
        for operand in operands
    ]
    tensors = [arg for arg in args if isinstance(arg, TensorValue)]
    kind = TensorType(
        result_dtype(op, args), broadcast_shape([t.shape for t in tensors], op.name), common_device(tensors, op.name)
    )
    return graph.record(op, tuple(args), [kind])[0]


def _unary(name: str, kernel: Kernel, sentence: str, dtype: str = "float32", result: str = "f32") -> Unary:
    op = Op(name, kernel)

    def function(x: TensorLike) -> TensorValue:
        return elementwise(op, (x,))

    example = {"call": f"{name}(graph.inputs[0])", "result": f"{result}[batch, 4] on cpu:0"}
    return _documented(function, name, _EXAMPLE.format(sentence=sentence, dtype=dtype, **example))


def _binary(
    name: str, kernel: Kernel, sentence: str, dtype: str = "float32", result: str = "f32", *, numbers: bool = True
) -> Binary:
    op = Op(name, kernel)

    def function(lhs: TensorLike, rhs: TensorLike) -> TensorValue:
        return elementwise(op, (lhs, rhs), numbers=numbers)

    other = "True" if dtype == "bool" else "2"
    example = {"call": f"{name}(graph.inputs[0], {other})", "result": f"{result}[batch, 4] on cpu:0"}
    return _documented(function, name, _EXAMPLE.format(sentence=sentence, dtype=dtype, **example))


def _documented(function: Callable[..., TensorValue], name: str, doc: str) -> Callable[..., TensorValue]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return operation(function)


add = _binary("add", operator.add, "The sum of two tensors.")
sub = _binary("sub", operator.sub, "The difference of two tensors.")
mul = _binary("mul", operator.mul, "The product of two tensors, element by element.")
div = _binary("div", operator.truediv, "The quotient of two tensors; whole numbers give floats.", "int64", "f32")
floordiv = _binary("floordiv", operator.floordiv, "The quotient of two tensors, rounded down.", "int64", "i64")
mod = _binary("mod", operator.mod, "The remainder of a division, with the divisor's sign.", "int64", "i64")
pow = _binary("pow", operator.pow, "One tensor to the power of another.")
maximum = _binary("maximum", torch.maximum, "The larger of two elements.", numbers=False)
minimum = _binary("minimum", torch.minimum, "The smaller of two elements.", numbers=False)
atan2 = _binary("atan2", torch.atan2, "The angle of the point (rhs, lhs).", numbers=False)

equal = _binary("equal", operator.eq, "Where two tensors are equal.", "float32", "bool")
not_equal = _binary("not_equal", operator.ne, "Where two tensors differ.", "float32", "bool")
less = _binary("less", operator.lt, "Where the first is smaller.", "float32", "bool")
less_equal = _binary("less_equal", operator.le, "Where the first is smaller or equal.", "float32", "bool")
greater = _binary("greater", operator.gt, "Where the first is larger.", "float32", "bool")
greater_equal = _binary("greater_equal", operator.ge, "Where the first is larger or equal.", "float32", "bool")

logical_and = _binary("logical_and", torch.logical_and, "Where both are true.", "bool", "bool", numbers=False)
logical_or = _binary("logical_or", torch.logical_or, "Where one is true.", "bool", "bool", numbers=False)
logical_xor = _binary("logical_xor", torch.logical_xor, "Where exactly one is true.", "bool", "bool", numbers=False)
logical_not = _unary("logical_not", torch.logical_not, "Where it is false.", "bool", "bool")
bitwise_and = _binary("bitwise_and", operator.and_, "The bits that both have.", "int64", "i64")
bitwise_or = _binary("bitwise_or", operator.or_, "The bits that one has.", "int64", "i64")
bitwise_xor = _binary("bitwise_xor", operator.xor, "The bits that exactly one has.", "int64", "i64")
bitwise_not = _unary("bitwise_not", torch.bitwise_not, "The bits that it has not.", "int64", "i64")

neg = _unary("neg", torch.neg, "The negative.")
abs = _unary("abs", torch.abs, "The absolute value.")
sign = _unary("sign", torch.sign, "-1, 0 or 1, by the sign.")
exp = _unary("exp", torch.exp, "The exponential.")
log = _unary("log", torch.log, "The natural logarithm.")
log1p = _unary("log1p", torch.log1p, "The natural logarithm of one more.")
sqrt = _unary("sqrt", torch.sqrt, "The square root.")
rsqrt = _unary("rsqrt", torch.rsqrt, "One over the square root.")
reciprocal = _unary("reciprocal", torch.reciprocal, "One over each element.")
square = _unary("square", torch.square, "The square.")
sin = _unary("sin", torch.sin, "The sine.")
cos = _unary("cos", torch.cos, "The cosine.")
tanh = _unary("tanh", torch.tanh, "The hyperbolic tangent.")
erf = _unary("erf", torch.erf, "The error function.")
sigmoid = _unary("sigmoid", torch.sigmoid, "The logistic function.")
relu = _unary("relu", torch.relu, "The element where it is positive, else 0.")
silu = _unary("silu", functional.silu, "The element times its logistic function.")
floor = _unary("floor", torch.floor, "The next whole number below.")
ceil = _unary("ceil", torch.ceil, "The next whole number above.")
round = _unary("round", torch.round, "The nearest whole number, halves to the even one.")
trunc = _unary("trunc", torch.trunc, "The next whole number towards 0.")
is_nan = _unary("is_nan", torch.isnan, "Where it is not a number.", "float32", "bool")
is_inf = _unary("is_inf", torch.isinf, "Where it is infinite.", "float32", "bool")


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


GELU = {"none": Op("gelu", functional.gelu), "tanh": Op("gelu_tanh", _gelu_tanh)}
WHERE = Op("where", torch.where)
CLAMP = Op("clamp", torch.clamp)
CAST = Op("cast", torch.Tensor.to)


def gelu(x: TensorLike, approximate: str = "none") -> TensorValue:
    """The Gaussian error linear unit, exact or with `approximate="tanh"`.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     gelu(graph.inputs[0])
    TensorValue(gelu: f32[batch, 4] on cpu:0)
    """
    if approximate not in GELU:
        raise ValueError(f"gelu knows approximate='none' and 'tanh', but got {approximate!r}")
    return elementwise(GELU[approximate], (x,))


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> TensorValue:
    """The element of `x` where the condition is true, else that of `y`.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     value = graph.inputs[0]
    ...     where(value > 0, value, 0.0)
    TensorValue(where: f32[batch, 4] on cpu:0)
    """
    if isinstance(condition, TensorValue) and condition.dtype != torch.bool:
        raise TypeError(
            f"where needs a condition of true and false, but {condition!r} is no bool: compare it, for instance with != 0"
        )
    return elementwise(WHERE, (condition, x, y))


def clamp(x: TensorLike, lower: float | None = None, upper: float | None = None) -> TensorValue:
    """The elements moved into a range.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     clamp(graph.inputs[0], 0, 6)
    TensorValue(clamp: f32[batch, 4] on cpu:0)
    """
    if lower is None and upper is None:
        raise ValueError("clamp needs a lower or an upper bound, or both")
    graph = Graph.current()
    value = graph.tensor(x)
    bounds = (-float("inf") if lower is None else lower, float("inf") if upper is None else upper)
    if None in (lower, upper) and not value.dtype.is_floating_point:
        return maximum(value, lower) if lower is not None else minimum(value, upper or 0)
    kind = value.type.cast(result_dtype(CLAMP, (value, *bounds)))
    return graph.record(CLAMP, (value, *bounds), [kind])[0]


@operation
def cast(x: TensorLike, dtype: DTypeLike) -> TensorValue:
    """The same values in another dtype.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     cast(graph.inputs[0], "bfloat16")
    TensorValue(cast: bf16[batch, 4] on cpu:0)
    """
    graph = Graph.current()
    value, target = graph.tensor(x), torch_dtype(dtype)
    if value.dtype == target:
        return value
    return graph.record(CAST, (value, target), [value.type.cast(target)])[0]
