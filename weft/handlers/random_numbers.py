"""Random numbers do not depend on the layout: they are those that one device would draw, each device keeping its part."""

from __future__ import annotations

from typing import cast

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.moves.movement import from_plain, moved
from ..engine.sharded import ShardedTensor, wrap
from ..rules.call import BoundCall
from ..runtime.holding import holding
from .overwriting import overwrite

aten = torch.ops.aten

Args = tuple[object, ...]
Kwargs = dict[str, object]
Op = torch._ops.OpOverload


_DRAWN_INTO = (
    aten.normal_,
    aten.uniform_,
    aten.cauchy_,
    aten.log_normal_,
    aten.exponential_,
    aten.geometric_,
    aten.random_,
)
"""The ops that overwrite a tensor with random numbers, whatever it held."""


@handler(*(getattr(op, name) for op in _DRAWN_INTO for name in op.overloads()), aten.bernoulli_.float)
def _draw(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    here = holding(x._layout)
    if here.unified and not x._layout.pending:
        func(x._value.pieces[0], *args[1:], **kwargs)
        return x
    # Kernels draw in the order of memory.
    whole = func(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device), *args[1:], **kwargs)
    return overwrite(x, whole, str(func))


@handler(aten.native_dropout.default)
def _dropout(call: BoundCall) -> object:
    """Where the value is whole in one memory, one kernel; else a mask that is drawn whole, and a product."""
    func, args = call.func, call.args
    x, probability, training = cast("tuple[ShardedTensor, float, bool | None]", args)
    if holding(x._layout).unified and not x._layout.pending:
        result, mask = func(x._value.pieces[0], probability, training)
        return wrap((result,), x._layout, x.shape), wrap((mask,), x._layout, x.shape)
    if training is False or probability == 0:
        return x.clone(), aten.ones_like(x, dtype=torch.bool)
    # Which numbers a GPU's kernel draws depends on the shape and the dtype: the same kernel draws the same mask.
    ones = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).fill_(1)
    whole = func(ones, probability, True)[1]
    mask = from_plain(whole, x._layout.resolved)
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return x * mask * scale, mask


@handler(aten.bernoulli.default, aten.bernoulli_.Tensor, aten.poisson.default, aten._standard_gamma.default)
def _drawn_from(call: BoundCall) -> object:
    """Numbers drawn from the distributions that a tensor says: drawn once from the whole, laid out like the first."""
    func, args = call.func, call.args
    x = cast(torch.Tensor, args[0])
    result = run_by_rule(call)
    if result is x or not isinstance(x, ShardedTensor) or not isinstance(result, ShardedTensor):
        return result
    return moved(result, x._layout.resolved, str(func), implicit=True)
