"""Learning: what is remembered of a call, so that the next one like it is found by one look-up."""

from __future__ import annotations

from typing import cast

import torch

from ..rules.registry import rule_for
from .call_cache import (
    Signature,
    is_known,
    keep,
    remember_call,
    remember_other,
    remember_recipe,
    remember_resolving,
    remember_shard_call,
)
from .handlers import handlers, may_run_by_rule
from .local_run import expects_contiguous
from .op_kind import kind_of
from .op_plan import known, prepared_for, tensors_in
from .quick import quick
from .recipe import Recipe, recipe_for
from .scaling import scales_beyond
from .sharded import ShardedTensor
from .strides.result_strides import ResultStrides
from .total_run import TotalCall

__all__ = ["learn", "resolved_first"]

Args = tuple[object, ...]
Kwargs = dict[str, object]


def learn(signature: Signature, func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, result: object) -> None:
    """Remembers how a call was made that gave this result."""
    if is_known(signature):
        return
    keep(func)
    if any(isinstance(x, ShardedTensor) and x._layout.pending for x in args) and scales_beyond(func, args):
        remember_other(signature)
    elif _is_direct(func, args, kwargs, result):
        remember_call(signature, func, result, writes=bool(kind_of(func).written))
    elif (strides := _on_one_shard(func, args, kwargs, result)) is not None:
        remember_shard_call(signature, func, result, kind_of(func), args, strides)
    elif (kept := _recipe(func, args, kwargs)) is not None:
        remember_recipe(signature, args, *kept)
    elif (positions := resolved_first(func, args, kwargs)) is not None:
        remember_resolving(signature, positions)
    elif not any(
        isinstance(x, ShardedTensor) and (x._value.shown is not None or x._value.resolved is not None) for x in args
    ):
        remember_other(signature)


def _is_direct(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, result: object) -> bool:
    """Whether a call took its arguments as they lie, in one memory, and read them, viewed or wrote to the first."""
    kind = kind_of(func)
    if not may_run_by_rule(func) or kind.outs:
        return False
    if kind.written and not (kind.written == (0,) and result is args[0]):
        return False
    tensors = cast("list[ShardedTensor]", tensors_in(args, kwargs))
    prepared = known(func, args, kwargs, tensors)
    if prepared is None or not prepared.whole or prepared.once or prepared.outputs is None:
        return False
    if any(not isinstance(x, ShardedTensor) or x._value.shown is not None for x in tensors):
        return False
    return all(x._layout is need for x, need in zip(tensors, prepared.inputs, strict=True))


def _on_one_shard(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, result: object) -> ResultStrides | None:
    """The strides of the results, where a call took its arguments as they lie and ran as it is on one shard of each."""
    kind = kind_of(func)
    if func in handlers or kind.outs or kind.viewed not in (None, 0):
        return None
    if kind.written and not (kind.written == (0,) and result is args[0]):
        return None
    tensors = cast("list[ShardedTensor]", tensors_in(args, kwargs))
    prepared = known(func, args, kwargs, tensors)
    if prepared is None or prepared.whole or prepared.once or prepared.schedule is None:
        return None
    rule, places = prepared.rule, prepared.schedule.places
    if rule is None or any(each is not None for each in (rule.local, rule.local_args, rule.local_op, rule.of_nothing)):
        return None
    if any(
        not isinstance(x, ShardedTensor) or len(x._value.pieces) != 1 or x._value.shown is not None for x in tensors
    ):
        return None
    # What is pending may be resolved at other times, and is then taken so: recipes know of that.
    if any(x._layout.pending or x._value.resolved is not None for x in tensors):
        return None
    once = len(places) == 1 and all(read == (0, None) for read in places[0].reads)
    laid = once and all(x._layout is need for x, need in zip(tensors, prepared.inputs, strict=True))
    return prepared.schedule.strides if laid else None


def _recipe(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> tuple[TotalCall | None, Recipe | None] | None:
    """How to repeat a call that took its arguments as they lie and did not write to them: on whole values, and anyway."""
    if not may_run_by_rule(func):
        return None
    tensors = cast("list[ShardedTensor]", tensors_in(args, kwargs))
    prepared = known(func, args, kwargs, tensors)
    if prepared is None or prepared.once or prepared.schedule is None or prepared.rule is None:
        return None
    if any(not isinstance(x, ShardedTensor) or x._value.shown is not None for x in tensors):
        return None
    total, recipe = prepared.total, None
    if any(x._layout is not need for x, need in zip(tensors, prepared.inputs, strict=True)):
        return None if total is None or not kind_of(func).is_pure or not total.takes(tensors) else (total, None)
    if kind_of(func).is_pure and prepared.rule.local is None and prepared.rule.local_args is None:
        op = prepared.rule.local_op or quick(func)
        recipe = recipe_for(func, op, args, prepared.schedule, expects_contiguous(func))
    return None if total is None and recipe is None else (total, recipe)


def resolved_first(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> tuple[int, ...] | None:
    """The pending arguments, by position, of a call that resolves them and nothing else of them."""
    waiting = [at for at, x in enumerate(args) if isinstance(x, ShardedTensor) and x._layout.pending]
    if not waiting or not kind_of(func).is_pure or rule_for(func) is None:
        return None
    if scales_beyond(func, args):
        return tuple(waiting)
    given = [at for at, x in enumerate(args) if isinstance(x, torch.Tensor)]
    tensors = tensors_in(args, kwargs)
    if len(given) < len(tensors) or not may_run_by_rule(func):
        return None
    needs = dict(zip(given, prepared_for(func, args, kwargs, tensors).inputs, strict=True))
    return tuple(at for at in waiting if needs[at] is cast(ShardedTensor, args[at])._layout.resolved) or None
