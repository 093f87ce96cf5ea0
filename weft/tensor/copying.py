"""Copies of tensors by `copy.copy` and `copy.deepcopy`: those that share memory have copies that share it, as in torch."""

from __future__ import annotations

import copy

import torch

from ..engine.memory import memory_of
from ..engine.sharded import OWN_STATE, ShardedTensor, as_sharded, wrap
from ..engine.views.copy_views import current
from ..engine.writes.overlapping import shown_memory
from ..runtime.strides import dense_strides

__all__ = ["deep_copy", "shallow_copy"]


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
        memo.setdefault(shown_memory(x), copied)
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
    base = x._base if x._is_view() else None
    if torch.compiler.is_compiling() or _is_copied_alone(x) or (base is not None and _is_copied_alone(base)):
        return None
    with torch.no_grad():
        if isinstance(base, ShardedTensor) and base.is_leaf and _has_memory_of(x, base) and not _is_cut(base):
            copied = x._view_func_unsafe(copy.deepcopy(base, memo))
        else:
            copied = memo.get(shown_memory(x))
        lies_alike = isinstance(copied, ShardedTensor) and _lying(copied) == _lying(x)
        return as_sharded(copied.detach()) if lies_alike else None


def _has_memory_of(view: ShardedTensor, base: ShardedTensor) -> bool:
    """Whether a view shows its base still, whatever `view.data` was set to; one without memory here does."""
    memory = shown_memory(base)
    return memory in (id(base), shown_memory(view))


def _is_cut(base: ShardedTensor) -> bool:
    """Whether a tensor was given another shape where it lies: views of what it was are none of what it is."""
    shown = base._value.shown
    return shown is not None and _lying(shown.base.tensor) != _lying(base)


def _is_copied_alone(x: torch.Tensor) -> bool:
    """Whether torch copies what a tensor shows, not the memory that it has."""
    return isinstance(x, torch.nn.Parameter) or x.is_conj() or x.is_neg()


def _lying(x: ShardedTensor) -> tuple[object, ...]:
    return x._layout, tuple(x.shape), x.stride(), int(x.storage_offset()), x.dtype


def _carry_state(source: ShardedTensor, target: ShardedTensor) -> None:
    """What users and torch keep on a tensor (a parameter's mark, attributes) goes along with a copy."""
    for name, value in source.__dict__.items():
        if name not in OWN_STATE:
            target.__dict__[name] = value
    if source.requires_grad:
        target.requires_grad_()
