"""Running one op on what devices hold, once the layouts are chosen."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...rules.call import BoundCall, each_of
from ...rules.registry import Rule, Spec
from ...runtime.holding import Pieces, holding
from ...runtime.reduction import neutral
from ...runtime.strides import FEW, Strides, has_windows, reach_of
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ...sharding.placements import ReduceOp
from ..op_kind import expects_contiguous, for_each_result, kind_of, written_argument
from ..sharded import ShardedTensor, wrap
from ..writes.copying import copy_once
from .schedule import OpSchedule, Place, of_rank

__all__ = ["run_everywhere", "run_replicated", "run_whole"]


def run_whole(
    call: BoundCall, laid: Sequence[torch.Tensor], outputs: tuple[Layout, ...] | None, mesh: DeviceMesh
) -> object:
    """Runs an op once, on whole values: one memory, nothing pending."""

    def made(position: int, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        same = written_argument(call, position)
        if same is not None:
            return same
        _check_dense(call, value)
        layout = of_rank(None if outputs is None else outputs[position], value.dim(), mesh)
        return wrap((value,), layout, value.shape)

    return for_each_result(call.on([x._value.pieces[0] if isinstance(x, ShardedTensor) else x for x in laid]), made)


def run_everywhere(call: BoundCall, laid: Sequence[ShardedTensor], schedule: OpSchedule, rule: Rule | None) -> object:
    """Runs an op at every place of its schedule, on its tensors as they were laid out for it."""
    made: list[dict[int, torch.Tensor]] = [{} for _ in schedule.outputs]
    result: object = None
    # Asked for where nothing runs, too: what they come from is logged everywhere.
    held = [x._value.pieces for x in laid]
    for place in schedule.places:
        result = _run_at(place, call, _read_at(place, call, held), schedule, rule)
        values = each_of(result)
        for k, (piece, value) in enumerate(zip(place.makes, values, strict=True)):
            if isinstance(value, torch.Tensor):
                part = place.parts[k]
                if part is None:
                    made[k].setdefault(piece, value)
                else:
                    _fill(made[k], piece, part, value, schedule.specs[k])
            elif value is not None and len(values) == 1:
                return result
    return _gathered(call, schedule, made, result)


def _read_at(place: Place, call: BoundCall, held: Sequence[Pieces]) -> list[torch.Tensor]:
    """What one run reads of each tensor."""
    local = [
        pieces[piece] if part is None else pieces[piece][part]
        for pieces, (piece, part) in zip(held, place.reads, strict=True)
    ]
    if expects_contiguous(call.func):
        local = [t.contiguous() for t in local]
    return [t.to("meta") for t in local] if any(t.is_meta for t in local) else local


def _run_at(
    place: Place, call: BoundCall, local: list[torch.Tensor], schedule: OpSchedule, rule: Rule | None
) -> object:
    """What one run gives of what it reads."""
    if rule is None:
        return call.on(local)
    if rule.looks_for and any(t.is_meta for t in local):
        return _without_memory(call.func, place, schedule)
    if rule.local is not None:
        return rule.local(call.with_tensors(local), place.inputs, place.outputs)
    if rule.of_nothing is not None and not all(t.numel() for t in local):
        return _neutral(call.func, rule.of_nothing, local, place, schedule)
    here = call if rule.local_args is None else rule.local_args(call.with_tensors(local), place.out_shapes)
    return BoundCall(rule.local_op or call.func, here.args, here.kwargs).on(local)


def _fill(
    pieces: dict[int, torch.Tensor], piece: int, part: tuple[slice, ...], value: torch.Tensor, spec: Spec | None
) -> None:
    """Writes what one run made into a whole piece, of which several runs make a part each."""
    assert spec is not None
    if piece not in pieces:
        pieces[piece] = torch.empty(spec.shape, dtype=value.dtype, device=value.device)
    pieces[piece][part] = value


def _neutral(
    func: torch._ops.OpOverload, op: ReduceOp, local: Sequence[torch.Tensor], place: Place, schedule: OpSchedule
) -> object:
    """The results of a device that holds nothing of an input: what changes nothing, or nothing at all."""
    values: list[torch.Tensor | None] = []
    for shape, spec in zip(place.out_shapes, schedule.specs, strict=True):
        if spec is None:
            values.append(None)
            continue
        values.append(torch.full(shape, neutral(op, spec.dtype), dtype=spec.dtype, device=local[0].device))
    return values[0] if len(func._schema.returns) == 1 else tuple(values)


def _without_memory(func: torch._ops.OpOverload, place: Place, schedule: OpSchedule) -> object:
    """The results of a device for tensors that have no memory: what it would compute of their values, nobody asks."""
    values = [
        None if spec is None else torch.empty(shape, dtype=spec.dtype, device="meta")
        for shape, spec in zip(place.out_shapes, schedule.specs, strict=True)
    ]
    return values[0] if len(func._schema.returns) == 1 else tuple(values)


def run_replicated(call: BoundCall, laid: Sequence[ShardedTensor], mesh: DeviceMesh) -> object:
    """Runs an op that has no rule on the replica in each memory; what it gives is replicated too. A number is found once."""
    kind = kind_of(call.func)
    only_reads = kind.is_pure and kind.viewed is None
    given = [_lying_as(x, t) if only_reads else t._value.pieces for x, t in zip(call.tensors, laid, strict=True)]
    replicas = list(zip(*given, strict=True))
    only = slice(1) if _gives_number(call.func) else slice(None)  # a compiler counts the numbers that a program finds
    results = [call.on(pieces) for pieces in replicas[only]]
    columns = list(zip(*map(each_of, results), strict=True))

    def made(position: int, value: object) -> object:
        same = written_argument(call, position)
        if same is not None or not isinstance(value, torch.Tensor):
            return value if same is None else same
        _check_dense(call, value)
        pieces = tuple(piece for piece in columns[position] if isinstance(piece, torch.Tensor))
        return wrap(pieces, Layout.replicated(mesh, value.dim()), value.shape, strides=value.stride())

    return for_each_result(results[0], made)


def _lying_as(x: torch.Tensor, laid: ShardedTensor) -> Pieces:
    """The replicas of a tensor, with its strides where few elements lie otherwise: kernels go by them, also by those of dims of size 1."""
    shape, strides, pieces = tuple(x.shape), x.stride(), laid._value.pieces
    if not 0 < reach_of(shape, strides) <= FEW or has_windows(shape, strides):
        return pieces
    return tuple([t if t.stride() == strides else _copied(t, strides) for t in pieces])


def _copied(piece: torch.Tensor, strides: Strides) -> torch.Tensor:
    laid = torch.empty_strided(piece.shape, strides, dtype=piece.dtype, device=piece.device)
    copy_once(laid, piece)
    return laid


def _check_dense(call: BoundCall, value: torch.Tensor) -> None:
    if value.layout is not torch.strided:
        raise TypeError(
            f"{call} gives a tensor of layout {value.layout}, which cannot lie on a mesh: use it on x.full_tensor()"
        )


def _gathered(call: BoundCall, schedule: OpSchedule, made: list[dict[int, torch.Tensor]], result: object) -> object:
    """The outputs, put together from the pieces that the runs made."""
    kind = kind_of(call.func)
    wrapped: list[object] = []
    for k, (layout, spec, strides) in enumerate(zip(schedule.outputs, schedule.specs, schedule.strided, strict=True)):
        if spec is None or strides is None:
            wrapped.append(result[k] if isinstance(result, (tuple, list)) else None)
            continue
        same = None if kind.is_pure else written_argument(call, k)
        if same is not None:
            wrapped.append(same)
            continue
        pieces = tuple(made[k][i] for i in range(holding(layout).count))
        if kind.viewed is None:
            pieces = strides.ordered(pieces)
        device = None if pieces else _without_memory_too(call)
        wrapped.append(wrap(pieces, layout, spec.shape, dtype=spec.dtype, strides=strides.whole, device=device))
    if isinstance(result, (tuple, list)):
        return type(result)(wrapped)
    if not call.func._schema.returns:
        return None
    return tuple(wrapped) if not schedule.places and _gives_several(call.func) else wrapped[0]


def _without_memory_too(call: BoundCall) -> torch.device | None:
    """The device of a result of which nothing is here, where it is one without memory: asked for, or that of the tensors."""
    asked = call.kwargs.get("device") or (call.tensors[0].device if call.tensors else None)
    return asked if isinstance(asked, torch.device) and asked.type == "meta" else None


def _gives_number(func: torch._ops.OpOverload) -> bool:
    """Whether an op reads tensors, and what it gives is a number."""
    returns = func._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.NumberType) and kind_of(func).is_pure


def _gives_several(func: torch._ops.OpOverload) -> bool:
    """Whether an op gives several results, or a list of them, which may be of one."""
    returns = func._schema.returns
    return len(returns) > 1 or isinstance(returns[0].type, torch.ListType)
