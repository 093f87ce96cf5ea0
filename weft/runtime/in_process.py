"""One process, many devices: movements are box copies written straight into the target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from ..planning import plan_layouts
from ..planning.transfers import receives
from ..sharding.geometry import box_at, within
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from .holding import Pieces, holding, nbytes, slices
from .host_memory import relieve_pressure
from .reduction import neutral, reduce_into

__all__ = ["fill_pending", "lazy_clone", "move"]


def lazy_clone(x: torch.Tensor) -> torch.Tensor:
    """A copy that costs nothing until one of the two is written to.

    >>> a = torch.zeros(3)
    >>> b = lazy_clone(a)
    >>> _ = a.add_(1)
    >>> b
    tensor([0., 0., 0.])
    """
    # Writing to a copy-on-write view copies its whole storage: not worth it for a small part of a large one.
    if 2 * x.numel() * x.itemsize < x.untyped_storage().nbytes():
        return x.clone()
    try:
        return torch._lazy_clone(x)
    except RuntimeError:
        # Memory that torch did not allocate (NumPy's, DLPack's, shared memory) cannot be copy-on-write.
        return x.clone()


def move(pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int]) -> Pieces:
    """The pieces of the same tensor in another layout. Both meshes belong to this process."""
    here, there = holding(source), holding(target)
    if here.unified and there.unified and here.residence.memories[0] == there.residence.memories[0]:
        return _move_whole(pieces, source, target, shape)
    if not pieces and not there.count:
        return ()
    for step in plan_layouts(source, target, tuple(shape), pieces[0].dtype.itemsize).steps:
        pieces = _run_step(pieces, step.source, step.target, tuple(shape))
    return pieces


def _move_whole(pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int]) -> Pieces:
    if source.pending and source.pending != target.pending:
        pieces = (_reduced_whole(pieces, source, shape),)
        source = source.resolved
    else:
        pieces = tuple(map(lazy_clone, pieces))
    if target.pending and not source.pending:
        return fill_pending(pieces[0], target)
    return pieces


def _reduced_whole(pieces: Pieces, source: Layout, shape: Sequence[int]) -> torch.Tensor:
    first = pieces[0]
    relieve_pressure(nbytes(shape, first.dtype))
    out = torch.empty(tuple(shape), dtype=first.dtype, device=first.device)
    return reduce_into(out, _one_kind(source), pieces)


def _one_kind(source: Layout) -> ReduceOp:
    """The kind of all pending reductions; the planner has refused mixed kinds."""
    return source.pending[0][1]


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
    here, there = holding(source), holding(target)
    if target.pending and not source.pending:
        return _spread(pieces, source, target, shape)
    result = []
    dropped = [axis for axis in source.pending_axes if axis not in target.pending_axes]
    for piece in range(there.count):
        slot = there.slots[piece]
        where = there.box(piece, shape)
        dtype = pieces[0].dtype
        out = torch.empty([stop - start for start, stop in where], dtype=dtype, device=there.devices[piece])
        if dropped:
            parts = _contributions(pieces, source, target, shape, piece, dropped)
            reduce_into(out, _one_kind(source), [part.to(out.device) for part in parts])
        else:
            for transfer in receives(source, target, shape, slot):
                origin = here.piece_of[transfer.source_slot]
                part = pieces[origin][slices(within(transfer.box, here.box(origin, shape)))]
                out[slices(within(transfer.box, where))].copy_(part)
        result.append(out)
    return tuple(result)


def _contributions(
    pieces: Pieces, source: Layout, target: Layout, shape: tuple[int, ...], piece: int, dropped: Sequence[str]
) -> list[torch.Tensor]:
    """For one target piece, what each coordinate of the dropped axes contributes to its box."""
    there = holding(target)
    where = there.box(piece, shape)
    index_of, sizes = source.mesh.index_of, source.mesh.mesh_shape
    result = []
    for at in product(*(range(sizes[index_of[axis]]) for axis in dropped)):
        coords = list(there.coords[piece])
        for axis, c in zip(dropped, at, strict=True):
            coords[index_of[axis]] = c
        result.append(_read_box(pieces, source, shape, tuple(coords), where))
    return result


def _read_box(
    pieces: Pieces, source: Layout, shape: tuple[int, ...], coords: tuple[int, ...], where: tuple[tuple[int, int], ...]
) -> torch.Tensor:
    """A box read at these coordinates: a slice of what is held there, or put together from where it is held."""
    here = holding(source)
    held = box_at(source, shape, coords)
    if all(a <= start and stop <= b for (start, stop), (a, b) in zip(where, held, strict=True)):
        origin = here.piece_of[source.mesh.slot(coords)]
        return pieces[origin][slices(within(where, here.box(origin, shape)))]
    raise ValueError(f"a reducing step must read only what a device holds, but {where!r} is outside {held!r}")


def _spread(pieces: Pieces, source: Layout, target: Layout, shape: tuple[int, ...]) -> Pieces:
    """Replicated or split to pending: the first coordinate keeps the value, the others get the neutral element."""
    here, there = holding(source), holding(target)
    index_of = target.mesh.index_of
    repeats = all(op in (ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN) for _, op in target.pending)
    result = []
    for piece in range(there.count):
        coords = there.coords[piece]
        where = there.box(piece, shape)
        first = all(coords[index_of[axis]] == 0 for axis in target.pending_axes)
        if not first and not repeats:
            value = neutral(target.pending[0][1], pieces[0].dtype)
            result.append(
                torch.full([b - a for a, b in where], value, dtype=pieces[0].dtype, device=there.devices[piece])
            )
            continue
        origin = here.piece_of[there.slots[piece]]
        held = here.box(origin, shape)
        if all(a <= start and stop <= b for (start, stop), (a, b) in zip(where, held, strict=True)):
            result.append(lazy_clone(pieces[origin][slices(within(where, held))]))
            continue
        out = torch.full(
            [b - a for a, b in where], neutral(target.pending[0][1], pieces[0].dtype), dtype=pieces[0].dtype
        )
        out = out.to(there.devices[piece])
        out[slices(within(held, where))].copy_(pieces[origin])
        result.append(out)
    return tuple(result)
