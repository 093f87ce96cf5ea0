"""Repeated calls on sharded tensors and plain ones, which count as whole: masks, and numbers that torch makes tensors of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...rules.call import BoundCall, Known, Kwargs
from ...runtime.holding import holding
from ...sharding.layout import Layout
from ..index_bounds import check_bounds
from ..moves.movement import from_plain
from ..op_kind import OpKind
from ..op_plan import NOT_REPEATED, OpPlan, Repeat
from ..sharded import ShardedTensor
from .repeating_pieces import repeat_on_pieces, repeat_writes
from .repeating_whole import repeat_on_whole

__all__ = ["beside_plain"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def beside_plain(call: BoundCall, plan: OpPlan, kind: OpKind, result: object) -> Repeat | None:
    """A call whose sharded tensors lie as it needs them, and whose others are plain; it only reads, or writes to its first tensor."""
    places = [at for at, x in enumerate(call.args) if isinstance(x, torch.Tensor)]
    if len(places) != len(call.tensors) or kind.viewed is not None or plan.outputs is None:
        return None
    if not kind.is_pure and not _writes_to_sharded(call, kind, result):
        return None
    needs = dict(zip(places, plan.inputs, strict=True))
    sharded = {at: x for at in places if isinstance(x := call.args[at], ShardedTensor)}
    if any(x._form.is_special or x._layout.pending or x._layout is not needs[at] for at, x in sharded.items()):
        return None
    plain = {at: call.tensors[k] for k, at in enumerate(places) if at not in sharded}
    if plan.once or plan.total is not None or not _says_no_dtype(list(plain.values()), list(sharded.values())):
        return None
    if plan.whole:
        home = holding(plan.inputs[0]).residence.device
        is_here = all(x.device == home or not x.dim() for x in plain.values())
        run = repeat_on_whole(call, kind, result) if is_here else None
    else:
        run = _brought(call, plan, {at: needs[at] for at in plain}, kind, result)
    if run is None:
        return None
    again, others = run, tuple(plain)

    def repeat(args: Known, kwargs: Kwargs) -> object:
        for at in others:
            x = args[at]
            if type(x) not in _PLAIN or (x.requires_grad and torch.is_grad_enabled()):
                return NOT_REPEATED  # of one that is differentiated the gradient is to be plain
        return again(args, kwargs)

    return repeat


def _writes_to_sharded(call: BoundCall, kind: OpKind, result: object) -> bool:
    """Whether a call writes to its first tensor, which it gives, and that is no plain one."""
    return kind.written == (0,) and not kind.outs and result is call.args[0] and isinstance(result, ShardedTensor)


def _says_no_dtype(plain: Sequence[torch.Tensor], sharded: Sequence[ShardedTensor]) -> bool:
    """Whether those without dims have no say in the dtype of the result: one that stands for a number, and nobody can tell, has less."""
    most = max((_rank(x.dtype) for x in sharded if x.dim()), default=-1)
    return all(x.dim() or _rank(x.dtype) <= most for x in plain)


def _rank(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def _brought(call: BoundCall, plan: OpPlan, needs: dict[int, Layout], kind: OpKind, result: object) -> Repeat | None:
    """With memories apart: each device is given its part of the plain ones."""
    if plan.schedule is None or plan.rule is None or plan.rule.local_args is not None:
        return None
    stand_in = next(x for x in call.tensors if isinstance(x, ShardedTensor))  # only that it is sharded is looked at
    there = call.with_tensors([x if isinstance(x, ShardedTensor) else stand_in for x in call.tensors])
    recipe = repeat_writes(there, plan) if kind.written else repeat_on_pieces(there, plan, result)
    if recipe is None:
        return None
    name, bounds = str(call), plan.bounds
    places = [at for at, x in enumerate(call.args) if isinstance(x, torch.Tensor)]

    def repeat(args: Known, kwargs: Kwargs) -> object:
        here = list(args)
        for at, need in needs.items():
            here[at] = from_plain(here[at], need, brought_to=name)
        if bounds:  # an index that every process has whole is cut by now
            check_bounds(bounds, [args[at] for at in places], [here[at] for at in places])
        return recipe(tuple(here), kwargs)

    return repeat
