"""Linear layers and their gradients, which come as one op each: `engine.dispatch_keys` says how.

The first call of a kind runs as the ops that torch makes it of, and these choose where its results lie. Where that is what the
rule of the layer says, and nothing has to be brought for it, calls like it run at once. In inference mode, where no view
remembers what it was made from, all calls go by the rule.
"""

from __future__ import annotations

import torch

from ...rules.call import Args, BoundCall, Kwargs
from ...runtime.traced import is_traced
from ...watch.policy import Warned
from ..execute import run_by_rule
from ..memory import memory_of
from ..op_plan import NOT_REPEATED, OpPlan, Repeat, decided
from ..sharded import ShardedTensor
from .repeating import repeat_by_rule

__all__ = ["in_inference", "in_parts"]


def in_parts(call: BoundCall) -> tuple[object, Repeat | None]:
    """What the ops give that a call is made of, and what gives it at once, if anything does."""
    result = call.func.decompose(*call.args, **call.kwargs)
    for x in result if isinstance(result, tuple) else (result,):
        if isinstance(x, ShardedTensor):
            x._value.turned = None  # a result, and no view of what it was made of
    if is_traced() or any(not isinstance(x, ShardedTensor) or x._form.is_special for x in call.tensors):
        return result, None
    plan = decided(call)
    return result, _at_once(plan) if _is_said_by(plan, call, result) else None


def _is_said_by(plan: OpPlan, call: BoundCall, result: object) -> bool:
    """Whether a plan takes the tensors of a call as they lie, and gives results that lie as these do."""
    for x, need in zip(call.tensors, plan.inputs, strict=True):
        # What is added to a sum that is left pending may be a contribution to it as it lies.
        if not isinstance(x, ShardedTensor) or x._layout.pending or x._layout not in (need, need.resolved):
            return False
    made = result if isinstance(result, tuple) else (result,)
    return plan.outputs is not None and all(
        not isinstance(x, ShardedTensor) or x._layout is layout for x, layout in zip(made, plan.outputs, strict=True)
    )


def _at_once(plan: OpPlan) -> Repeat:
    """What runs such calls by their rule, and finds out how they are repeated."""
    again: Repeat | None = None
    # A gradient that is left pending would keep what it does not come from, also where that is to be given back.
    keeps = plan.outputs is not None and memory_of(plan.outputs[0]).runs_on_totals(plan.outputs)

    def repeat(args: Args, kwargs: Kwargs) -> object:
        nonlocal again
        if Warned.count:
            return NOT_REPEATED  # whoever is to be warned is told of the parts
        if keeps and any(isinstance(x, ShardedTensor) and x._value.lent_by is not None for x in args):
            return NOT_REPEATED
        if again is not None:
            return again(args, kwargs)
        call = BoundCall(plan.func, args, kwargs)
        result = run_by_rule(call)
        again = repeat_by_rule(call, result)
        return result

    return repeat


def in_inference(repeat: Repeat | None) -> Repeat | None:
    """What repeats a call that went by its rule, in that mode only."""
    if repeat is None:
        return None
    return lambda args, kwargs: repeat(args, kwargs) if torch.is_inference_mode_enabled() else NOT_REPEATED
