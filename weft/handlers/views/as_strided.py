"""`as_strided`: said as slices, selections and a permutation where that is what it is, else taken of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...caches import cached
from ...engine.execute import run_by_rule
from ...engine.form import form_of
from ...engine.handlers import handler
from ...engine.memory import held_whole, memory_of
from ...engine.moves.movement import from_plain, to_plain
from ...engine.moves.telling import note_move
from ...engine.sharded import ShardedTensor, as_sharded, made, sharded, wrap, wrap_whole
from ...engine.views.copy_views import Told, is_copy, is_observed, remember, remember_apart, remember_counted_alone
from ...engine.views.view import extent
from ...engine.views.view_results import tell_whole
from ...engine.writes.copying import copy_once
from ...engine.writes.resizing import root_of
from ...engine.writes.writing import store
from ...rules.call import Args, BoundCall, Op
from ...runtime.memory.lazy_copy import may_overlap
from ...runtime.strides import reach_of
from ...runtime.traced import settled
from ...sharding.layout import Layout

aten = torch.ops.aten
Sizes = tuple[int, ...]
_NAME = str(aten.as_strided.default)


@dataclass(frozen=True, slots=True)
class _TakenDims:
    """What is taken of each dim (start, step, count; count None: one index, and the dim goes), and how dims then stand."""

    parts: tuple[tuple[int, int, int | None], ...]
    order: tuple[int, ...]
    new: tuple[int, ...]
    """Where dims of size 1 are put in, in ascending order."""

    def views(self, shape: Sizes) -> Iterator[tuple[Op, Args]]:
        """The same as views of a tensor of this shape, one of another."""
        for dim in reversed(range(len(shape))):
            start, step, count = self.parts[dim]
            if count is None:
                yield aten.select.int, (dim, start)
            elif (start, step, count) != (0, 1, shape[dim]):
                yield aten.slice.Tensor, (dim, start, start + (count - 1) * step + 1, step)
        if self.order != tuple(range(len(self.order))):
            yield aten.permute.default, (list(self.order),)
        for dim in self.new:
            yield aten.unsqueeze.default, (dim,)


@handler(aten.as_strided.default)
def _as_strided(call: BoundCall) -> object:
    x, size, stride = sharded(call, "self"), tuple(call.integers("size")), tuple(call.integers("stride"))
    base = int(x.storage_offset())
    offset = base if call.arg("storage_offset") is None else call.integer("storage_offset")
    if min(stride, default=0) < 0:
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(stride)}")
    if min(size, default=0) < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(size)}: {list(size)}")
    taken = _read(tuple(x.shape), x.stride(), size, stride, offset - base)
    if taken is None:
        wanted = _StridedSource(size, stride, offset)
        is_copied = memory_of(x._layout).pieces_are_shards or bool(x._layout.pending) or is_copy(x)
        whole = _whole_of(x, wanted) if is_copied or is_observed() else x
        held = None if is_copied else held_whole(whole)
        if held is None:
            return _of_whole(x, whole, wanted)
        held.as_strided(size, stride, offset)  # which torch may refuse, before it is told what moves
        return run_by_rule(BoundCall(call.func, (whole, size, stride, offset)))
    y, may_be_copy = x, memory_of(x._layout).copies_views(x)
    for view, rest in taken.views(tuple(x.shape)):
        z = as_sharded(view(y, *rest))
        # Torch will know the last one as a view of `x`, but not those on the way.
        y = remember_apart(z, y) if may_be_copy else z
    return _restrided(as_sharded(aten.alias.default(x)) if y is x else y, stride)


def _restrided(y: ShardedTensor, stride: Sizes) -> ShardedTensor:
    """A view that nobody else has, with the strides that were asked for: those of dims of size 1 may be any."""
    if y.stride() == stride:
        return y
    value = y._value
    if not memory_of(y._layout).pieces_are_shards:
        if value.is_made:
            value.pieces = tuple(_laid(each, stride) for each in value.pieces)
        if value.total is not None:
            value.total.value = _laid(value.total.value, stride)
    form = form_of(y._layout, y.shape, stride, y.dtype, y.device, y._form.is_special)
    return made(form, value, int(y.storage_offset()), y._asked)


def _laid(whole: torch.Tensor, stride: Sizes) -> torch.Tensor:
    return whole.as_strided(whole.shape, stride, whole.storage_offset())


@handler(aten.as_strided_copy.default)
def _as_strided_copy(call: BoundCall) -> object:
    return aten.clone.default(aten.as_strided.default(*call.args, **call.kwargs), memory_format=torch.contiguous_format)


@handler(aten.as_strided_scatter.default)
def _as_strided_scatter(call: BoundCall) -> object:
    """A copy in memory as the tensor has it, gaps included, and written to there."""
    x, source, size, stride = call.tensor("self"), call.tensor("src"), call.integers("size"), call.integers("stride")
    if not isinstance(x, ShardedTensor):  # what is brought to a mesh has no gaps, of which some are written to
        mine = sharded(call, "src")
        written = call.replaced(src=to_plain(mine, str(call), implicit=True)).result()
        there = from_plain(written, Layout.replicated(mine.mesh, x.dim()))
        return there if held_whole(there) is None else wrap_whole(written, there._layout)
    if may_overlap(x) or source.shape != tuple(size) or min(stride, default=0) < 0:
        return run_by_rule(call)  # torch refuses it, or copies it row by row
    if x.requires_grad and not x.is_contiguous():
        raise RuntimeError(
            f"as_strided_scatter gives gradients of contiguous tensors, not of one of strides {list(x.stride())}"
        )
    start = int(x.storage_offset())
    offset = start if call.arg("storage_offset") is None else call.integer("storage_offset")
    held = extent(x)
    if 0 not in size and offset + reach_of(size, stride) > held:
        raise RuntimeError(
            f"as_strided_scatter({size}, {stride}, {offset}) reaches beyond the memory of {held} elements"
        )
    shown = _memory(x)
    memory = shown.new_zeros(held)
    memory[start : start + len(shown)] = shown
    given = to_plain(source, str(call), implicit=True) if isinstance(source, ShardedTensor) else source
    memory.as_strided(size, stride, offset).copy_(given)
    whole = memory.as_strided(x.shape, x.stride(), start)
    y = from_plain(whole, Layout.replicated(x.mesh, x.dim()))
    return memory_of(y._layout).laid_like(y, x)


@dataclass(frozen=True, slots=True)
class _StridedSource:
    """Where elements are taken from: the offset is that in the memory a tensor would have if it were whole."""

    size: Sizes
    stride: Sizes
    offset: int

    def of(self, base: ShardedTensor, memory: torch.Tensor) -> torch.Tensor:
        """The elements, of a memory that begins where `base` does."""
        start = 0 if 0 in self.size else self.offset - int(base.storage_offset())  # nothing lies anywhere
        return memory.as_strided(self.size, self.stride, start)

    def lies_in(self, base: ShardedTensor) -> bool:
        """Whether all of them are elements of a tensor."""
        start = self.offset - int(base.storage_offset())
        if 0 in self.size:
            return True
        if start < 0 or start + reach_of(self.size, self.stride) > reach_of(base.shape, base.stride()):
            return False
        with _disable_current_modes():  # a compiler has no part in this, nor do its programs
            held = torch.zeros(reach_of(settled(base.shape), settled(base.stride())), dtype=torch.bool)
            held[_places(base)] = True
            return bool(held.as_strided(settled(self.size), settled(self.stride), int(start)).all())

    def read(self, base: ShardedTensor) -> ShardedTensor:
        """The value of the view, whole on every device; what is one element of the tensor is one in the view."""
        memory = from_plain(_memory(base), Layout.replicated(base._layout.mesh, 1))
        layout = Layout.replicated(base._layout.mesh, len(self.size))
        taken = tuple(self.of(base, piece) for piece in memory._value.pieces)
        pieces = memory_of(layout).ordered(taken, self.stride)
        return wrap(pieces, layout, self.size, dtype=base.dtype, strides=self.stride, offset=self.offset)

    def write(self, base: ShardedTensor, view: ShardedTensor) -> None:
        """Writes the view back to the tensor."""
        memory = _memory(base)
        copy_once(self.of(base, memory), to_plain(view, _NAME, implicit=True))
        store(base, memory[_places(base).to(memory.device)].reshape(base.shape), "as_strided")


def _whole_of(x: ShardedTensor, view: _StridedSource) -> ShardedTensor:
    """What a view is taken of: `x`, or where it reaches beyond that, the tensor that this is a view of."""
    base = root_of(x)
    if base is None or view.lies_in(x):
        return x
    # Torch knows none of these as a view, and counts writes to `base` apart.
    if base.is_complex() and not x.is_complex():
        base = remember_apart(as_sharded(aten.view_as_real.default(base)), base)
    if base.dtype is not x.dtype:
        base = remember_apart(as_sharded(aten.view.dtype(base, x.dtype)), base)
    return base if base.is_conj() == x.is_conj() else remember_apart(as_sharded(aten._conj.default(base)), base)


def _of_whole(x: ShardedTensor, base: ShardedTensor, view: _StridedSource) -> ShardedTensor:
    """A view of elements wherever they lie; it may reach beyond `x`, into the tensor that this is a view of."""
    if not view.lies_in(base):
        raise RuntimeError(
            f"as_strided({list(view.size)}, {list(view.stride)}, {view.offset}) reaches memory outside of a tensor of shape "
            f"{list(x.shape)} with strides {list(x.stride())} and offset {int(x.storage_offset())}, and what lies there is not "
            "known where each device has memory of its own: take it of the tensor that this one is a view of"
        )
    told = Told(_tell_read, partial(tell_whole, aten.as_strided.default))
    y = remember(view.read(base), base, view.read, view.write, told=told)
    # Torch counts writes to views of `x.data` apart from those to `x`.
    return y if _counted_with(x) is _counted_with(base) else remember_counted_alone(y, base)


def _counted_with(x: ShardedTensor) -> torch.Tensor:
    """The tensor that torch knows this one as a view of, or it itself: it counts writes to both as one."""
    return x._base if x._is_view() and x._base is not None else x


def _tell_read(base: ShardedTensor) -> None:
    note_move(base, Layout.replicated(base._layout.mesh, base.dim()), _NAME)


def _places(x: ShardedTensor) -> torch.Tensor:
    """For each element, its place in memory from where `x` begins."""
    places = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(settled(x.shape), settled(x.stride()), strict=True):
        places = (places.unsqueeze(-1) + torch.arange(size) * stride).reshape(-1)
    return places


def _memory(x: ShardedTensor) -> torch.Tensor:
    """The memory of a tensor as it would be if it were whole; what is not of the tensor is zero."""
    whole = to_plain(x, _NAME, implicit=True)
    memory = torch.zeros(reach_of(x.shape, x.stride()), dtype=x.dtype, device=whole.device)
    memory[_places(x).to(whole.device)] = whole.reshape(-1)
    return memory


@cached(4096, of_sizes=True)
def _read(shape: Sizes, strides: Sizes, size: Sizes, stride: Sizes, offset: int) -> _TakenDims | None:
    """A strided view as one of indices, or None where it is not one."""
    if offset < 0 or 0 in shape or 0 in size:
        return None
    starts = _starts(shape, strides, offset)
    if starts is None:
        return None
    dim_of: dict[int, int] = {}
    parts: list[tuple[int, int, int | None]] = [(start, 1, None) for start in starts]
    for k, (count, step) in enumerate(zip(size, stride, strict=True)):
        if count == 1:
            continue
        dim = _dim(shape, strides, step, set(dim_of.values()))
        if dim is None or starts[dim] + (count - 1) * (step // strides[dim]) >= shape[dim]:
            return None
        dim_of[k] = dim
        parts[dim] = starts[dim], step // strides[dim], count
    kept = sorted(dim_of.values())
    order = tuple(kept.index(dim) for _, dim in sorted(dim_of.items()))
    return _TakenDims(tuple(parts), order, tuple(k for k, count in enumerate(size) if count == 1))


def _starts(shape: Sizes, strides: Sizes, offset: int) -> list[int] | None:
    """The index of the element at an offset."""
    starts = [0] * len(shape)
    for dim in sorted(range(len(shape)), key=lambda d: -strides[d]):
        if shape[dim] > 1:
            if strides[dim] == 0:
                return None
            starts[dim], offset = offset // strides[dim], offset % strides[dim]  # open sizes have no divmod
            if starts[dim] >= shape[dim]:
                return None
    return None if offset else starts


def _dim(shape: Sizes, strides: Sizes, step: int, used: set[int]) -> int | None:
    """The dim whose stride a step is a multiple of, the coarsest of them."""
    fitting = [d for d, s in enumerate(strides) if d not in used and shape[d] > 1 and s and s <= step and step % s == 0]
    return max(fitting, key=lambda d: strides[d], default=None)
