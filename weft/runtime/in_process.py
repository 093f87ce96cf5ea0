"""One process, many devices: movements are box copies written straight into the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from ..planning import AllReduce, Exchange, FillPartial, Permute, ReduceExchange, plan_layouts
from ..sharding.geometry import Box, box_shape, within
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from . import accelerator_kernels
from .accelerator import brought, copy, settle
from .copies import Writing, contributions, exchanges, writings
from .holding import Pieces, holding, nbytes, slices
from .host_memory import relieve_pressure
from .host_pool import pooled_empty
from .machine import forget_with_residences
from .reduction import neutral, reduce_into
from .strides import is_dense

__all__ = ["fill_pending", "lazy_clone", "may_overlap", "move", "placed", "scatter", "without_memory"]


def lazy_clone(x: torch.Tensor) -> torch.Tensor:
    """A copy that costs nothing until one of the two is written to.

    >>> a = torch.zeros(3)
    >>> b = lazy_clone(a)
    >>> _ = a.add_(1)
    >>> b
    tensor([0., 0., 0.])
    """
    # A copy has no gaps, and no element in two places, as slices, expanded tensors and windows do: it may be written to.
    if x.storage_offset() or not (x.is_contiguous() or is_dense(tuple(x.shape), x.stride())):
        return x.clone()
    # Writing to a copy-on-write view copies its whole storage: not worth it for a small part of a large one.
    storage = x.untyped_storage()
    if 2 * x.numel() * x.itemsize < storage.nbytes():
        return x.clone()
    # NumPy may write to memory that was handed to it, unseen; torch marks it as not resizable.
    if not storage.resizable():
        return x.clone()
    try:
        return torch._lazy_clone(x)
    except RuntimeError:
        # Memory that torch did not allocate (NumPy's, DLPack's, shared memory) cannot be copy-on-write.
        return x.clone()


def may_overlap(x: torch.Tensor) -> bool:
    """Whether two indices may name one element in memory."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def placed(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device; one without memory stays without."""
    return brought(x, device)


def move(pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int]) -> Pieces:
    """The pieces of the same tensor in another layout. Both meshes belong to this process."""
    here, there = holding(source), holding(target)
    if here.unified and there.unified and here.residence.memories[0] == there.residence.memories[0]:
        return _move_whole(pieces, source, target, shape)
    if not pieces and not there.count:
        return ()
    if here.unified and not source.pending:
        return scatter(pieces[0], target)
    if here.unified:
        return move(_move_whole(pieces, source, source.resolved, shape), source.resolved, target, shape)
    if there.unified and (target.pending or target.split_axes):
        # A tensor in one memory is stored whole there, whatever its layout.
        replicated = Layout.replicated(target.mesh, target.rank)
        return _move_whole(move(pieces, source, replicated, shape), replicated, target, shape)
    if pieces[0].is_meta:
        return without_memory(target, shape, pieces[0].dtype)
    for step in plan_layouts(source, target, tuple(shape), pieces[0].dtype.itemsize).steps:
        if isinstance(step, FillPartial):
            pieces = _spread(pieces, step)
        elif isinstance(step, Permute):
            pieces = _permuted(pieces, step)
        elif isinstance(step, Exchange):
            pieces = _exchanged(pieces, step)
        elif isinstance(step, ReduceExchange):
            pieces = _reduced_by_owners(pieces, step)
        else:
            together = _all_reduced(pieces, step) if isinstance(step, AllReduce) else None
            pieces = together or _run_step(pieces, step.source, step.target, tuple(shape))
    return pieces


def without_memory(layout: Layout, shape: Sequence[int], dtype: torch.dtype) -> Pieces:
    """The pieces of a tensor on the meta device, which move nowhere."""
    there = holding(layout)
    shapes = [there.piece_shape(piece, shape) for piece in range(there.count)]
    return tuple(torch.empty(size, dtype=dtype, device="meta") for size in shapes)


def scatter(whole: torch.Tensor, layout: Layout) -> Pieces:
    """The pieces of a value that this process has whole."""
    there = holding(layout.resolved)
    shape = tuple(whole.shape)
    boxes = [whole[slices(there.box(i, shape))] for i in range(there.count)]
    there_now = [brought(box, device, settled=False) for box, device in zip(boxes, there.devices, strict=True)]
    settle(whole, there.devices)
    parts = tuple(lazy_clone(part.contiguous()) for part in there_now)
    return move(parts, layout.resolved, layout, shape) if layout.pending else parts


def _move_whole(pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int]) -> Pieces:
    if source.pending and (source.pending != target.pending or source.mesh != target.mesh):
        # Axes of two meshes are not one axis because they have one name.
        left = [item for item in source.pending if item in target.pending and source.mesh == target.mesh]
        kept = source.with_pending(left if tuple(left) == target.pending else ())
        pieces = _reduced_whole(pieces, source, kept, shape)
        source = kept
    else:
        pieces = tuple(map(lazy_clone, pieces))
    if target.pending and not source.pending:
        return fill_pending(pieces[0], target)
    return pieces


def _reduced_whole(pieces: Pieces, source: Layout, kept: Layout, shape: Sequence[int]) -> Pieces:
    """Whole contributions, reduced over the axes that are pending in `source` and no longer in `kept`."""
    op, divisor, groups = _whole_groups(source, kept)
    first = pieces[0]
    relieve_pressure(len(groups) * nbytes(shape, first.dtype))
    outs = [pooled_empty(shape, first.dtype, first.device) for _ in groups]
    return tuple([reduce_into(out, op, [pieces[i] for i in of], divisor) for out, of in zip(outs, groups, strict=True)])


