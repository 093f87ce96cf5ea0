"""Linear layers and their gradients, which come as one op each where nothing has to be brought for them.

Torch says a linear layer by views and a product, so that it would come as four ops, and its gradient as nine. Where the rule of
the layer takes its tensors as they lie, it comes as one, and its gradient as another (`engine.dispatch_keys`). Other layers come
in parts, and each part is brought what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd import forward_ad

from ..caches import BoundedCache
from ..engine.dispatch_keys import stay_whole
from ..engine.execute import run_by_rule
from ..engine.form import Form
from ..engine.handlers import handler
from ..engine.memory import memory_of
from ..engine.op_plan import Repeat, decided
from ..engine.running.repeating import repeat_by_rule
from ..engine.sharded import ShardedTensor, requires_grad
from ..rules.call import Args, BoundCall, Kwargs
from ..rules.ops.matmul import linear_backward
from ..runtime.machine import forget_with_residences
from ..runtime.traced import is_traced
from ..watch.policy import Warned

aten = torch.ops.aten
_saved_for = torch._C._autograd._top_saved_tensors_default_hooks

_LINEAR, _BACKWARD = aten.linear.default, aten.linear_backward.default
_lying_right = BoundedCache[tuple[Form, ...], bool](1 << 14, cleared_by=forget_with_residences)


def _is_whole(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether a layer comes as one op: it depends on how its tensors lie, and on nothing that was computed before.

    Autograd's formula for it keeps input and weight. So it comes in parts where one of them is frozen, and the other need not
    be kept. Whoever looks after what is kept, as checkpointing does, finds the same again however tensors lie by then: the parts.
    """
    if forward_ad._current_level >= 0 or _saved_for(True) is not None:
        return False
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled():
        is_kept = requires_grad(x)
        if requires_grad(weight) is not is_kept or (bias is not None and not is_kept and requires_grad(bias)):
            return False
    forms = tuple([t._form for t in tensors if isinstance(t, ShardedTensor)])
    if len(forms) < len(tensors):
        return False
    known = _lying_right.get(forms)
    if known is None:
        known = _is_layer(tensors)
        if not any(form.is_open for form in forms):
            _lying_right[forms] = known
    return known


def _is_layer(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are what torch takes a layer apart for, and lie as its rule wants them."""
    x, weight, *bias = tensors
    known = x.dim() > 1 and weight.dim() == 2 and all(each.dim() == 1 for each in bias)
    return known and _lies_right(BoundCall(_LINEAR, tuple(tensors), {}))


def _lies_right(call: BoundCall) -> bool:
    """Whether the rule of a call takes its tensors as they lie."""
    plan = decided(call)
    return plan.outputs is not None and all(
        # What is added to a sum that is left pending may be a contribution to it as it lies.
        isinstance(x, ShardedTensor)
        and not x._form.is_special
        and not x._layout.pending
        and x._layout in (need, need.resolved)
        for x, need in zip(call.tensors, plan.inputs, strict=True)
    )


def _is_not_recorded(*_: object) -> bool:
    return not torch.is_grad_enabled()


stay_whole(_LINEAR, _is_whole)
stay_whole(_BACKWARD, _is_not_recorded)
_parts = torch.library.Library("aten", "IMPL")
_parts.impl("linear_backward", linear_backward, "CompositeImplicitAutograd")


@handler(_BACKWARD)
def _gradients(call: BoundCall) -> object:
    if not _lies_right(call):
        call.repeat = None if is_traced() else _in_parts
        return _in_parts(call.args, call.kwargs)
    outputs = decided(call).outputs
    # One that is left pending would keep what it does not come from, also where that is to be given back.
    keeps = outputs is not None and memory_of(outputs[0]).runs_on_totals(outputs)
    again: Repeat | None = None

    def repeat(args: Args, kwargs: Kwargs) -> object:
        nonlocal again
        if Warned.count or (keeps and any(isinstance(x, ShardedTensor) and x._value.lent_by is not None for x in args)):
            return _in_parts(args, kwargs)  # whoever is to be warned is told of each
        if again is not None:
            return again(args, kwargs)
        call = BoundCall(_BACKWARD, args, kwargs)
        result = run_by_rule(call)
        again = repeat_by_rule(call, result)
        return result

    call.repeat = repeat
    return repeat(call.args, call.kwargs)


def _in_parts(args: Args, kwargs: Kwargs) -> object:
    """The gradients by the ops that they are made of."""
    gradients = _BACKWARD.decompose(*args, **kwargs)
    for x in gradients:
        if isinstance(x, ShardedTensor):
            x._value.turned = None  # a result, and no view of what it was made of
    return gradients
