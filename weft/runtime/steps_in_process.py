"""The steps of a plan in one process: box copies written straight into the target."""

from __future__ import annotations

from functools import singledispatch

import torch

from ..planning import AllReduce, Exchange, FillPartial, Permute, ReduceAcross, ReduceExchange, Step
from ..sharding.geometry import Box, box_shape, common, within
from .all_reducing import all_reduced
from .copies import Writing, contributions, exchanges, writings
from .holding import Pieces, holding, slices
from .memory.accelerator import brought, copy
from .memory.host_pool import pooled_empty
from .memory.lazy_copy import lazy_clone
from .reduction import Totals, combination, neutral, reduce_into
from .small_movements import joined, reduced_and_cut

__all__ = ["run_step"]


@singledispatch
def run_step(step: Step, pieces: Pieces) -> Pieces:
    """The pieces after a step: what its kind has a row for below, else copies and reductions of boxes."""
    return _by_boxes(step, pieces)


def _by_boxes(step: Step, pieces: Pieces) -> Pieces:
    """Any step, from the boxes of its two layouts alone."""
    source, target, shape = step.source, step.target, step.shape
    there = holding(target)
    dtype = pieces[0].dtype
    dropped = tuple(axis for axis in source.pending_axes if axis not in target.pending_axes)
    if not dropped:
        together = joined(pieces, source, target, shape)
        if together is not None:
            return together
        return tuple(
            _written(pooled_empty(writing.shape, dtype, device), writing, pieces)
            for writing, device in zip(writings(source, target, shape), there.devices, strict=True)
        )
    op, divisor = combination(source, dropped)
    together = reduced_and_cut(pieces, source, target, shape, dropped, (op, divisor))
    if together is not None:
        return together
    result: list[torch.Tensor] = []
    for each, device in zip(contributions(source, target, shape, dropped), there.devices, strict=True):
        if isinstance(each, int):  # a replica of what has just been reduced
            result.append(copy(pooled_empty(result[each].shape, dtype, device), result[each]))
            continue
        out = pooled_empty(each[0].shape, dtype, device)
        result.append(reduce_into(out, op, [_contributed(writing, pieces, device) for writing in each], divisor))
    return tuple(result)


def _written(out: torch.Tensor, writing: Writing, pieces: Pieces) -> torch.Tensor:
    """Fills a piece of the target."""
    for each in writing.copies:
        copy(out[each.target], pieces[each.origin][each.source])
    return out


def _contributed(writing: Writing, pieces: Pieces, device: torch.device) -> torch.Tensor:
    """One contribution to a piece of the target: a view where it lies in one place."""
    if len(writing.copies) == 1:
        (only,) = writing.copies
        return brought(pieces[only.origin][only.source], device)
    return _written(pooled_empty(writing.shape, pieces[0].dtype, device), writing, pieces)


@run_step.register
def _(step: AllReduce, pieces: Pieces) -> Pieces:
    return all_reduced(pieces, step.source, step.target, step.shape) or _by_boxes(step, pieces)


@run_step.register
def _(step: Exchange, pieces: Pieces) -> Pieces:
    """Every device gets the boxes it needs, and neutral elements where it contributes nothing to what begins to be pending."""
    result = []
    for writing, device in zip(exchanges(step), holding(step.target).devices, strict=True):
        out = _blank(step, writing.shape, pieces[0].dtype, device)
        for each in writing.copies:
            part = pieces[each.origin][each.source]
            copy(out[each.target], part if step.scale == 1 else part * step.scale)
        result.append(out)
    return tuple(result)


