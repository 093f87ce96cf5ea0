"""Copies of tensors by `copy.copy` and `copy.deepcopy`: those that share memory have copies that share it, as in torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from ..engine.memory import memory_of
from ..engine.sharded import OWN_STATE, ShardedTensor, as_sharded, wrap
from ..engine.views.copy_views import count_beside, current
from ..engine.writes.overlapping import shown_memory
from ..engine.writes.resizing import root_of
from ..runtime.holding import Pieces
from ..runtime.strides import dense_strides, is_dense, reach_of

__all__ = ["deep_copy", "shallow_copy"]


@dataclass(frozen=True, slots=True)
class _Copied:
    """A copy of memory, and where what it is a copy of begins there, in each piece."""

    tensor: ShardedTensor
    offset: int
    pieces: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, x: ShardedTensor, copied: ShardedTensor) -> _Copied:
        return cls(copied, int(x.storage_offset()), tuple(map(_place, x._value.pieces)))

    def parts(self, pieces: Pieces) -> Pieces | None:
        """What lies in the copy where pieces lie in what was copied, if it is all there, piece by piece."""
        copied, found = self.tensor._value.pieces, []
        if len(copied) != len(pieces):
            return None
        for copy_of, (memory, begins), own in zip(copied, self.pieces, pieces, strict=True):
            start = own.storage_offset() - begins
            is_there = start >= 0 and start + reach_of(own.shape, own.stride()) <= copy_of.numel()
            if _place(own)[0] != memory or not is_there or not is_dense(tuple(copy_of.shape), copy_of.stride()):
                return None
            found.append(copy_of.as_strided(own.shape, own.stride(), copy_of.storage_offset() + start))
        return tuple(found)


def _place(piece: torch.Tensor) -> tuple[int, int]:
    return piece.untyped_storage()._cdata, int(piece.storage_offset())


def deep_copy(x: ShardedTensor, memo: dict[int, object]) -> object:
    """What `copy.deepcopy` gives of a tensor; `memo` has the copies that it has made so far."""
    if id(x) in memo:
        return memo[id(x)]
    if not x.is_leaf:
        raise RuntimeError("only leaf tensors can be deep-copied: detach() this one first")
    copied = _copied_together(x, memo)
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


def shallow_copy(x: ShardedTensor) -> ShardedTensor:
    """What `copy.copy` gives of a tensor: another one with the same memory."""
    copied = as_sharded(x.detach())
    _carry_state(x, copied)
    return copied


def _copied_by_itself(x: ShardedTensor) -> ShardedTensor:
    pieces = tuple(piece.clone() for piece in current(x))
    strides = dense_strides(tuple(x.shape), x.stride())
    dense = wrap(pieces, x._layout, x.shape, dtype=x.dtype, strides=strides)
    is_dense = x.stride() == strides or isinstance(x, torch.nn.Parameter)  # which torch clones
    return dense if is_dense else memory_of(x._layout).laid_like(dense, x)


def _copied_together(x: ShardedTensor, memo: dict[int, object]) -> ShardedTensor | None:
    """The copy of a tensor that has its memory together with another, of which there is a copy, or will be: these share memory too."""
    base, shown = x._base if x._is_view() else None, x._value.shown
    if torch.compiler.is_compiling() or not x.numel() or any(map(_is_copied_alone, (x, x if base is None else base))):
        return None
    with torch.no_grad():
        copied = None
        if isinstance(base, ShardedTensor):
            if base.is_leaf and _has_memory_of(x, base) and not _is_cut(x, base):
                copied = _if_lying(x, x._view_func_unsafe(copy.deepcopy(base, memo)))
        elif shown is not None and shown.read is None and shown.base.tensor.is_leaf:  # as `y.data` does
            copied = (
                None if _is_copied_alone(shown.base.tensor) else _if_lying(x, copy.deepcopy(shown.base.tensor, memo))
            )
        return _part_of_copied(x, memo) if copied is None else copied


def _if_lying(x: ShardedTensor, copied: torch.Tensor) -> ShardedTensor | None:
    """What has been copied, alone, if it lies as the tensor does."""
    lies_alike = isinstance(copied, ShardedTensor) and _lying(copied) == _lying(x)
    return as_sharded(copied.detach()) if lies_alike else None


def _part_of_copied(x: ShardedTensor, memo: dict[int, object]) -> ShardedTensor | None:
    """The part of memory that has been copied, or is copied for it, where a tensor lies in its own, if it is all there."""
    memory, root = shown_memory(x), root_of(x)
    if root is not None and memory not in memo and shown_memory(root) == memory and not _is_copied_alone(root):
        memo[memory] = _Copied.of(root, _copied_by_itself(root))  # all of what it is a part of
    known = memo.get(memory)
    if not isinstance(known, _Copied):
        return None
    copied, start = known.tensor, int(x.storage_offset()) - known.offset
    if copied.dtype is not x.dtype:
        return None
    if start == 0 and _lying(copied) == _lying(x):
        return as_sharded(copied.detach())
    pieces = known.parts(current(x)) if x._value.shown is None else None
    if pieces is not None:
        part = wrap(
            pieces, x._layout, x.shape, dtype=x.dtype, strides=x.stride(), offset=start + int(copied.storage_offset())
        )
        count_beside(part, copied)
        return part
    is_there = start >= 0 and start + reach_of(x.shape, x.stride()) <= copied.numel()
    if not is_there or not is_dense(tuple(copied.shape), copied.stride()):
        return None
    return _if_lying(x, torch.as_strided(copied, x.shape, x.stride(), start + int(copied.storage_offset())))


def _has_memory_of(view: ShardedTensor, base: ShardedTensor) -> bool:
    """Whether a view shows its base still, whatever `view.data` was set to; one without memory here does."""
    memory = shown_memory(base)
    return memory in (id(base), shown_memory(view))


def _is_cut(view: ShardedTensor, base: ShardedTensor) -> bool:
    """Whether a view, or what it is a view of, was given another shape where it lies: torch does not know how to view that again."""
    shown = base._value.shown
    if shown is not None and _lying(shown.base.tensor) != _lying(base):
        return True
    while view is not base and (shown := view._value.shown) is not None:
        if shown.is_apart:
            return True
        view = shown.base.tensor
    return False


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
