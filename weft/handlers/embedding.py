"""The gradient of a lookup goes to where the table's rows lie: devices that have different rows add up only their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..engine.execute import run_by_rule, run_in
from ..engine.gradient_target import wanted_layout
from ..engine.handlers import handler
from ..engine.op_plan import NOT_REPEATED, Repeat
from ..engine.running.repeating import repeat_by_rule
from ..engine.sharded import ShardedTensor
from ..engine.strategy import BroughtTensor, Strategy, cheapest
from ..rules.call import Args, BoundCall, Kwargs
from ..rules.ops.bags import LARGEST
from ..rules.ops.indexing import inside_of
from ..rules.registry import Region, Rule, rules
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp

aten = torch.ops.aten
_LOOKUP = "EmbeddingBackward0"


@handler(aten.embedding.default, aten._embedding_bag.default, may_be_direct=True)
def _lookup(call: BoundCall) -> object:
    if call.tensor("weight").requires_grad and torch.is_grad_enabled():
        _check_dense(call)
    return run_by_rule(call)


def _check_dense(call: BoundCall) -> None:
    if call.flag("sparse"):
        raise NotImplementedError(
            "a sharded table has no sparse gradient: use sparse=False (the gradient then lies like the table), or "
            "table.requires_grad_(False)"
        )


@handler(aten.embedding_dense_backward.default)
def _gradient(call: BoundCall) -> object:
    grad = call.tensor("grad_output")
    if not isinstance(grad, ShardedTensor) or call.flag("scale_grad_by_freq"):
        return run_by_rule(call)
    result = _gradient_of_rows(call, grad)
    call.repeat = _again_while_wanted(call, repeat_by_rule(call, result))
    return result


def _again_while_wanted(call: BoundCall, again: Repeat | None) -> Repeat | None:
    """What repeats the gradient of a lookup, as long as it is wanted where it was: that is not told by its arguments."""
    if again is None:
        return None
    shape = (call.integer("num_weights"), call.tensor("grad_output").shape[-1])
    wanted = wanted_layout(_LOOKUP, shape)

    def repeat(args: Args, kwargs: Kwargs) -> object:
        return again(args, kwargs) if wanted_layout(_LOOKUP, shape) is wanted else NOT_REPEATED

    return repeat


def _gradient_of_rows(call: BoundCall, grad: ShardedTensor) -> object:
    layout, axes = grad._layout, _axes_of_rows(call, grad, _LOOKUP)
    need = Layout(grad.mesh, [[axis for axis in names if axis not in axes] for names in layout.splits])
    own_rows = Strategy("own rows of the table", True, _moves(call, grad, need, axes))
    all_rows = Strategy("all rows, then summed", False, _moves(call, grad, layout.resolved, axes))
    if not axes or not cheapest([own_rows, all_rows]):
        return run_by_rule(call)
    made = Layout(grad.mesh, (axes, need.splits[-1]), _summed(need))
    return run_in(call, (need, Layout(grad.mesh, need.splits[:-1])), (made,), _OWN_ROWS[call.func])


@handler(aten._embedding_bag_backward.default)
def _gradient_of_bags(call: BoundCall) -> object:
    _check_dense(call)
    grad = call.tensor("grad")
    if not isinstance(grad, ShardedTensor) or grad._layout.pending:
        return run_by_rule(call)
    axes, features = _axes_of_rows(call, grad, "EmbeddingBagBackward0"), grad._layout.splits[1]
    if not axes or call.flag("scale_grad_by_freq") or call.integer("mode") == LARGEST:
        return run_by_rule(call)
    need = Layout(grad.mesh, ((), features))
    others = [Layout.replicated(grad.mesh, x.dim()) for x in call.tensors[1:]]
    return run_in(call, (need, *others), (Layout(grad.mesh, (axes, features)),), _OWN_ROWS[call.func])


def _axes_of_rows(call: BoundCall, grad: ShardedTensor, node: str) -> tuple[str, ...]:
    """The axes that split the rows of the table whose gradient is asked for, where the features leave them free."""
    wanted = wanted_layout(node, (call.integer("num_weights"), grad.shape[-1]))
    axes = () if wanted is None or wanted.mesh != grad.mesh else wanted.splits[0]
    return () if set(axes) & set(grad._layout.splits[-1]) else axes


def _summed(layout: Layout) -> dict[str, ReduceOp]:
    """What is left pending when the lookups themselves are split."""
    return {axis: ReduceOp.SUM for axes in layout.splits[:-1] for axis in axes}


def _moves(
    call: BoundCall, grad: ShardedTensor, need: Layout, axes: tuple[str, ...]
) -> tuple[BroughtTensor, BroughtTensor]:
    """What moves until the gradient lies like the table, when that of the lookups is brought to a layout first."""
    summed, features, item = _summed(need), need.splits[-1], grad.dtype.itemsize
    made = Layout(need.mesh, (() if set(axes) & set(summed) else axes, features), summed)
    table = (call.integer("num_weights"), grad.shape[-1])
    wanted = Layout(need.mesh, (axes, features))
    return BroughtTensor(grad._layout, need, tuple(grad.shape), item), BroughtTensor(made, wanted, table, item)


def _local(call: BoundCall, _given: Sequence[Region], made: Sequence[Region]) -> object:
    if made[0].is_whole(0):
        return call()
    (start, stop), padding = made[0].box[0], call.integer("padding_idx")
    index, inside = inside_of(made[0], 0, call.tensor("indices"))
    # What belongs to other rows is added to one row more, which is cut off again.
    own = call.replaced(
        indices=torch.where(inside, index, stop - start),
        num_weights=stop - start + 1,
        padding_idx=padding - start if start <= padding < stop else -1,
    )
    return own.result().narrow(0, 0, stop - start)


_OWN_ROWS = {
    op: Rule(rules[op].factors, local=_local)
    for op in (aten.embedding_dense_backward.default, aten._embedding_bag_backward.default)
}
