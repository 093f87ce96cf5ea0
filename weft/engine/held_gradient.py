"""The gradient that a leaf holds, which may be plain until somebody looks at it.

In one memory a gradient is one plain tensor and a label. Torch keeps plain tensors, adds them up and drops them without Python, so
leaves are given them where nobody else has their memory (`weft.tensor.leaf_gradient`), and the label is put on by `x.grad`. Decision 47
says more.

What is held back, to be reduced with later gradients (`weft.nn.no_sync`), is in no `x.grad`, and goes with it: when that is set or
deleted, and when `zero_grad` asks whether there is one.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import pairwise
from types import FrameType

import torch

from ..during import during
from ..sharding.layout import Layout
from .sharded import HEARD, HELD_BACK, KEPT_PLAIN, ShardedTensor, tensor_of, wrap_whole

__all__ = ["drop_gradient", "gradient_of", "held", "keep_gradient", "replace_gradient", "taken_as_held"]

_GRAD = vars(torch._C.TensorBase)["grad"]
held: Callable[[torch.Tensor], torch.Tensor | None] = _GRAD.__get__
"""The gradient as it is held: for who takes plain ones as well."""
_hold: Callable[[torch.Tensor, torch.Tensor | None], None] = _GRAD.__set__
_compiled = torch._guards.CompileContext.try_get
_OF_MODULES, _OF_OPTIMIZERS = (
    inspect.unwrap(each.zero_grad).__code__ for each in (torch.nn.Module, torch.optim.Optimizer)
)
"""Functions that ask whether there is a gradient, to drop it. Compared one by one: Python hashes all of a code object each time."""


def _first_asked() -> range:
    """Where an optimizer asks only whether there is a gradient: from one instruction to the next, as Python says it both ways."""
    steps = pairwise(dis.get_instructions(_OF_OPTIMIZERS))
    return next(range(each.offset, following.offset) for each, following in steps if each.argval == "grad")


_FIRST_ASKED = _first_asked()
_as_held: ContextVar[bool] = ContextVar("_as_held", default=False)


def taken_as_held() -> AbstractContextManager[None]:
    """Inside, `x.grad` is the gradient as it is held: for who takes plain ones as well."""
    return during(_as_held, True)


def gradient_of(x: ShardedTensor) -> torch.Tensor | None:
    """The gradient that a tensor keeps, in the layout that it is to have."""
    grad = held(x)
    if _as_held.get():
        return grad  # to an optimizer, which asks three times for each
    state = x.__dict__
    if HELD_BACK in state and _drops(sys._getframe(1)):
        del state[HELD_BACK]
    if KEPT_PLAIN in state and type(grad) is torch.Tensor:
        if _drops_plain(sys._getframe(1)):
            return grad
        if _compiled() is not None:  # which compares what a leaf holds, past this, with what it was when it was traced
            state[HEARD] = True
        grad = _labeled(grad, x, state[KEPT_PLAIN])
        keep_gradient(x, grad)
    return grad


def _drops(caller: FrameType) -> bool:
    """Whether who asks whether there is a gradient does so to drop it, or to fill it with zeros."""
    return caller.f_code is _OF_MODULES or caller.f_code is _OF_OPTIMIZERS


def _drops_plain(caller: FrameType) -> bool:
    """Whether it is all the same to it what it is given: a label would cost more than all of that.

    Modules fill gradients with zeros one by one, optimizers by lists, which are to be of one kind: they are asked for again there.
    """
    code = caller.f_code
    return code is _OF_MODULES or (code is _OF_OPTIMIZERS and caller.f_lasti in _FIRST_ASKED)


def keep_gradient(x: ShardedTensor, grad: torch.Tensor | None) -> None:
    """Lets a tensor keep a gradient as it is."""
    x.__dict__.pop(KEPT_PLAIN, None)
    _hold(x, grad)


def replace_gradient(x: ShardedTensor, grad: torch.Tensor | None) -> None:
    """Lets a tensor have a gradient instead of what it had, and of what was held back."""
    state = x.__dict__
    if KEPT_PLAIN in state:
        del state[KEPT_PLAIN]
    if HELD_BACK in state:
        del state[HELD_BACK]
    _hold(x, grad)


def drop_gradient(x: ShardedTensor) -> None:
    """Lets a tensor have no gradient."""
    x.__dict__.pop(KEPT_PLAIN, None)
    x.__dict__.pop(HELD_BACK, None)
    _GRAD.__delete__(x)


def _labeled(grad: torch.Tensor, x: ShardedTensor, layout: Layout) -> torch.Tensor:
    """A gradient that is held plain, in the layout that it has."""
    form = x._form
    if layout is form.layout and grad.stride() == form.strides and not grad.storage_offset():
        return tensor_of(form, (grad,))
    return wrap_whole(grad, layout)
