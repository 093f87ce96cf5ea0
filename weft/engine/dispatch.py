"""Dispatch: every torch op on sharded tensors, by the layouts that its rule allows and the chooser prefers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..errors import WeftError
from ..rules.registry import Rule, rule_for
from ..runtime.holding import holding
from ..sharding.layout import Layout
from .call_cache import (
    NOT_REPEATED,
    repeated,
    run_resolved,
    signature_of,
)
from .choose import stop_over
from .handlers import handlers
from .index_bounds import check_bounds
from .learning import learn, resolved_first
from .local_run import run_everywhere, run_replicated, run_whole, schedule_for, swapped
from .moves.movement import from_plain, moved, note_move, note_return, to_plain, to_write_plain
from .moves.plain_gradient import keep_gradient_plain
from .moves.resolving import is_expanded, is_resolved, note_computed, resolve
from .op_kind import is_elementwise, kind_of
from .op_plan import Prepared, prepared_for, prepared_in, tensors_in
from .scaling import scales_beyond
from .sharded import ShardedTensor
from .single_run import run_once
from .strides.restriding import as_op_gives
from .total import known_total, note_write, own_pieces, part_pieces
from .total_run import total_call
from .views.conjugation import keep_marks
from .views.copy_views import (
    forget_resolved,
    refresh,
    remember_resolved,
    shows_another,
    tell_writes,
    write_through,
)
from .views.folded import folded_ops
from .views.view_results import viewed
from .writes.overlapping import refuse_overlaps
from .writes.writing import store, write_out, written_tensors
from .wrong_calls import STUMBLES, let_torch_say

__all__ = ["brought", "dispatch", "run_by_rule", "run_in"]

Args = tuple[object, ...]
Kwargs = dict[str, object]


def dispatch(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Runs one torch op on sharded tensors."""
    if torch.is_inference_mode_enabled() and _gives_usual_view(func, args):
        with torch.inference_mode(False), torch.no_grad():
            return dispatch(func, args, kwargs)
    signature = signature_of(func, args, kwargs)
    if signature is None:
        return _looked_at(func, args, kwargs)
    result = repeated(func, args, kwargs, signature)
    if result is NOT_REPEATED:
        result = _run(func, args, kwargs)
        note_computed(func, result, args, kwargs)
        learn(signature, func, args, kwargs, result)
    return result


