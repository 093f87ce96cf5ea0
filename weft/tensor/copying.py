"""Copies of tensors by `copy.copy` and `copy.deepcopy`: those that share memory have copies that share it, as in torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..engine.memory import memory_of
from ..engine.sharded import OWN_STATE, ShardedTensor, as_sharded, wrap
from ..engine.views.copy_views import catch_up, count_beside, current, remember, remember_apart, remember_told
from ..engine.writes.overlapping import shown_memory
from ..engine.writes.resizing import root_of
from ..runtime.holding import Pieces
from ..runtime.on_paper import aside
from ..runtime.strides import dense_strides, is_dense, reach_of

__all__ = ["deep_copy", "shallow_copy"]


@dataclass(frozen=True, slots=True)
class _Copied:
    """A copy of memory, and where what it is a copy of begins there, in each piece."""

    tensor: ShardedTensor
    offset: int
    places: tuple[tuple[int, int], ...]
    pieces: Pieces

    @classmethod
    def of(cls, x: ShardedTensor, copied: ShardedTensor) -> _Copied:
        return cls(copied, int(x.storage_offset()), tuple(map(_place, x._value.pieces)), copied._value.pieces)

    @classmethod
    def with_memory(cls, x: ShardedTensor) -> _Copied:
        """A copy of a tensor with all the memory that it is a part of."""
        storages = [piece.untyped_storage() for piece in current(x)]
        flat = {each._cdata: torch.empty(0, dtype=x.dtype, device=each.device).set_(each).clone() for each in storages}
        places, pieces = tuple((each._cdata, 0) for each in storages), tuple(flat[each._cdata] for each in storages)
        offset = int(x.storage_offset())
        there = _parts(pieces, places, current(x))
        assert there is not None
        copied = wrap(there, x._layout, x.shape, dtype=x.dtype, strides=x.stride(), offset=offset)
        return cls(copied, offset, places, pieces)

    def part(self, x: ShardedTensor) -> ShardedTensor | None:
        """What lies in the copy where a tensor lies in what was copied, if it is all there, piece by piece."""
        pieces = _parts(self.pieces, self.places, current(x))
        if pieces is None:
            return None
        part = wrap(pieces, x._layout, x.shape, dtype=x.dtype, strides=x.stride(), offset=self._offset_of(x))
        count_beside(part, self.tensor)
        return part

    def placed(self, x: ShardedTensor, copied: ShardedTensor) -> ShardedTensor:
        """A copy of a view that has memory of its own, where it would be if all were whole."""
        if not memory_of(x._layout).pieces_are_shards:
            return memory_of(x._layout).laid_like(copied, x)
        pieces, offset = copied._value.pieces, self._offset_of(x)
        return wrap(pieces, x._layout, x.shape, dtype=x.dtype, strides=x.stride(), offset=offset)

    def _offset_of(self, x: ShardedTensor) -> int:
        moved = (int(self.tensor.storage_offset()) - self.offset) * self.tensor.itemsize
        return int(x.storage_offset()) + moved // x.itemsize


def _parts(copied: Pieces, places: Sequence[tuple[int, int]], pieces: Pieces) -> Pieces | None:
    """What lies in a copy where pieces lie in what was copied, if it is all there."""
    found = []
    if len(copied) != len(pieces):
        return None
    for copy_of, (memory, begins), own in zip(copied, places, pieces, strict=True):
        if not own.numel():
            found.append(own.clone())
            continue
        size, start = own.itemsize, own.storage_offset() * own.itemsize - begins * copy_of.itemsize
        is_there = start >= 0 and start + reach_of(own.shape, own.stride()) * size <= copy_of.nbytes
        if _place(own)[0] != memory or not is_there or not is_dense(tuple(copy_of.shape), copy_of.stride()):
            return None
        offset = (
            copy_of.storage_offset() * copy_of.itemsize + start
        ) // size  # which is whole, where torch views it so
        there = torch.empty(0, dtype=own.dtype, device=own.device)
        found.append(there.set_(copy_of.untyped_storage(), offset, own.shape, own.stride()))
    return tuple(found)


def _place(piece: torch.Tensor) -> tuple[int, int]:
    return piece.untyped_storage()._cdata, int(piece.storage_offset())


def deep_copy(x: ShardedTensor, memo: dict[int, object]) -> object:
    """What `copy.deepcopy` gives of a tensor; `memo` has the copies that it has made so far."""
    if id(x) in memo:
        return memo[id(x)]
    if not x.is_leaf:
        raise RuntimeError("only leaf tensors can be deep-copied: detach() this one first")
    busy = _under_way(memo)
    if id(x) in busy:  # it was given the memory of a view of it
        with torch.no_grad():
            copied = _part_of_copied(x, memo)
    else:
        busy.add(id(x))
        copied = _copied_together(x, memo)
        busy.discard(id(x))
    if copied is None:
        copied = _copied_by_itself(x)
    copied._asked = x._asked
    memo[id(x)] = copied
    if not _is_copied_alone(x):
        memo.setdefault(shown_memory(x), _Copied.of(x, copied))
    _carry_state(x, copied)
    if x.grad is not None and not isinstance(x, torch.nn.Parameter):  # of a parameter, torch copies none
        copied.grad = copy.deepcopy(x.grad, memo)
    return copied


def _under_way(memo: dict[int, object]) -> set[int]:
    """The tensors that are being copied."""
    busy = memo.setdefault(id(_under_way), set())
    assert isinstance(busy, set)
    return busy


def shallow_copy(x: ShardedTensor) -> ShardedTensor:
    """What `copy.copy` gives of a tensor: another one with the same memory."""
    copied = as_sharded(x.detach())
    _carry_state(x, copied)
    return copied


def _copied_by_itself(x: ShardedTensor) -> ShardedTensor:
    pieces = tuple(piece.clone() for piece in current(x))
    strides = dense_strides(tuple(x.shape), x.stride())
    dense = wrap(pieces, x._layout, x.shape, dtype=x.dtype, strides=strides)
    is_dense = x.stride() == strides and (
        x.numel() > 0 or not x.storage_offset()
    )  # what is empty begins where it did, too
    return (
        dense
        if is_dense or isinstance(x, torch.nn.Parameter) or x.is_conj() or x.is_neg()
        else memory_of(x._layout).laid_like(dense, x)
    )


def _copied_together(x: ShardedTensor, memo: dict[int, object]) -> ShardedTensor | None:
    """The copy of a tensor that has its memory together with another, of which there is a copy, or will be: these share memory too."""
    base, shown = x._base if x._is_view() else None, x._value.shown
    if torch.compiler.is_compiling() or not x.numel() or any(map(_is_copied_alone, (x, x if base is None else base))):
        return None
    with torch.no_grad():
        copied = None
        if isinstance(base, ShardedTensor):
            if base.is_leaf and _has_memory_of(x, base):
                copied = _viewed_of(base, x, memo)
        elif shown is not None and shown.read is None and shown.base.tensor.is_leaf:  # as `y.data` does
            copied = (
                None if _is_copied_alone(shown.base.tensor) else _if_lying(x, copy.deepcopy(shown.base.tensor, memo))
            )
        return _part_of_copied(x, memo) if copied is None else copied


def _if_lying(x: ShardedTensor, copied: torch.Tensor) -> ShardedTensor | None:
    """What has been copied, alone, if it lies as the tensor does."""
    lies_alike = isinstance(copied, ShardedTensor) and _lying(copied) == _lying(x)
    return as_sharded(copied.data) if lies_alike else None


def _part_of_copied(x: ShardedTensor, memo: dict[int, object]) -> ShardedTensor | None:
    """The part of memory that has been copied, or is copied for it, where a tensor lies in its own, if it is all there."""
    memory = shown_memory(x)
    known = memo.get(memory)
    if known is None:
        known = _whole_memory(x)
    if not isinstance(known, _Copied):
        return None
    memo[memory] = known
    copied, start = known.tensor, int(x.storage_offset()) - known.offset
    again = _viewed_again(x, known)
    if again is not None or copied.dtype is not x.dtype:
        return again
    if start == 0 and _lying(copied) == _lying(x):
        return as_sharded(copied.data)
    is_there = start >= 0 and start + reach_of(x.shape, x.stride()) <= copied.numel()
    if not is_there or not is_dense(tuple(copied.shape), copied.stride()):
        return None
    return _if_lying(x, torch.as_strided(copied, x.shape, x.stride(), start + int(copied.storage_offset())))


def _viewed_of(base: ShardedTensor, x: ShardedTensor, memo: dict[int, object]) -> ShardedTensor | None:
    """The copy of a view, as one of the copy of what it is a view of."""
    whole = copy.deepcopy(base, memo)
    known = memo.get(shown_memory(base))
    again = _viewed_again(x, known) if isinstance(known, _Copied) else None
    if again is not None or _is_cut(x, base):
        return again
    return _if_lying(x, x._view_func_unsafe(whole))


def _viewed_again(x: ShardedTensor, known: _Copied) -> ShardedTensor | None:
    """What lies in the copy as a tensor does in what was copied; of a view that is a copy, a copy that shows that."""
    part, shown = known.part(x), x._value.shown
    base = None if shown is None else _viewed_again(shown.base.tensor, known)
    if shown is None or base is None:
        return part
    if shown.read is not None and shown.write is not None:
        again = remember(known.placed(x, _copied_by_itself(x)), base, shown.read, shown.write, told=shown.told)
    elif part is not None and shown.told is not None:
        catch_up(x)  # as what is a copy is read
        again = remember_told(part, base, shown.told)
    else:
        alias = _Copied.of(shown.base.tensor, base).part(x) if part is None else part
        return alias if alias is None or base._value.shown is None else remember_apart(alias, base)
    if again._value.shown is not None:
        again._value.shown.is_apart = True
    return again


def _whole_memory(x: ShardedTensor) -> _Copied | None:
    """A copy of all that has the memory which a tensor is a part of, as far as it is known."""
    root = root_of(x)
    if root is None or shown_memory(root) != shown_memory(x):
        root = x
    if _is_copied_alone(root):
        return None
    if any(not each.is_meta and each.nbytes != each.untyped_storage().nbytes() for each in current(root)):
        return _Copied.with_memory(root)
    return None if root is x else _Copied.of(root, _copied_by_itself(root))


def _has_memory_of(view: ShardedTensor, base: ShardedTensor) -> bool:
    """Whether a view shows its base still, whatever `view.data` was set to; one without memory here does."""
    memory = shown_memory(base)
    return memory in (id(base), shown_memory(view))


def _is_cut(view: ShardedTensor, base: ShardedTensor) -> bool:
    """Whether a view, or what it is a view of, was given another shape where it lies: torch does not know how to view that again."""
    with aside():
        start = int(base.storage_offset())
        memory = torch.empty(start + reach_of(base.shape, base.stride()), dtype=base.dtype, device="meta")
        try:
            again = view._view_func_unsafe(memory.as_strided(base.shape, base.stride(), start))
        except (RuntimeError, IndexError):  # no tensor of that shape can be viewed so
            return True
    return _place_of(again) != _place_of(view)


def _place_of(x: torch.Tensor) -> tuple[object, ...]:
    return tuple(x.shape), x.stride(), int(x.storage_offset()), x.dtype


def _is_copied_alone(x: torch.Tensor) -> bool:
    """Whether torch copies what a tensor shows, not the memory that it has."""
    return isinstance(x, torch.nn.Parameter) or x.is_conj() or x.is_neg()


def _lying(x: ShardedTensor) -> tuple[object, ...]:
    return x._layout, tuple(x.shape), x.stride(), x.dtype


def _carry_state(source: ShardedTensor, target: ShardedTensor) -> None:
    """What users and torch keep on a tensor (a parameter's mark, attributes) goes along with a copy."""
    for name, value in source.__dict__.items():
        if name not in OWN_STATE:
            target.__dict__[name] = value
    if source.requires_grad:
        target.requires_grad_()
