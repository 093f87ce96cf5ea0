"""Pending sums times a number for which that is not linear: infinite, not a number, or a division by 0.

Contributions of 3 and −1 times infinity are infinite with either sign, and their sum is not a number; 2 times infinity is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

__all__ = ["has_odd_number", "scales_beyond"]

aten = torch.ops.aten
_PRODUCTS = frozenset({aten.mul.Tensor, aten.mul.Scalar, aten.mul_.Tensor, aten.mul_.Scalar})
_QUOTIENTS = frozenset({aten.div.Tensor, aten.div.Scalar, aten.div_.Tensor, aten.div_.Scalar})
_SUMS = frozenset({aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor, aten.rsub.Tensor})
_WEIGHTED = frozenset({aten.lerp.Scalar, aten.lerp_.Scalar, aten.native_dropout_backward.default})
"""Ops whose third argument is the number."""
_LARGEST = 1e308
"""What numbers that a compiler leaves open are compared with: it takes them all to be below infinity. Larger ones count as infinite."""


def scales_beyond(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether a call multiplies or divides by a number, known on the host, for which a pending sum has to be there first.

    >>> x = torch.ones(2)
    >>> scales_beyond(aten.mul.Tensor, (x, math.inf), {}), scales_beyond(aten.div.Tensor, (x, 2), {})
    (True, False)
    >>> scales_beyond(aten.add.Tensor, (x, x), {"alpha": math.nan})
    True
    """
    if func in _SUMS:
        return "alpha" in kwargs and _is_beyond(kwargs["alpha"], divides=False)
    if func in _WEIGHTED:
        return _is_beyond(args[2], divides=False)
    if func not in _PRODUCTS and func not in _QUOTIENTS:
        return False
    return any(_is_beyond(value, func in _QUOTIENTS) for value in args[:2])


def has_odd_number(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether a call has a number beside its tensors for which nothing is linear: no sum of it is pending before or after.

    Products of parts have signs of their own, and what is added by one device is 0 on the others: infinitely often, nan.

    >>> x = torch.ones(2, 2)
    >>> has_odd_number((x, x, x), {"beta": math.inf}), has_odd_number((x, x, x), {"beta": 2.0})
    (True, False)
    """
    return any(not isinstance(x, torch.Tensor) and _is_beyond(x, divides=False) for x in (*args, *kwargs.values()))


def _is_beyond(value: object, divides: bool) -> bool:
    if type(value) is torch.Tensor and value.numel() == 1 and value.device.type == "cpu":
        value = value.item()
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        if not _is_of_sizes(value) and not _is_usual(value):
            return True
        return divides and bool(value == 0)  # of which programs of other sizes are told apart
    if not isinstance(value, (int, float, complex)):
        return False
    finite = math.isfinite(value.real) and math.isfinite(value.imag)
    return value == 0 or math.isnan(value.real) or math.isnan(value.imag) if divides else not finite


def _is_usual(number: torch.SymInt | torch.SymFloat) -> bool:
    """Whether a number that a program is given is not infinite, of which programs are told apart; one that it finds itself may be anything."""
    return number.node.has_hint() and bool(number < _LARGEST) and bool(number > -_LARGEST)


def _is_of_sizes(number: torch.SymInt | torch.SymFloat) -> bool:
    """Whether a number that a compiler leaves open follows from sizes, and so is neither infinite nor not a number."""
    return all(symbol.is_integer for symbol in number.node.expr.free_symbols)
