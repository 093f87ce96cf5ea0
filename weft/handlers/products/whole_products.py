"""Linear layers, products of many dims and their gradients, which come as one op each where nothing has to be brought for them.

Torch says a linear layer by views, a transposed weight and a product, so that it would come as four ops, and its gradient as nine.
It says a product of many dims by one whose batch is merged into one dim; where several of these dims are split, no layout says how that
lies. Where the rule of such a call takes its tensors as they lie, it comes as one, and its gradient as another
(`engine.dispatch_keys`). Others come in parts, and each part is brought what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.autograd import forward_ad

from ...caches import BoundedCache
from ...engine.dispatch_keys import stay_whole
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.memory import memory_of
from ...engine.op_plan import Repeat, decided
from ...engine.running.repeating import repeat_by_rule
from ...engine.sharded import ShardedTensor, requires_grad
from ...rules.call import Args, BoundCall, Kwargs, Op
from ...rules.ops.matmul import linear_backward, matmul_backward
from ...runtime.machine import forget_with_residences
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...watch.policy import Warned

aten = torch.ops.aten
_saved_for = torch._C._autograd._top_saved_tensors_default_hooks

_LINEAR, _OF_LINEAR = aten.linear.default, aten.linear_backward.default
_MATMUL, _OF_MATMUL = aten.matmul.default, aten.matmul_backward.default
_lying_right = BoundedCache[tuple[object, ...], bool](1 << 14, cleared_by=forget_with_residences)


def _is_whole_layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether a layer comes as one op."""
    if bias is None:
        return _is_whole(_LINEAR, (x, weight))
    is_kept = requires_grad(x) or not requires_grad(bias) or not torch.is_grad_enabled()
    return is_kept and _is_whole(_LINEAR, (x, weight, bias))


def _is_whole_product(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether a product of many dims comes as one op."""
    return _is_whole(_MATMUL, (x, y))


def _is_whole(op: Op, tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether a call comes as one op: it depends on how its tensors lie, and on nothing that was computed before.

    Autograd's formulas keep both factors. So it comes in parts where one of them is frozen, and the other need not
    be kept. Whoever looks after what is kept, as checkpointing does, finds the same again however tensors lie by then: the parts.
    """
    if forward_ad._current_level >= 0 or _saved_for(True) is not None:
        return False
    if torch.is_grad_enabled() and requires_grad(tensors[0]) is not requires_grad(tensors[1]):
        return False
    forms = tuple([t._form for t in tensors if isinstance(t, ShardedTensor)])
    if len(forms) < len(tensors):
        return False
    known = _lying_right.get((op, forms))
    if known is None:
        known = _IS_SUCH[op](tensors) and _lies_right(BoundCall(op, tensors, {}))
        if not any(form.is_open for form in forms):
            _lying_right[op, forms] = known
    return known


def _is_layer(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are what torch takes a layer apart for."""
    x, weight, *bias = tensors
    return x.dim() > 1 and weight.dim() == 2 and all(each.dim() == 1 for each in bias)


def _is_product(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are what torch merges the batch of, and merges no rows of the second for."""
    x, y = tensors
    fits = x.dim() > 2 and y.dim() > 1 and x.shape[-1] == y.shape[-2] and x.dtype == y.dtype
    return fits and all(a == b or 1 in (a, b) for a, b in zip(x.shape[-3::-1], y.shape[-3::-1], strict=False))


_IS_SUCH = {_LINEAR: _is_layer, _MATMUL: _is_product}
"""Bound: these. Cleared: never."""


def _lies_right(call: BoundCall) -> bool:
    """Whether the rule of a call takes its tensors as they lie."""
    # What is added to a sum that is left pending may be a contribution to it as it lies.
    return _all_lie(call, lambda layout, need: layout in (need, need.resolved))


def _is_only_cut(call: BoundCall) -> bool:
    """Whether the rule of a call takes parts of its tensors that lie where they are needed, as of the gradient of a sum, which is whole."""
    return _all_lie(call, _has_parts)


def _has_parts(layout: Layout, need: Layout) -> bool:
    """Whether each device has what it needs, and maybe more."""
    dims = zip(layout.splits, need.splits, strict=True)
    return layout.mesh == need.mesh and all(wanted[: len(axes)] == axes for axes, wanted in dims)


def _all_lie(call: BoundCall, as_needed: Callable[[Layout, Layout], bool]) -> bool:
    """Whether all tensors of a call lie somehow, given how its rule needs them."""
    plan = decided(call)
    return plan.outputs is not None and all(
        isinstance(x, ShardedTensor) and not x._form.is_special and not x._layout.pending and as_needed(x._layout, need)
        for x, need in zip(call.tensors, plan.inputs, strict=True)
    )


def _is_not_recorded(*_: object) -> bool:
    return not torch.is_grad_enabled()


stay_whole(_LINEAR, _is_whole_layer)
stay_whole(_OF_LINEAR, _is_not_recorded)
stay_whole(_MATMUL, _is_whole_product, of_many_dims=True)
stay_whole(_OF_MATMUL, _is_not_recorded, of_many_dims=True)
_parts = torch.library.Library("aten", "IMPL")
_parts.impl("linear_backward", linear_backward, "CompositeImplicitAutograd")
_parts.impl("matmul_backward", matmul_backward, "CompositeImplicitAutograd")


@handler(_OF_LINEAR, _OF_MATMUL)
def _gradients(call: BoundCall) -> object:
    if not _lies_right(call) and not (call.func is _OF_MATMUL and _is_only_cut(call)):
        call.repeat = None if is_traced() else partial(_in_parts, call.func)
        return _in_parts(call.func, call.args, call.kwargs)
    outputs = decided(call).outputs
    # One that is left pending would keep what it does not come from, also where that is to be given back.
    keeps = outputs is not None and memory_of(outputs[0]).runs_on_totals(outputs)
    func = call.func
    again: Repeat | None = None

    def repeat(args: Args, kwargs: Kwargs) -> object:
        nonlocal again
        if Warned.count or (keeps and any(isinstance(x, ShardedTensor) and x._value.lent_by is not None for x in args)):
            return _in_parts(func, args, kwargs)  # whoever is to be warned is told of each
        if again is not None:
            return again(args, kwargs)
        call = BoundCall(func, args, kwargs)
        result = run_by_rule(call)
        again = repeat_by_rule(call, result)
        return result

    call.repeat = repeat
    return repeat(call.args, call.kwargs)


def _in_parts(func: Op, args: Args, kwargs: Kwargs) -> object:
    """The gradients by the ops that they are made of."""
    gradients = func.decompose(*args, **kwargs)
    for x in gradients:
        if isinstance(x, ShardedTensor):
            x._value.turned = None  # a result, and no view of what it was made of
    return gradients
