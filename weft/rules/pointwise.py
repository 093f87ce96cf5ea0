"""Elementwise ops: every dim is a factor of its own, broadcast dims carry none."""

from __future__ import annotations

import torch

from ..sharding.placements import ReduceOp
from .factors import Dims, Factors
from .registry import Call, Rule, rules

__all__ = ["broadcast_dims", "pointwise"]

aten = torch.ops.aten


def broadcast_dims(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[Dims, ...], Dims, dict[str, int]]:
    """The dims of broadcast inputs, of their result, and the sizes of the factors."""
    rank = max(map(len, shapes), default=0)
    sizes: dict[str, int] = {}
    for shape in shapes:
        for i, size in enumerate(shape, start=rank - len(shape)):
            if size != 1 or f"_{i}" not in sizes:
                sizes[f"_{i}"] = size
    inputs = tuple(
        tuple((f"_{i}",) if size == sizes[f"_{i}"] else () for i, size in enumerate(shape, start=rank - len(shape)))
        for shape in shapes
    )
    return inputs, tuple((f"_{i}",) for i in range(rank)), sizes


def pointwise(linear: str | int = "no", keeps: frozenset[ReduceOp] = frozenset({ReduceOp.SUM, ReduceOp.AVG})) -> Rule:
    """The rule of an elementwise op."""

    def factors(call: Call) -> Factors:
        inputs, output, sizes = broadcast_dims(tuple(spec.shape for spec in call.tensors))
        through: str | int = linear
        if linear == "tensors" and len(call.tensors) > 1:
            through = "each"
        elif linear == "tensors":
            through = 0
        outputs = (output,) * max(1, len(call.func._schema.returns))
        return Factors(inputs, outputs, sizes, linear=through, keeps=keeps)

    return Rule(factors)


_ALL_KINDS = frozenset(ReduceOp)
_SUMS = ("add.Tensor", "sub.Tensor", "add_.Tensor", "sub_.Tensor")
_COPIES = ("alias.default", "detach.default", "clone.default", "_to_copy.default", "lift_fresh.default")
_SCALED = ("mul.Scalar", "div.Scalar", "neg.default", "mul_.Scalar", "div_.Scalar", "neg_.default")


def _op(name: str) -> torch._ops.OpOverload:
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)  # type: ignore[no-any-return]


for _packet in dir(aten):
    for _overload in getattr(getattr(aten, _packet), "overloads", list)():
        _func = getattr(getattr(aten, _packet), _overload)
        if torch.Tag.pointwise in _func.tags:
            rules[_func] = pointwise()

for _name in _SUMS:
    rules[_op(_name)] = pointwise("all")
for _name in _COPIES:
    rules[_op(_name)] = pointwise(0, _ALL_KINDS)
for _name in _SCALED:
    rules[_op(_name)] = pointwise(0)
for _name in ("mul.Tensor", "mul_.Tensor"):
    rules[_op(_name)] = pointwise("each")
for _name in ("div.Tensor", "div_.Tensor"):
    rules[_op(_name)] = pointwise(0)
