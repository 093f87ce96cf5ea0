"""Softmax along a split dim, and losses of split classes: small all-reduces instead of gathering scores.

Each device reduces what it holds of the dim. In one memory the op runs as it is, and what it stands for is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.index_bounds import check_index
from ...engine.memory import held_whole
from ...engine.moves.movement import from_plain
from ...engine.moves.telling import note_steps
from ...engine.sharded import ShardedTensor, as_sharded, sharded, wrap_total, wrap_whole
from ...engine.strategy import BroughtTensor, Strategy, cheapest, decided_once
from ...engine.total import Contributions, Origin
from ...rules.bounds import Bound
from ...rules.call import BoundCall
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp
from .reductions import wide

__all__ = ["nll_loss_of_split_classes", "nll_loss_of_split_classes_backward", "stays_split"]

aten = torch.ops.aten


def _statistic(layout: Layout, shape: tuple[int, ...], dim: int) -> tuple[Layout, tuple[int, ...]]:
    """The layout and shape of a reduction along a split dim, before it is resolved."""
    reduced = layout.with_split(dim, ()).with_pending(dict.fromkeys(layout.splits[dim], ReduceOp.SUM))
    return reduced, (*shape[:dim], 1, *shape[dim + 1 :])


def stays_split(x: torch.Tensor, dim: int) -> bool:
    """Whether a dim is split, and two small all-reduces are cheaper than gathering it."""
    if not isinstance(x, ShardedTensor) or not x.dim() or x._layout.pending or not x._layout.splits[dim]:
        return False
    return x.numel() > 0 and _is_reduced(x._layout, tuple(x.shape), x.dtype.itemsize, dim)


@decided_once
def _is_reduced(layout: Layout, shape: tuple[int, ...], itemsize: int, dim: int) -> bool:
    waiting, small = _statistic(layout, shape, dim)
    gathered = BroughtTensor(layout, layout.with_split(dim, ()), shape, itemsize)
    reduced = BroughtTensor(waiting, waiting.resolved, small, itemsize, times=2)
    return cheapest([Strategy("gather the dim", False, (gathered,)), Strategy("reduce along it", True, (reduced,))])


def _note(x: ShardedTensor, dim: int, count: int, op: str) -> None:
    """Notes the reductions along a dim that one memory need not carry out."""
    layout, shape = _statistic(x._layout, tuple(x.shape), dim)
    for _ in range(count):
        note_steps(layout, layout.resolved, shape, x.dtype, op)


@handler(aten._softmax.default, aten._log_softmax.default, may_be_direct=True)
def _softmax(call: BoundCall) -> object:
    func, x, widens = call.func, sharded(call, "self"), call.flag("half_to_float")
    dim = call.integer("dim") % max(1, x.dim())
    if not stays_split(x, dim):
        return run_by_rule(call)
    whole = held_whole(x)
    if whole is not None:
        _note(x, dim, 2, str(func))
        return wrap_whole(func(whole, dim, widens), x._layout)
    value = x.float() if widens else wide(x)
    shifted = value - aten.amax(value, [dim], True)
    power = shifted.exp()
    total = aten.sum.dim_IntList(power, [dim], True)
    result = power / total if func is aten._softmax.default else shifted - total.log()
    return result if widens else result.to(x.dtype)


@handler(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default, may_be_direct=True)
def _softmax_backward(call: BoundCall) -> object:
    func, grad, output = call.func, call.tensor("grad_output"), call.tensor("output")
    dim, dtype = call.integer("dim") % max(1, output.dim()), call.dtype("input_dtype")
    if not isinstance(output, ShardedTensor) or not stays_split(output, dim):
        return run_by_rule(call)
    alike = isinstance(grad, ShardedTensor) and grad._layout == output._layout
    wholes = [held_whole(as_sharded(x)) if alike else None for x in (grad, output)]
    if all(whole is not None for whole in wholes):
        _note(output, dim, 1, str(func))
        return wrap_whole(func(*wholes, dim, dtype), output._layout)
    flow, value = wide(grad), wide(output)
    if func is aten._softmax_backward_data.default:
        result = value * (flow - aten.sum.dim_IntList(flow * value, [dim], True))
    else:
        result = flow - value.exp() * aten.sum.dim_IntList(flow, [dim], True)
    return result.to(dtype)


class _Picks:
    """For each sample, which class it picks: as a mask that lies like the scores."""

    def __init__(self, x: ShardedTensor, target: torch.Tensor, weight: torch.Tensor | None, ignored: int) -> None:
        beside = [1, -1, *[1] * (x.dim() - 2)]
        classes = torch.arange(x.shape[1], device=x.device)
        split = Layout(x.mesh, [x._layout.splits[1] if d == 1 else () for d in range(x.dim())])
        numbers = from_plain(classes.reshape(beside), split)
        self.counted = target != ignored
        self.mask = (numbers == target.unsqueeze(1)) & self.counted.unsqueeze(1)
        self.weight = None if weight is None else weight.reshape(beside)


def _on_plain(call: BoundCall, x: ShardedTensor) -> BoundCall | None:
    """The call on plain values: in one memory, where no tensor has to move to lie beside the scores."""
    classes, samples = x._layout.splits[1:2], (*x._layout.splits[:1], *x._layout.splits[2:])
    named: dict[str, object] = {"self": held_whole(x)}
    for name, beside in (("target", samples), ("grad_output", samples), ("weight", classes)):
        given = call.optional(name)
        if isinstance(given, ShardedTensor):
            named[name] = held_whole(given) if _lies_beside(given, x, beside) else None
    if any(value is None for value in named.values()):
        return None
    if call.has("total_weight"):
        named["total_weight"] = torch.ones((), dtype=x.dtype, device=x.device)  # sums do not read it
    return call.replaced(**named)


def _lies_beside(given: ShardedTensor, x: ShardedTensor, splits: Sequence[tuple[str, ...]]) -> bool:
    """Whether nothing of a tensor has to move where dims of `x` are split so: it is split alike, or not at all."""
    own = given._layout
    return given.mesh == x.mesh and all(axes in ((), wanted) for axes, wanted in zip(own.splits, splits, strict=False))


def nll_loss_of_split_classes(call: BoundCall) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of samples and their weights; scores of classes that others hold are not needed."""
    x, target, weight = sharded(call, "self"), call.tensor("target"), call.optional("weight")
    plain = _on_plain(call.replaced(reduction=0), x)
    if plain is None:
        each = _losses(call)
    else:
        value = plain.results()[0]
        samples = Layout(x.mesh, (*x._layout.splits[:1], *x._layout.splits[2:]))
        layout = samples.with_pending(dict.fromkeys(x._layout.splits[1], ReduceOp.SUM))
        each = wrap_total(value, layout, Contributions(Origin(partial(_losses, call)), 0, value, layout), [False])
    counted = target != call.integer("ignore_index")
    if weight is None:
        return each, counted.to(x.dtype)
    safe = torch.where(counted, target, torch.zeros_like(target))
    return each, aten.index_select(weight, 0, safe.reshape(-1)).reshape(target.shape) * counted