def _looked_at(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> object:
    """A call that is not looked up: among its tensors may be views that are copies, which show others."""
    tensors = tensors_in(args, kwargs)
    folded = folded_ops.get(func)
    if folded is not None and any(map(_is_folded, args)) and not torch.is_inference_mode_enabled():
        refresh(x for x in args if isinstance(x, ShardedTensor))
        refresh(x._value.fold.of for x in args if isinstance(x, ShardedTensor) and x._value.fold is not None)
        result = folded(func, args, kwargs)
        if result is not NotImplemented:
            return result
    shows = any(map(shows_another, tensors))
    if shows:
        refresh(tensors)
        tell_writes(written_tensors(func, args, kwargs))
    result = _run(func, args, kwargs)
    note_computed(func, result, args, kwargs)
    if shows:
        keep_marks(func, args, result)
        for x in written_tensors(func, args, kwargs):
            write_through(x)
    return result


def _is_folded(x: object) -> bool:
    return isinstance(x, ShardedTensor) and x._value.fold is not None


def _gives_usual_view(func: torch._ops.OpOverload, args: Args) -> bool:
    """Whether a call gives views that are no inference tensors, also in inference mode: views are what their base is."""
    viewed = kind_of(func).viewed
    base = None if viewed is None or viewed >= len(args) else args[viewed]
    return isinstance(base, ShardedTensor) and not base.is_inference()


def _run(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> object:
    kind = kind_of(func)
    if kind.written or kind.outs:
        note_write()
    positions = resolved_first(func, args, kwargs)
    if positions is not None:
        return run_resolved(positions, func, args, kwargs)
    if (
        kind.written == (0,)
        and scales_beyond(func, args)
        and isinstance(args[0], ShardedTensor)
        and args[0]._layout.pending
    ):
        x = args[0]
        store(x, cast(ShardedTensor, func(resolve(x, str(func)).clone(), *args[1:], **kwargs)), str(func))
        return x
    special = handlers.get(func)
    if special is not None:
        try:
            result = special(func, args, kwargs)
        except WeftError:
            raise
        except STUMBLES as error:
            raise let_torch_say(func, args, kwargs, tensors_in(args, kwargs)) or error from None
        return as_op_gives(func, args, kwargs, result) if kind.is_pure else result
    if kind.outs:
        return write_out(func, args, kwargs)
    if kind.composite and rule_for(func) is None:
        return func.decompose(*args, **kwargs)
    return run_by_rule(func, args, kwargs)


def run_by_rule(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Runs an op in the layouts that its rule and the chooser say."""
    kind = kind_of(func)
    tensors = tensors_in(args, kwargs)
    prepared = prepared_for(func, args, kwargs, tensors)
    if prepared.written is not None and not isinstance(tensors[prepared.written], ShardedTensor):
        return _run_plain(func, args, kwargs)
    if prepared.once:
        return run_once(func, args, kwargs, tensors, [_whole(x, func) for x in tensors], prepared.mesh)
    if kind.is_pure:
        laid = [brought(x, need, func, prepared.whole) for x, need in zip(tensors, prepared.inputs, strict=True)]
        return _run_prepared(func, args, kwargs, tensors, laid, prepared)
    if prepared.written is not None and is_elementwise(func):
        refuse_overlaps(tensors[prepared.written], tensors)
    shared = prepared.written if kind.viewed is None else 0
    laid = [
        brought(x, need, func, prepared.whole, in_place=i == shared)
        for i, (x, need) in enumerate(zip(tensors, prepared.inputs, strict=True))
    ]
    if kind.viewed is not None:
        if isinstance(laid[0], ShardedTensor) and laid[0]._layout.pending and known_total(laid[0]) is None:
            part_pieces(laid[0])
        result = _run_prepared(func, args, kwargs, tensors, laid, prepared)
        is_moved = isinstance(tensors[0], ShardedTensor) and tensors[0]._layout is not prepared.inputs[0]
        return viewed(func, args, kwargs, result, is_alias=laid[0] is tensors[0], is_moved=is_moved)
    if prepared.written is None:
        return _run_prepared(func, args, kwargs, tensors, laid, prepared)
    x, changed = cast(ShardedTensor, tensors[prepared.written]), cast(ShardedTensor, laid[prepared.written])
    if changed is x:
        # In one memory nothing comes back: what would is told before anything is written.
        note_return(x, prepared.inputs[prepared.written], str(func))
    own_pieces(changed)
    result = _run_prepared(func, args, kwargs, tensors, laid, prepared)
    if changed is not x:
        store(x, changed, str(func))
    if x._layout.pending:
        forget_resolved()
        if changed._layout is x._layout.resolved:
            remember_resolved(x, changed)
    return result


def run_in(
    func: torch._ops.OpOverload,
    args: Args,
    kwargs: Kwargs,
    inputs: tuple[Layout, ...],
    outputs: tuple[Layout, ...],
    rule: Rule,
) -> object:
    """Runs an op that only reads, in layouts that a handler has chosen."""
    tensors = tensors_in(args, kwargs)
    prepared = prepared_in(func, args, kwargs, tensors, inputs, outputs, rule)
    laid = [brought(x, need, func, prepared.whole) for x, need in zip(tensors, inputs, strict=True)]
    return _run_prepared(func, args, kwargs, tensors, laid, prepared)


def _run_prepared(
    func: torch._ops.OpOverload,
    args: Args,
    kwargs: Kwargs,
    tensors: Sequence[torch.Tensor],
    laid: Sequence[torch.Tensor],
    prepared: Prepared,
) -> object:
    if prepared.whole:
        return run_whole(func, args, kwargs, laid, prepared.outputs, prepared.mesh)
    if prepared.outputs is None and holding(Layout.replicated(prepared.mesh, 0)).count:
        return run_replicated(func, args, kwargs, cast("list[ShardedTensor]", laid), prepared.mesh)
    if prepared.schedule is None:
        prepared.schedule = schedule_for(func, args, kwargs, tensors, prepared.inputs, prepared.outputs, prepared.mesh)
        prepared.total = total_call(func, tensors, prepared.inputs, prepared.schedule, prepared.rule)
    if prepared.total is not None:
        result = prepared.total(args, kwargs, cast("list[ShardedTensor]", laid))
        if result is not None:
            return result
    if prepared.bounds:
        check_bounds(prepared.bounds, tensors, cast("list[ShardedTensor]", laid))
    return run_everywhere(
        func, args, kwargs, cast("list[ShardedTensor]", laid), prepared.schedule, prepared.rule, given=tensors
    )


def brought(
    x: torch.Tensor, need: Layout, func: torch._ops.OpOverload, whole: bool, *, in_place: bool = False
) -> torch.Tensor:
    """A tensor in the layout an op needs it in; itself, where the op is to use its very memory and can.

    Plain tensors count as whole.
    """
    if not isinstance(x, ShardedTensor):
        if x.requires_grad and torch.is_grad_enabled():
            keep_gradient_plain(x)
        if not whole:
            return from_plain(x, need, brought_to=str(func))
        device = holding(need).residence.device
        return x if x.device == device or x.dim() == 0 or x.is_meta else x.to(device)
    if x._layout is need:
        return x
    if in_place and whole and not x._layout.pending and x._layout.mesh == need.mesh:
        note_move(x, need, str(func))
        return x
    if x._layout.pending and not in_place and not need.pending:
        if need is x._layout.resolved:
            return resolve(x, str(func))
        x = resolve(x, str(func)) if is_expanded(x) or is_resolved(x) else x
    middle = stop_over(x._layout, need)
    return moved(x if middle is None else moved(x, middle, str(func), implicit=True), need, str(func), implicit=True)


def _whole(x: torch.Tensor, func: torch._ops.OpOverload) -> torch.Tensor:
    """A copy of the value of a tensor, plain."""
    if not isinstance(x, ShardedTensor):
        return x
    return to_plain(cast(ShardedTensor, brought(x, Layout.replicated(x.mesh, x.dim()), func, False))).clone()


def _run_plain(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> object:
    """An op that writes to a plain tensor: everything it reads becomes plain, and comes to where that is."""
    tensors = tensors_in(args, kwargs)
    device = next(x.device for x in tensors if not isinstance(x, ShardedTensor))
    plain = iter([to_write_plain(x, str(func)).to(device) if isinstance(x, ShardedTensor) else x for x in tensors])
    return func(*cast(Args, swapped(args, plain)), **cast(Kwargs, swapped(kwargs, plain)))
