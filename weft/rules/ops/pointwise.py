"""Elementwise ops: every dim is a factor of its own, broadcast dims carry none.

A pending sum passes through what is linear; the rows below say through which inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ...sharding.placements import ReduceOp
from ..call import BoundCall
from ..factors import ALL_KINDS, SUMS, Dims, Factors
from ..registry import Rule, by_tag, ops_named, rules

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


@dataclass(frozen=True, slots=True)
class Linear:
    """Through which inputs of an elementwise op a pending sum passes, in the words of `Factors`."""

    through: str | int = "no"
    added: frozenset[int] = frozenset()
    keeps: frozenset[ReduceOp] = SUMS


NOT = Linear()
ALL = Linear("all")
EACH = Linear("each")
FIRST = Linear(0)
COPY = Linear(0, keeps=ALL_KINDS)


def pointwise(linear: Linear | Callable[[BoundCall], Linear] = NOT) -> Rule:
    """The rule of an elementwise op."""

    def factors(call: BoundCall) -> Factors:
        inputs, output, sizes = broadcast_dims(tuple(spec.shape for spec in call.tensors))
        _check_written(call, tuple(sizes[factor] for (factor,) in output))
        how = linear(call) if callable(linear) else linear
        outputs = (output,) * max(1, len(call.func._schema.returns))
        return Factors(inputs, outputs, sizes, linear=how.through, added=how.added, keeps=how.keeps)

    return Rule(factors)


def _check_written(call: BoundCall, shape: tuple[int, ...]) -> None:
    """What is written to does not grow; a device that has some of it may not notice."""
    written = call.func._schema.arguments[0].alias_info
    own = tuple(call.tensors[0].shape)
    if written is not None and written.is_write and own != shape:
        raise RuntimeError(f"output with shape {list(own)} doesn't match the broadcast shape {list(shape)}")


def _numbers(how: Linear) -> Callable[[BoundCall], Linear]:
    """`how`, unless truth values are among the inputs: their sum is an `or`, which is not linear."""

    def chosen(call: BoundCall) -> Linear:
        return NOT if any(spec.dtype is torch.bool for spec in call.tensors) else how

    return chosen


def _added(call: BoundCall) -> Linear:
    """A sum of tensors. A number beside a pending tensor must be added once, so that is not linear."""
    return _numbers(ALL)(call) if len(call.tensors) == 2 else NOT


def _selected(call: BoundCall) -> Linear:
    """`where` picks from two tensors: linear in both together, the condition being the same everywhere."""
    numeric = len(call.tensors) == 3 and all(spec.dtype is not torch.bool for spec in call.tensors[1:])
    return Linear(1, frozenset({2})) if numeric else NOT


def _filled(call: BoundCall) -> Linear:
    return Linear(0, frozenset({2})) if call.tensors[0].dtype is not torch.bool else NOT


def _copied(call: BoundCall) -> Linear:
    """A copy keeps every reduction; a conversion keeps sums where it loses no digits of a contribution.

    Sums of short floats are resolved before they are widened: the bytes double, the digits that a sum has do not.
    """
    before, after = call.tensors[0].dtype, call.dtype()
    if after is None or after is before:
        return COPY
    if not (_is_smooth(before) and _is_smooth(after)) or min(before.itemsize, after.itemsize) <= _SHORT:
        return NOT
    return FIRST if torch.promote_types(before, after) is after else NOT


_SHORT = 2
"""Bytes of a short float; those of one byte are promoted to nothing."""


def _is_smooth(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


_PRODUCT_ADDED = Linear("each", frozenset({0}))

_LINEAR: dict[str, Linear | Callable[[BoundCall], Linear]] = {
    "add.Tensor add_.Tensor sub.Tensor sub_.Tensor rsub.Tensor": _added,
    "lerp.Scalar lerp_.Scalar": _numbers(ALL),
    "lerp.Tensor lerp_.Tensor": _numbers(Linear(0, frozenset({1}))),
    "mul.Tensor mul_.Tensor": _numbers(EACH),
    "addcmul addcmul_": _numbers(_PRODUCT_ADDED),
    "addcdiv addcdiv_": _numbers(Linear(1, frozenset({0}))),
    "div.Tensor div_.Tensor true_divide.Tensor true_divide_.Tensor": _numbers(FIRST),
    "mul.Scalar mul_.Scalar div.Scalar div_.Scalar neg neg_ positive deg2rad deg2rad_ rad2deg rad2deg_": _numbers(
        FIRST
    ),
    "_conj conj_physical conj_physical_ _conj_physical resolve_conj resolve_neg _neg_view": _numbers(FIRST),
    "where.self": _selected,
    "masked_fill.Tensor masked_fill_.Tensor": _filled,
    "alias detach clone lift_fresh lift": COPY,
    "_to_copy": _copied,
    "elu_backward gelu_backward hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward": FIRST,
    "leaky_relu_backward logit_backward mish_backward native_dropout_backward": FIRST,
    "sigmoid_backward silu_backward softplus_backward softshrink_backward tanh_backward threshold_backward": FIRST,
    "_prelu_kernel_backward": FIRST,
}
"""Op (its `default` overload where none is said) to how it is linear; grad_output stands first in all backward ops."""

_UNTAGGED = (
    "_prelu_kernel complex erfinv gelu_ hardswish hardswish_ leaky_relu "
    "masked_fill_.Scalar mish_ polar polygamma_ prelu rsub.Scalar special_entr threshold_ xlogy_.Scalar_Other "
    "hardshrink softshrink isin.Tensor_Scalar fmod_.Tensor copysign_.Tensor copysign_.Scalar heaviside_ gcd_ lcm_ "
    "logical_and_ eq_.Tensor eq_.Scalar ne_.Tensor ne_.Scalar lt_.Tensor lt_.Scalar le_.Tensor le_.Scalar "
    "gt_.Tensor gt_.Scalar ge_.Tensor ge_.Scalar where.ScalarSelf where.ScalarOther where.Scalar "
    "floor_divide floor_divide.Scalar floor_divide_.Tensor floor_divide_.Scalar"
)
"""Elementwise ops that torch does not mark as such."""


def _tagged() -> Iterator[str]:
    """The ops that torch marks as such, also those that nobody has named yet; but not those that draw numbers."""
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.partition(".")
        known = torch._C._get_operation_overload(packet, overload) if packet.startswith("aten::") else None
        if known is not None and torch.Tag.pointwise in known[2] and torch.Tag.nondeterministic_seeded not in known[2]:
            yield name.removeprefix("aten::")


for _func in ops_named(" ".join((*_tagged(), _UNTAGGED))):
    if _func is not aten.equal.default:  # which gives one truth value
        rules[_func] = pointwise()

for _names, _how in _LINEAR.items():
    for _func in ops_named(_names):
        rules[_func] = pointwise(_how)

by_tag[torch.Tag.pointwise] = pointwise()
"""Compiled programs have such ops of their own: torch says `p.addcmul_(a, b, value=0.5)` by one of them."""