def _losses(call: BoundCall) -> torch.Tensor:
    """The losses of samples: a sum over the classes, of which one counts."""
    x, target = sharded(call, "self"), call.tensor("target")
    picks = _Picks(x, target, call.optional("weight"), call.integer("ignore_index"))
    picked = torch.where(picks.counted, target, torch.zeros_like(target))
    check_index(picked, Bound(1, 1, x.shape[1], words="Target {index} is out of bounds."))
    scores = x if picks.weight is None else x * picks.weight
    each: torch.Tensor = -aten.sum.dim_IntList(torch.where(picks.mask, scores, torch.zeros_like(x)), [1])
    return each


def nll_loss_of_split_classes_backward(call: BoundCall) -> torch.Tensor:
    """The gradient of the scores: it lies like them, and nothing moves."""
    grad, x = call.tensor("grad_output"), sharded(call, "self")
    plain = _on_plain(call, x)
    if plain is not None:
        return wrap_whole(plain.result(), x._layout)
    picks = _Picks(x, call.tensor("target"), call.optional("weight"), call.integer("ignore_index"))
    flow = -(grad.unsqueeze(1) if grad.dim() else grad)
    flow = flow if picks.weight is None else flow * picks.weight
    return torch.where(picks.mask, flow, torch.zeros_like(x))
