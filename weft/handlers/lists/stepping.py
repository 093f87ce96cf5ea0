"""Optimizers that treat each element by itself step on the pieces of their parameters, where each parameter has one here.

Torch's optimizers collect parameters, gradients and states in lists, and hand these to one function. In the lists, tensors are
replaced by their pieces: the function then runs as it does on plain tensors, without a class to ask for every tensor of every op.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain

import torch
from torch import optim
from torch._guards import TracingContext

from ...engine.form import Form
from ...engine.held_gradient import taken_as_held
from ...engine.sharded import KEPT_PLAIN, ShardedTensor
from ...engine.total import note_write
from ...engine.views.copy_views import note_unseen_write
from ...engine.writes.counting import count_writes
from ...runtime.holding import holding
from ...runtime.memory.lazy_copy import part
from ...runtime.spans import Spans
from ...watch.policy import Warned
from .collecting import collect_known
from .repeating import evened

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
_STARTING_FROM_GRADIENTS = frozenset({optim.Rprop})
"""Those whose first states are made like their gradients: of gradients that are held plain they would be plain."""
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
    collect = partial(getattr(type(optimizer), _COLLECT), optimizer, group, *lists)
    if _is_seen() or not _is_by_element(optimizer, group):
        return collect()
    is_fused = bool(group.get("fused"))
    said: object = False
    if not collect_known(optimizer, group, lists):
        with nullcontext() if type(optimizer) in _STARTING_FROM_GRADIENTS else taken_as_held():
            said = collect()
    are_plain = _are_held_plain(lists, is_fused=is_fused)
    if not are_plain:
        _label(lists)
    columns = _sharded_columns(lists, are_plain=are_plain)
    if columns and _lie_alike(list(columns.values()), is_fused=is_fused):
        _replace(columns, lists, is_fused=is_fused)
    else:
        _label(lists)
    return said


def _are_held_plain(lists: Lists, *, is_fused: bool) -> bool:
    """Whether all gradients are held plain, and lie as their parameters do."""
    parameters, gradients = lists[0], lists[_GRADIENTS]
    if set(map(type, gradients)) != {torch.Tensor} or set(map(type, parameters)) != {ShardedTensor.final}:
        return False
    forms = [x._form for x in parameters if isinstance(x, ShardedTensor)]
    if any(x.__dict__.get(KEPT_PLAIN) is not form.layout for x, form in zip(parameters, forms, strict=True)):
        return False
    if not is_fused:
        return True
    return [g.stride() for g in gradients] == [form.strides for form in forms] and [g.dtype for g in gradients] == [
        form.dtype for form in forms
    ]


def _label(lists: Lists) -> None:
    """Puts gradients into the list as everybody sees them, in the place of those that are held plain."""
    if torch.Tensor in set(map(type, lists[_GRADIENTS])):
        lists[_GRADIENTS][:] = [x.grad for x in lists[0] if x.grad is not None]


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


def _sharded_columns(lists: Lists, *, are_plain: bool) -> Columns | None:
    """The lists of sharded tensors, by their places; None where some are mixed. The others are of numbers, such as counts of steps.

    `are_plain`: that of the gradients is none of them.
    """
    columns: Columns = {}
    for i, column in enumerate(lists):
        if i == _GRADIENTS and are_plain:
            continue
        kinds = set(map(type, column))
        if kinds == {ShardedTensor.final}:
            columns[i] = [x for x in column if isinstance(x, ShardedTensor)]
        elif i <= _GRADIENTS or not kinds <= {torch.Tensor} or any(map(torch.Tensor.dim, column)):
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
    pieces.setdefault(_GRADIENTS, list(lists[_GRADIENTS]))
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
