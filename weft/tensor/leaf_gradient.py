"""Where the gradient of a leaf arrives: in the layout of the leaf, or in one that was asked for.

Compiled programs in one memory hand gradients of leaves out plain, each the whole value, and torch keeps them as they are: what
it would do for each of them as a sharded tensor takes longer than the rest of the way back. They become sharded tensors when
somebody looks: `x.grad` says so, and so do hooks and `torch.autograd.grad`. Decision 47 says more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

import torch
from torch.utils.hooks import RemovableHandle

from ..engine.memory import held_whole
from ..engine.moves.adding_up import left_pending
from ..engine.moves.movement import aligned_meanwhile
from ..engine.sharded import HEARD, KEPT_PLAIN, ShardedTensor, is_leaf, requires_grad, tensor_of, wrap_whole
from ..engine.writes.turned import refuse_stale_graph
from ..sharding.layout import Layout

__all__ = [
    "GRADIENT_LAYOUT",
    "bring_to_leaf",
    "bring_traced",
    "drop_gradient",
    "gradient_in",
    "gradient_of",
    "keep_gradient",
    "note_pass",
    "register_hook",
]

GRADIENT_LAYOUT = "_gradient_layout"
"""Where a tensor keeps the layout that its gradient is to have, where that is not its own."""

_GRAD = vars(torch._C.TensorBase)["grad"]
_register: Callable[[torch.Tensor, Callable[..., object]], RemovableHandle] = torch.Tensor.register_hook
State = dict[str, Any]
_current_pass = torch._C._current_graph_task_id


def gradient_in(x: ShardedTensor, layout: Layout) -> None:
    """Lets the gradient of a leaf arrive in another layout than that of the leaf.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 2})
    >>> x = weft.ones(4, mapping=weft.NamedMapping(mesh, weft.P())).requires_grad_()
    >>> gradient_in(x, Layout(mesh, (("dp",),)))
    >>> (x * 2).sum().backward()
    >>> x.grad.mapping.spec
    P('dp')
    """
    x.__dict__[GRADIENT_LAYOUT] = layout
    x._value.flat = None


def bring_to_leaf(x: ShardedTensor) -> None:
    """Brings the gradient of a leaf to its layout when it arrives."""
    if not any(isinstance(hook, _Aligned) for hook in (x._backward_hooks or {}).values()):
        _register(x, _Aligned(x.__dict__))


def bring_traced(x: ShardedTensor) -> None:
    """Brings the gradient of what stands for a leaf to the leaf's layout, in a program that is traced."""
    _register(x, _HandedOut(x.__dict__))


class _Aligned:
    """A hook that brings a gradient to the layout of its tensor, whatever that is by then."""

    def __init__(self, state: State) -> None:
        # Not the tensor itself, which would live for ever, nor a weak reference, with which torch swaps no tensors.
        self._state = state

    def __call__(self, grad: torch.Tensor | None) -> torch.Tensor | None:
        state = self._state
        if type(grad) is torch.Tensor and _WayBack.keeping == _current_pass() and HEARD not in state:
            state[KEPT_PLAIN] = True
            return None
        target = _target(state)
        if isinstance(grad, ShardedTensor) and grad._form.layout is target:
            return None
        waiting = left_pending(grad, target)
        return aligned_meanwhile(grad, target) if waiting is None else waiting


@final
class _HandedOut(_Aligned):
    """The same in a program that is traced, which hands it out plain where it is one tensor."""

    def __call__(self, grad: torch.Tensor | None) -> torch.Tensor | None:
        brought = super().__call__(grad)
        brought = grad if brought is None else brought
        whole = held_whole(brought) if isinstance(brought, ShardedTensor) else None
        return brought if whole is None else whole


def _target(state: State) -> Layout:
    """The layout that the gradient of a tensor is to have."""
    layout: Layout = state.get(GRADIENT_LAYOUT) or state["_form"].layout.resolved
    return layout


@final
class _WayBack:
    """What is known of backward passes, which torch numbers."""

    last: ClassVar[int] = -1
    """The one that was looked at last; -1 is none."""
    keeping: ClassVar[int] = -2
    """The last one of which it is known that leaves keep their gradients, and nothing is recorded of them."""


def note_pass() -> None:
    """In a compiled program's way back: notes whether gradients of leaves are kept there, or given to who asked for them."""
    this = _current_pass()
    if this not in (-1, _WayBack.last):
        if not torch.is_grad_enabled() and _keeps_gradients():
            _WayBack.keeping = this
        _WayBack.last = this


def _keeps_gradients() -> bool:
    """Whether what follows on the way back are leaves whose gradients are kept; False where that is not known."""
    node = torch._C._current_autograd_node()
    for following, _ in () if node is None else node.next_functions:
        if following is not None and hasattr(following, "variable"):
            try:
                return torch._C._will_engine_execute_node(following)
            except RuntimeError:  # as torch says that they are given to `torch.autograd.grad`
                return False
    return False


def gradient_of(x: ShardedTensor) -> torch.Tensor | None:
    """The gradient that a tensor keeps, in the layout that it is to have."""
    grad: torch.Tensor | None = _GRAD.__get__(x)
    if KEPT_PLAIN in x.__dict__:
        del x.__dict__[KEPT_PLAIN]
        if type(grad) is torch.Tensor:
            grad = _labeled(grad, x)
            _GRAD.__set__(x, grad)
    return grad


def keep_gradient(x: ShardedTensor, grad: torch.Tensor | None) -> None:
    """Lets a tensor keep a gradient as it is."""
    x.__dict__.pop(KEPT_PLAIN, None)
    _GRAD.__set__(x, grad)


def drop_gradient(x: ShardedTensor) -> None:
    """Lets a tensor have no gradient."""
    x.__dict__.pop(KEPT_PLAIN, None)
    _GRAD.__delete__(x)


def register_hook(x: ShardedTensor, hook: Callable[..., object]) -> RemovableHandle:
    """As in torch."""
    refuse_stale_graph(x, "register_hook")
    x.__dict__[HEARD] = True
    if is_leaf(x) and requires_grad(x):
        bring_to_leaf(x)  # of which torch knows nothing any more where it has swapped tensors
    return _register(x, hook)


def _labeled(grad: torch.Tensor, x: ShardedTensor) -> torch.Tensor:
    """A gradient that was handed out plain, in the layout that it is to have."""
    form, layout = x._form, _target(x.__dict__)
    if layout is form.layout and grad.stride() == form.strides and not grad.storage_offset():
        return tensor_of(form, (grad,))
    return wrap_whole(grad, layout)
