"""Optimizers that treat each element by itself step on the pieces of their parameters, where each parameter has one here.

Torch's optimizers collect parameters, gradients and states in lists, and hand these to one function. In the lists, tensors are
replaced by their pieces: the function then runs as it does on plain tensors, without a class to ask for every tensor of every op.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

import torch
from torch import optim
from torch._guards import TracingContext

from ...engine.form import Form
from ...engine.sharded import ShardedTensor
from ...engine.total import note_write
from ...engine.views.copy_views import note_unseen_write
from ...runtime.holding import holding
from ...runtime.memory.lazy_copy import part
from ...runtime.spans import Spans
from ...watch.policy import Warned
from .repeating import count_writes, evened

__all__ = ["give_pieces", "take_back"]

_BY_ELEMENT = frozenset(
    {
        optim.ASGD,
        optim.Adadelta,
        optim.Adagrad,
        optim.Adam,
        optim.AdamW,
        optim.Adamax,
        optim.NAdam,
        optim.RAdam,
        optim.RMSprop,
        optim.Rprop,
        optim.SGD,
    }
)
"""Classes derived from these may do anything with what they collect."""
_COLLECT = "_init_group"
"""What these optimizers call, for each group of parameters, with the lists to fill: parameters, gradients, and one for each state."""
_GRADIENTS = 1

Lists = Sequence[list[torch.Tensor]]
Columns = dict[int, list[ShardedTensor]]


def give_pieces(optimizer: optim.Optimizer, *_: object) -> None:
    """Before a step: lets an optimizer of sharded parameters collect their pieces."""
    if torch.compiler.is_compiling() or type(optimizer) not in _BY_ELEMENT:
        return
    first = next(chain.from_iterable(group["params"] for group in optimizer.param_groups), None)
    if isinstance(first, ShardedTensor):
        setattr(optimizer, _COLLECT, partial(_collected, optimizer))


def take_back(optimizer: optim.Optimizer, *_: object) -> None:
    """After a step: the optimizer collects as its class does."""
    if not torch.compiler.is_compiling():
        optimizer.__dict__.pop(_COLLECT, None)


def _collected(optimizer: optim.Optimizer, group: dict[str, object], *lists: list[torch.Tensor]) -> object:
    """What the optimizer's class collects and says of it, with pieces in the lists where these are all the optimizer needs."""
    said = getattr(type(optimizer), _COLLECT)(optimizer, group, *lists)
    if _is_seen() or not _is_by_element(optimizer, group):
        return said
    is_fused = bool(group.get("fused"))
    columns = _sharded_columns(lists)
    if columns and _lie_alike(list(columns.values()), is_fused=is_fused):
        _replace(columns, lists, is_fused=is_fused)
    return said


def _is_seen() -> bool:
    """Whether somebody looks on who would miss the ops: a compiler, modes, profiles, policies."""
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    # A compiler asks optimizers for their lists as it traces them, and takes what it does not know for a constant.
    return bool(modes or Spans.watched or Warned.count or TracingContext.try_get() is not None)


def _is_by_element(optimizer: optim.Optimizer, group: dict[str, object]) -> bool:
    """Whether the optimizer needs nothing of the tensors but their elements, one by one, and writes to all but gradients."""
    if group.get("differentiable") or any(isinstance(value, ShardedTensor) for value in group.values()):
        return False
    if getattr(optimizer, "grad_scale", None) is not None:  # fused steps write to gradients then
        return False
    # Momentum of SGD is put into the state of the tensors that were in the list.
    return not (isinstance(optimizer, optim.SGD) and group["momentum"])


def _sharded_columns(lists: Lists) -> Columns | None:
    """The lists of sharded tensors, by their places; None where some are mixed. The others are of numbers, such as counts of steps."""
    columns: Columns = {}
    for i, column in enumerate(lists):
        kinds = set(map(type, column))
        if kinds == {ShardedTensor.final}:
            columns[i] = [x for x in column if isinstance(x, ShardedTensor)]
        elif i <= _GRADIENTS or not kinds <= {torch.Tensor} or any(x.dim() for x in column):
            return None
    return columns


def _lie_alike(columns: Sequence[Sequence[ShardedTensor]], *, is_fused: bool) -> bool:
    """Whether gradients and states lie as their parameters do, in one piece each."""
    forms = [x._form for x in columns[0]]
    if any(form.is_special or form.layout.pending or holding(form.layout).count != 1 for form in set(forms)):
        return False
    for column in columns[1:]:
        found = [x._form for x in column]
        if found != forms and (is_fused or not all(map(_is_like, found, forms))):
            return False
    return True


def _is_like(form: Form, of: Form) -> bool:
    return form.layout is of.layout and form.shape == of.shape and not form.is_special


def _replace(columns: Columns, lists: Lists, *, is_fused: bool) -> None:
    """Puts pieces in the place of tensors, and notes that all but the gradients are written to."""
    pieces = {i: [x._value.pieces[0] for x in column] for i, column in columns.items()}
    if any(set(map(type, each)) != {torch.Tensor} for each in pieces.values()):
        return  # on paper
    written = [x for i, column in columns.items() if i != _GRADIENTS for x in column]
    note_write(written)
    if is_fused:
        note_unseen_write()  # torch does not count what fused steps write
    else:
        count_writes(written)
    for i, each in pieces.items():
        lists[i][:] = _for_gpu(each, i != _GRADIENTS, is_fused) if each[0].is_cuda else each


def _for_gpu(pieces: list[torch.Tensor], is_written: bool, is_fused: bool) -> list[torch.Tensor]:
    """Pieces that torch's kernels for lists can have: these write past copy-on-write, and fused ones compare strides."""
    if is_written:
        part(pieces)
    return [evened(x, is_written) for x in pieces] if is_fused else pieces