@lru_cache(maxsize=4096)
def _whole_groups(source: Layout, kept: Layout) -> tuple[ReduceOp, int, tuple[tuple[int, ...], ...]]:
    """How whole contributions are combined, and which of them make each piece."""
    here, there = holding(source), holding(kept)
    groups: dict[int, list[int]] = {}
    for piece, slot in enumerate(here.slots):
        groups.setdefault(there.piece_of[slot], []).append(piece)
    op, divisor = _how(source, [axis for axis in source.pending_axes if axis not in kept.pending_axes])
    return op, divisor, tuple(tuple(groups[k]) for k in range(len(groups)))


forget_with_residences(_whole_groups.cache_clear)


def _how(source: Layout, axes: Sequence[str]) -> tuple[ReduceOp, int]:
    """How contributions along these axes are combined, and what a mean divides by; the planner has refused other mixtures."""
    pending = dict(source.pending)
    kinds = {pending[axis] for axis in axes}
    divisor = math.prod(source.mesh.axis_size(axis) for axis in axes if pending[axis] is ReduceOp.AVG)
    return (ReduceOp.AVG if ReduceOp.AVG in kinds else kinds.pop()), divisor


def fill_pending(whole: torch.Tensor, target: Layout) -> Pieces:
    """Contributions that reduce to `whole`: it, and what changes nothing.

    A mean has no neutral element, but every contribution may be the value itself; so may it for max and min.
    """
    count = holding(target).count
    kinds = {op for _, op in target.pending}
    if kinds <= {ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN}:
        return (whole,) * count
    if len(kinds) > 1:
        raise ValueError(
            f"cannot spread one value over pending reductions of different kinds: {dict(target.pending)!r}"
        )
    nothing = torch.full((), neutral(kinds.pop(), whole.dtype), dtype=whole.dtype, device=whole.device)
    return (whole, *[nothing.expand(whole.shape)] * (count - 1))


def _run_step(pieces: Pieces, source: Layout, target: Layout, shape: tuple[int, ...]) -> Pieces:
    there = holding(target)
    dtype = pieces[0].dtype
    dropped = tuple(axis for axis in source.pending_axes if axis not in target.pending_axes)
    if not dropped:
        return tuple(
            _written(pooled_empty(writing.shape, dtype, device), writing, pieces)
            for writing, device in zip(writings(source, target, shape), there.devices, strict=True)
        )
    op, divisor = _how(source, dropped)
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


def _all_reduced(pieces: Pieces, step: AllReduce) -> Pieces | None:
    """Each group's shards, combined by one kernel on all its accelerators; None where that cannot be."""
    if not accelerator_kernels.serves(pieces) or step.divisor not in (1, step.contributions):
        return None
    here, there = holding(step.source), holding(step.target)
    mesh = step.source.mesh
    reduced = [mesh.index_of[axis] for axis in step.axes]
    groups: dict[tuple[int, ...], list[int]] = {}
    for slot in here.residence.owned:
        coords = mesh.coords(slot)
        groups.setdefault(tuple(c for i, c in enumerate(coords) if i not in reduced), []).append(slot)
    shapes = [there.piece_shape(piece, step.shape) for piece in range(there.count)]
    outs = [pooled_empty(shape, pieces[0].dtype, device) for shape, device in zip(shapes, there.devices, strict=True)]
    for slots in groups.values():
        parts = [pieces[here.piece_of[slot]] for slot in slots]
        targets = [outs[there.piece_of[slot]] for slot in slots]
        if not accelerator_kernels.all_reduce(targets, step.op, parts):
            return None
    return tuple(outs)


def _exchanged(pieces: Pieces, step: Exchange) -> Pieces:
    """Every device gets the boxes it needs, and neutral elements where it contributes nothing to what begins to be pending."""
    result = []
    for writing, device in zip(exchanges(step), holding(step.target).devices, strict=True):
        out = _blank(step, writing.shape, pieces[0].dtype, device)
        for each in writing.copies:
            part = pieces[each.origin][each.source]
            copy(out[each.target], part if step.scale == 1 else part * step.scale)
        result.append(out)
    return tuple(result)


def _reduced_by_owners(pieces: Pieces, step: ReduceExchange) -> Pieces:
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


def _blank(
    step: Exchange | ReduceExchange, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Room for a result: neutral elements where a reduction begins to be pending, else anything."""
    if step.neutral is None:
        return pooled_empty(shape, dtype, device)
    return torch.full(shape, neutral(step.neutral, dtype), dtype=dtype, device=device)


def _permuted(pieces: Pieces, step: Permute) -> Pieces:
    here, there = holding(step.source), holding(step.target)
    origins = [pieces[here.piece_of[step.source_of(slot)]] for slot in there.slots]
    return tuple(lazy_clone(brought(origin, device)) for origin, device in zip(origins, there.devices, strict=True))


def _spread(pieces: Pieces, step: FillPartial) -> Pieces:
    """To pending, without communication: what a slot keeps of its value, and the neutral element elsewhere."""
    here, there = holding(step.source), holding(step.target)
    result = []
    for piece, slot in enumerate(there.slots):
        where = there.box(piece, step.shape)
        origin = here.piece_of[slot]
        value = neutral(step.op, pieces[origin].dtype)
        out = torch.full(box_shape(where), value, dtype=pieces[origin].dtype, device=there.devices[piece])
        held = here.box(origin, step.shape)
        common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, where, strict=True))
        if step.keeps(slot) and all(start < stop for start, stop in common):
            kept = pieces[origin][slices(within(common, held))]
            copy(out[slices(within(common, where))], kept if step.scale == 1 else kept * step.scale)
        result.append(out)
    return tuple(result)