@run_step.register
def _(step: ReduceExchange, pieces: Pieces) -> Pieces:
    """Each box is reduced by its owner, who then gives it to all that need it."""
    here, there = holding(step.source), holding(step.target)
    reduced: dict[tuple[int, Box], torch.Tensor] = {}

    def owned(slot: int, box: Box) -> torch.Tensor:
        if (slot, box) not in reduced:
            device = here.residence.torch_devices[slot]
            out = pooled_empty(box_shape(box), pieces[0].dtype, device)
            parts = []
            for transfer in step.owners.collects(slot):
                if transfer.box == box:
                    origin = here.piece_of[transfer.source_slot]
                    part = pieces[origin][slices(within(box, here.box(origin, step.shape)))]
                    parts.append(brought(part, device))
            reduce_into(out, step.op, parts, step.divisor)
            reduced[slot, box] = out if step.scale == 1 else out * step.scale
        return reduced[slot, box]

    result = []
    for piece, slot in enumerate(there.slots):
        where = there.box(piece, step.shape)
        out = _blank(step, box_shape(where), pieces[0].dtype, there.devices[piece])
        for transfer in step.owners.takes(slot):
            copy(out[slices(within(transfer.box, where))], owned(transfer.source_slot, transfer.box))
        result.append(out)
    return tuple(result)


@run_step.register
def _(step: ReduceAcross, pieces: Pieces) -> Pieces:
    """Contributions come together as the step's work says; whoever wants a result gets it."""
    here, there = holding(step.source), holding(step.target)
    work, dtype = step.work, pieces[0].dtype
    totals = Totals(step.op, step.divisor, step.scale, dtype)

    def contribution(slot: int, where: Box) -> torch.Tensor:
        origin = here.piece_of[slot]
        return pieces[origin][slices(within(where, here.box(origin, step.shape)))]

    devices = dict(zip(work.places.of_target, there.residence.torch_devices, strict=True))
    devices |= dict(zip(work.places.of_source, here.residence.torch_devices, strict=True))
    sums: list[torch.Tensor] = []
    for each in work.sums:
        parts = [contribution(slot, each.box) for slot in each.slots]
        parts += [] if each.lower is None else [sums[each.lower]]
        sums.append(totals.added([brought(part, devices[each.place]) for part in parts]))
    given = {gift.sum for gift in work.gifts}
    if not work.adds:
        sums = [totals.finished(each) if number in given else each for number, each in enumerate(sums)]
    width = totals.width if work.adds else dtype
    result = [
        _blank(step, shape, width, device)
        for shape, device in zip(there.shapes(step.shape), there.devices, strict=True)
    ]
    for gift in work.gifts:
        piece = there.piece_of[gift.to]
        if there.slots[piece] != gift.to:
            continue  # it is a replica of what another slot has in this memory
        part = sums[gift.sum] if gift.sum is not None else contribution(gift.origin, gift.box)
        into = result[piece][slices(within(gift.box, there.box(piece, step.shape)))]
        if work.adds:
            part = totals.added([into, brought(part, into.device)])
        elif gift.sum is None:
            part = totals.finished(part)
        copy(into, part)
    return tuple(each.to(dtype) for each in result)


def _blank(
    step: Exchange | ReduceExchange | ReduceAcross, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Room for a result: neutral elements where a reduction begins to be pending, else anything."""
    if step.neutral is None:
        return pooled_empty(shape, dtype, device)
    return torch.full(shape, neutral(step.neutral, dtype), dtype=dtype, device=device)


@run_step.register
def _(step: Permute, pieces: Pieces) -> Pieces:
    here, there = holding(step.source), holding(step.target)
    origins = [pieces[here.piece_of[step.source_of(slot)]] for slot in there.slots]
    return tuple(lazy_clone(brought(origin, device)) for origin, device in zip(origins, there.devices, strict=True))


@run_step.register
def _(step: FillPartial, pieces: Pieces) -> Pieces:
    """To pending, without communication: what a slot keeps of its value, and the neutral element elsewhere."""
    here, there = holding(step.source), holding(step.target)
    result = []
    for piece, slot in enumerate(there.slots):
        where = there.box(piece, step.shape)
        origin = here.piece_of[slot]
        value = neutral(step.op, pieces[origin].dtype)
        out = torch.full(box_shape(where), value, dtype=pieces[origin].dtype, device=there.devices[piece])
        held = here.box(origin, step.shape)
        shared = common(held, where)
        if step.keeps(slot) and shared is not None:
            kept = pieces[origin][slices(within(shared, held))]
            copy(out[slices(within(shared, where))], kept if step.scale == 1 else kept * step.scale)
        result.append(out)
    return tuple(result)
