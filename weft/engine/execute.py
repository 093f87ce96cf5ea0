"""Running a call by its rule: its tensors are brought to the layouts of its plan, and it runs where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..rules.call import BoundCall
from ..rules.registry import Rule
from ..runtime.holding import holding
from ..runtime.processes import world
from ..sharding.layout import Layout
from .choose import stop_over
from .index_bounds import check_bounds
from .memory import memory_on
from .moves.bringing import brought_once
from .moves.gradient_home import bring_gradient_home, is_gathered
from .moves.movement import check_strided, from_plain, moved, to_plain, to_write_plain
from .moves.resolved import forget_resolved, remember_resolved
from .moves.resolving import is_expanded, is_resolved, lying_as, resolve
from .moves.telling import note_move, note_return
from .op_kind import kind_of
from .op_plan import OpPlan, decided, plan_in
from .running.on_pieces import run_everywhere, run_replicated, run_whole
from .running.on_totals import total_call
from .running.once import run_once
from .running.refusals import refuse_as_others
from .running.schedule import OpSchedule, schedule_for
from .sharded import ShardedTensor, all_sharded, as_sharded
from .total import known_total, own_pieces, part_pieces
from .views.view_results import viewed
from .writes.overlapping import read_beside, refuse_overlaps
from .writes.writing import store
from .wrong_calls import let_torch_say, refuse_wrong

__all__ = ["brought", "gathered", "reads_written", "run_by_rule", "run_in"]


def run_by_rule(call: BoundCall) -> object:
    """Runs an op in the layouts that its rule and the chooser say."""
    plan = call.plan = decided(call)
    kind, tensors = kind_of(call.func), call.tensors
    if plan.written is not None and not isinstance(tensors[plan.written], ShardedTensor):
        refuse_wrong(call)
        return _run_plain(call)
    if plan.once:
        refuse_wrong(call)
        return run_once(call, [_whole(x, call) for x in tensors], plan.mesh)
    if kind.is_pure:
        return _run(call, _laid(call, plan), plan)
    if plan.written is not None and reads_written(call, plan.written):
        call.is_written_back, x = True, tensors[plan.written]
        return call.with_tensors([read_beside(call.func, x, y) for y in tensors])()
    laid = _laid(call, plan, plan.written if kind.viewed is None else 0)
    if kind.viewed is not None:
        return _run_view(call, laid, plan)
    return _run(call, laid, plan) if plan.written is None else _run_write(call, laid, plan, plan.written)


def reads_written(call: BoundCall, written: int) -> bool:
    """Whether a call reads by another name what it writes to; raises where torch would refuse what it reads."""
    tensors = call.tensors
    try:
        return refuse_overlaps(call.func, tensors[written], (*tensors[:written], *tensors[written + 1 :]))
    except RuntimeError as error:
        raise let_torch_say(call) or error from None  # of other mistakes torch speaks first


def run_in(call: BoundCall, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...], rule: Rule) -> object:
    """Runs an op that only reads, in layouts that are given."""
    plan = call.plan = plan_in(call, inputs, outputs, rule)
    return _run(call, _laid(call, plan), plan)


def _laid(call: BoundCall, plan: OpPlan, shared: int | None = None) -> list[torch.Tensor]:
    """The tensors of a call in the layouts of its plan; of the shared one the very memory, where that can be."""
    is_read = kind_of(call.func).is_pure
    if any(
        isinstance(x, ShardedTensor) and x._layout is not need
        for x, need in zip(call.tensors, plan.inputs, strict=True)
    ):
        refuse_wrong(call)
    for at in gathered(call.tensors, plan) if is_read else ():
        bring_gradient_home(call.tensors[at])
    needs = list(zip(call.tensors, plan.inputs, strict=True))
    laid = list(call.tensors)
    # What is only resolved goes first, as it does where a call is repeated.
    for i in sorted(range(len(laid)), key=lambda i: not (is_read and _is_only_resolved(*needs[i]))):
        laid[i] = brought(*needs[i], str(call), plan.whole, in_place=i == shared, is_read=is_read)
    return laid


def _is_only_resolved(x: torch.Tensor, need: Layout) -> bool:
    return isinstance(x, ShardedTensor) and bool(x._layout.pending) and need is x._layout.resolved


def _run_view(call: BoundCall, laid: list[torch.Tensor], plan: OpPlan) -> object:
    base, x = laid[0], call.tensors[0]
    if isinstance(base, ShardedTensor) and base._layout.pending and known_total(base) is None:
        part_pieces(base)
    result = _run(call, laid, plan)
    is_moved = isinstance(x, ShardedTensor) and x._layout is not plan.inputs[0]
    return viewed(call, result, is_moved=is_moved, is_copied=base is not x)


def _run_write(call: BoundCall, laid: list[torch.Tensor], plan: OpPlan, written: int) -> object:
    x, changed = as_sharded(call.tensors[written]), as_sharded(laid[written])
    if changed is x and plan.inputs[written] is not x._layout:
        # In one memory nothing comes back: what would is told once what is read has come, before anything is written.
        for y in laid:
            if isinstance(y, ShardedTensor):
                y._value.pieces  # noqa: B018 - asking for them is what is told
        note_return(x, plan.inputs[written], str(call))
    own_pieces(changed)
    result = _run(call, laid, plan)
    if changed is not x:
        store(x, changed, str(call))
    if x._layout.pending:
        forget_resolved()
        if changed._layout is x._layout.resolved:
            remember_resolved(x, changed)
    return result


def _run(call: BoundCall, laid: Sequence[torch.Tensor], plan: OpPlan) -> object:
    if plan.whole:
        return run_whole(call, laid, plan.outputs, plan.mesh)
    there = all_sharded(laid)
    if plan.outputs is None and holding(Layout.replicated(plan.mesh, 0)).count:
        return run_replicated(call, there, plan.mesh)
    schedule = _scheduled(call, plan) if plan.schedule is None else plan.schedule
    if plan.total is not None:
        result = plan.total(call, there)
        if result is not None:
            return result
    if plan.bounds:
        check_bounds(plan.bounds, call.tensors, there)
    return run_everywhere(call, there, schedule, plan.rule)


def _scheduled(call: BoundCall, plan: OpPlan) -> OpSchedule:
    """Works out, at the first of such calls, where they run."""
    schedule = schedule_for(call, plan.inputs, plan.outputs, plan.mesh)
    if world.current().count > 1 and not schedule.has_elements:
        refuse_as_others(call, plan.inputs, plan.rule)
    if memory_on(plan.mesh).runs_on_totals(schedule.outputs):
        plan.total = total_call(call, plan.inputs, schedule, plan.rule)
    plan.schedule = schedule
    return schedule


def gathered(tensors: Sequence[torch.Tensor], plan: OpPlan) -> list[int]:
    """The tensors, by position, that a plan needs where parts of them do not lie."""
    return [
        at
        for at, (x, need) in enumerate(zip(tensors, plan.inputs, strict=True))
        if isinstance(x, ShardedTensor) and x._layout is not need and is_gathered(x._layout, need)
    ]


def brought(
    x: torch.Tensor, need: Layout, op: str, whole: bool, *, in_place: bool = False, is_read: bool = False
) -> torch.Tensor:
    """A tensor in the layout an op needs it in; itself, where the op is to use its very memory and can.

    Plain tensors count as whole. `is_read`: nobody writes to what is given, nor gets to see it.
    """
    if not isinstance(x, ShardedTensor):
        if not whole:
            return from_plain(x, need, brought_to=op)
        check_strided(x, op)
        device = holding(need).residence.device
        return x if x.device == device or x.dim() == 0 or x.is_meta else x.to(device)
    if x._layout is need:
        return x
    if in_place and whole and not x._layout.pending and x._layout.mesh == need.mesh:
        note_move(x, need, op)
        x._value.pieces  # noqa: B018 - an exchange that was put off is told before what comes next, as between memories
        return x
    given = x
    if x._layout.pending and not in_place and not need.pending:
        if need is x._layout.resolved:
            return lying_as(x, resolve(x, op)) if is_read else resolve(x, op)
        x = resolve(x, op) if is_expanded(x) or is_resolved(x) else x
    middle = stop_over(x._layout, need)
    if is_read and middle is None:
        there = brought_once(x, need, op)
        if given._layout.pending and need.pending:
            return there
        # In one memory it is read as it lies: what an op gives has the strides of plain torch then.
        read = x if whole and not x._layout.pending and x._layout.mesh == need.mesh else there
        return lying_as(given, read) if given._layout.pending else read
    return moved(x if middle is None else moved(x, middle, op, implicit=True), need, op, implicit=True)


def _whole(x: torch.Tensor, call: BoundCall) -> torch.Tensor:
    """A copy of the value of a tensor, plain."""
    if not isinstance(x, ShardedTensor):
        return x
    is_read = kind_of(call.func).is_pure
    there = brought(x, Layout.replicated(x.mesh, x.dim()), str(call), False, is_read=is_read)
    return to_plain(as_sharded(there)).clone()


def _run_plain(call: BoundCall) -> object:
    """An op that writes to a plain tensor: everything it reads becomes plain, and comes to where that is."""
    device = next(x.device for x in call.tensors if not isinstance(x, ShardedTensor))
    plain = [to_write_plain(x, str(call)).to(device) if isinstance(x, ShardedTensor) else x for x in call.tensors]
    return call.with_tensors(plain)()
