"""Random numbers do not depend on the layout: they are those that one device would draw, each device keeping its part."""

from __future__ import annotations

from functools import partial

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.memory import held_whole
from ..engine.moves.movement import from_plain, moved
from ..engine.sharded import ShardedTensor, sharded, tensor_of, wrap_whole
from ..engine.total import note_write
from ..rules.call import BoundCall, Known, Kwargs, Op
from .overwriting import overwrite

aten = torch.ops.aten

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
    x, rest = sharded(call, "self"), call.args[1:]
    whole = held_whole(x)
    if whole is not None:
        call.func(whole, *rest, **call.kwargs)
        call.repeat = partial(_draw_whole, call.func)
        return x
    # Kernels draw in the order of memory.
    drawn = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return overwrite(x, call.func(drawn, *rest, **call.kwargs), str(call))


def _draw_whole(func: Op, args: Known, kwargs: Kwargs) -> object:
    """Draws into a value that is whole in one memory."""
    note_write(args[:1])
    func(args[0]._value.pieces[0], *args[1:], **kwargs)
    return args[0]


@handler(aten.native_dropout.default)
def _dropout(call: BoundCall) -> object:
    """Where the value is whole in one memory, one kernel; else a mask that is drawn whole, and a product."""
    x, probability, training = sharded(call, "input"), call.number("p"), call.arg("train")
    held = held_whole(x)
    if held is not None:
        kept = tuple(wrap_whole(drawn, x._layout) for drawn in call.func(held, probability, training))
        forms, func = [drawn._form for drawn in kept], call.func

        def repeat(args: Known, _: Kwargs) -> object:
            drawn = func(args[0]._value.pieces[0], *args[1:])
            return tuple([tensor_of(form, (x,)) for form, x in zip(forms, drawn, strict=True)])

        call.repeat = None if call.kwargs or len(call.args) < 3 else repeat
        return kept
    if training is False or probability == 0:
        return x.clone(), aten.ones_like(x, dtype=torch.bool)
    # Which numbers a GPU's kernel draws depends on the shape and the dtype: the same kernel draws the same mask.
    ones = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).fill_(1)
    mask = from_plain(call.func(ones, probability, True)[1], x._layout.resolved, brought_to=str(call))
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return x * mask * scale, mask


@handler(aten.bernoulli.default, aten.bernoulli_.Tensor, aten.poisson.default, aten._standard_gamma.default)
def _drawn_from(call: BoundCall) -> object:
    """Numbers drawn from the distributions that a tensor says: drawn once from the whole, laid out like the first."""
    x, result = call.tensor("self"), run_by_rule(call)
    if result is x or not isinstance(x, ShardedTensor) or not isinstance(result, ShardedTensor):
        return result
    return moved(result, x._layout.resolved, str(call), implicit=True)


@handler(aten.bernoulli.out)
def _drawn_into(call: BoundCall) -> object:
    """Drawn in the dtype of `out`, whole numbers or truths too, and in its order."""
    x, out = call.tensor("self"), call.tensor("out")
    like, order = (out, torch.preserve_format) if out.shape == x.shape else (x, torch.contiguous_format)
    drawn = aten.empty_like.default(like, dtype=out.dtype, memory_format=order)
    aten.clone.out(aten.bernoulli_.Tensor(drawn, x, generator=call.arg("generator")), out=out)
    return out
