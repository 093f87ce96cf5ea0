"""The gradient of a lookup goes to where the table's rows lie: devices that have different rows add up only their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..engine.arguments import argument
from ..engine.execute import run_by_rule, run_in
from ..engine.handlers import handler
from ..engine.sharded import ShardedTensor
from ..planning import move_cost
from ..rules.bags import LARGEST
from ..rules.call import BoundCall
from ..rules.registry import Region, Rule, rules
from ..runtime.machine import forget_with_residences
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from ..sharding.placements import ReduceOp

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]

_axes_of_rows: dict[tuple[DeviceMesh, int, int], tuple[str, ...]] = {}
"""How the rows of tables of a shape were split when they were last looked up: their gradients will be wanted so."""
forget_with_residences(_axes_of_rows.clear)
_MOST_TABLES = 1024


@handler(aten.embedding.default, may_be_direct=True)
def _lookup(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    table = args[0]
    if isinstance(table, ShardedTensor) and table.dim() == 2:
        _check_dense(func, args, kwargs, table.requires_grad and torch.is_grad_enabled())
        _remember_rows(table)
    return run_by_rule(call)


def _remember_rows(table: ShardedTensor) -> None:
    if len(_axes_of_rows) >= _MOST_TABLES:
        _axes_of_rows.clear()
    _axes_of_rows[table.mesh, table.shape[0], table.shape[1]] = table._layout.splits[0]


@handler(aten._embedding_bag.default, may_be_direct=True)
def _bags(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    table = cast(torch.Tensor, args[0])
    _check_dense(func, args, kwargs, table.requires_grad and torch.is_grad_enabled())
    if isinstance(table, ShardedTensor) and table.dim() == 2:
        _remember_rows(table)
    return run_by_rule(call)


@handler(aten._embedding_bag_backward.default)
def _gradient_of_bags(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    _check_dense(func, args, kwargs, has_gradient=True)
    grad, rows, mode = cast(torch.Tensor, args[0]), cast(int, args[6]), cast(int, args[8])
    scales = bool(args[7])
    if not isinstance(grad, ShardedTensor) or grad._layout.pending or scales or mode == LARGEST:
        return run_by_rule(call)
    axes, features = _axes_of_rows.get((grad.mesh, rows, grad.shape[1]), ()), grad._layout.splits[1]
    if not axes or set(axes) & set(features):
        return run_by_rule(call)
    need = Layout(grad.mesh, ((), features))
    others = [Layout.replicated(grad.mesh, x.dim()) for x in call.tensors[1:]]
    made = Layout(grad.mesh, (axes, features))
    return run_in(call, (need, *others), (made,), _OWN_ROWS_OF_BAGS)


def _check_dense(func: Op, args: Args, kwargs: Kwargs, has_gradient: bool) -> None:
    if has_gradient and argument(func, args, kwargs, "sparse"):
        raise NotImplementedError(
            "a sharded table has no sparse gradient: use sparse=False (the gradient then lies like the table), or "
            "table.requires_grad_(False)"
        )


@handler(aten.embedding_dense_backward.default)
def _gradient(call: BoundCall) -> object:
    args = call.args
    grad, rows = call.tensor("grad_output"), call.integer("num_weights")
    if not isinstance(grad, ShardedTensor) or args[4]:
        return run_by_rule(call)
    axes = _axes_of_rows.get((grad.mesh, rows, grad.shape[-1]), ())
    layout = grad._layout
    if not axes or any(axis in axes for axis in layout.splits[-1]):
        return run_by_rule(call)
    need = Layout(grad.mesh, [[axis for axis in names if axis not in axes] for names in layout.splits])
    if _price(layout, need, axes, grad, rows) > _price(layout, layout.resolved, axes, grad, rows):
        return run_by_rule(call)
    made = Layout(grad.mesh, (axes, need.splits[-1]), _summed(need))
    inputs = (need, Layout(grad.mesh, need.splits[:-1]))
    return run_in(call, inputs, (made,), _OWN_ROWS)


def _summed(layout: Layout) -> dict[str, ReduceOp]:
    """What is left pending when the lookups themselves are split."""
    return {axis: ReduceOp.SUM for axes in layout.splits[:-1] for axis in axes}


def _price(layout: Layout, need: Layout, axes: tuple[str, ...], grad: ShardedTensor, rows: int) -> float:
    """Seconds until the gradient lies like the table, when the gradient of the lookups is brought to a layout first."""
    item = grad.dtype.itemsize
    own = () if any(axis in _summed(need) for axis in axes) else axes
    made = Layout(need.mesh, (own, need.splits[-1]), _summed(need))
    wanted = Layout(need.mesh, (axes, need.splits[-1]))
    return move_cost(layout, need, tuple(grad.shape), item) + move_cost(made, wanted, (rows, grad.shape[-1]), item)


def _local(call: BoundCall, _given: Sequence[Region], made: Sequence[Region]) -> object:
    func, args = call.func, call.args
    if made[0].is_whole(0):
        return func(*args)
    grad, indices, _rows, padding = cast("tuple[torch.Tensor, torch.Tensor, int, int]", args[:4])
    start, stop = made[0].box[0]
    # What belongs to other rows is added to one row more, which is cut off again.
    local = torch.where((indices >= start) & (indices < stop), indices - start, stop - start)
    padding = padding - start if start <= padding < stop else -1
    return func(grad, local, stop - start + 1, padding, False).narrow(0, 0, stop - start)


def _local_of_bags(call: BoundCall, _given: Sequence[Region], made: Sequence[Region]) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    if made[0].is_whole(0):
        return func(*args, **kwargs)
    indices, padding = cast(torch.Tensor, args[1]), cast(int, argument(func, args, kwargs, "padding_idx"))
    start, stop = made[0].box[0]
    local = torch.where((indices >= start) & (indices < stop), indices - start, stop - start)
    padding = padding - start if start <= padding < stop else -1
    return func(args[0], local, *args[2:6], stop - start + 1, *args[7:11], padding).narrow(0, 0, stop - start)


_OWN_ROWS = Rule(rules[aten.embedding_dense_backward.default].factors, local=_local)
_OWN_ROWS_OF_BAGS = Rule(rules[aten._embedding_bag_backward.default].factors, local=_local_of_bags)
