"""Where the gradient of a leaf arrives: in the layout of the leaf, or in one that was asked for.

In one memory leaves are given plain gradients, each the whole value, and torch keeps them as they are: what it would do for each of
them as a sharded tensor takes as long as an op. They become sharded tensors when somebody looks: `x.grad` says so
(`weft.engine.held_gradient`), and so do hooks and `torch.autograd.grad`. Decision 47 says more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

import torch
from torch.utils.hooks import RemovableHandle

from ..engine.gradient_target import mark_traced_leaf
from ..engine.memory import held_whole
from ..engine.moves.adding_up import left_pending
from ..engine.moves.movement import aligned_meanwhile
from ..engine.moves.own_whole import own_whole
from ..engine.sharded import HEARD, KEPT_PLAIN, ShardedTensor, is_leaf, requires_grad
from ..engine.writes.turned import refuse_stale_graph
from ..runtime.processes.mesh_processes import spans
from ..sharding.layout import Layout

__all__ = [
    "GRADIENT_LAYOUT",
    "bring_to_leaf",
    "bring_traced",
    "gradient_in",
    "note_pass",
    "register_hook",
]

GRADIENT_LAYOUT = "_gradient_layout"
"""Where a tensor keeps the layout that its gradient is to have, where that is not its own."""

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
    if not any(_is_ours(hook) for hook in (x._backward_hooks or {}).values()):
        _register(x, _Aligned(x.__dict__).arrived)


def _is_ours(hook: Callable[..., object]) -> bool:
    return isinstance(getattr(hook, "__self__", None), _Aligned)


def bring_traced(x: ShardedTensor) -> None:
    """Brings the gradient of what stands for a leaf to the leaf's layout, in a program that is traced.

    Between processes, gradients of leaves travel beside the program instead, when all of it has run.
    """
    mark_traced_leaf(x)
    if not spans(x.mesh):
        _register(x, _HandedOut(x.__dict__).arrived)


class _Aligned:
    """A hook that brings a gradient to the layout of its tensor, whatever that is by then.

    It is `arrived`, a method: Python takes longer to call an object of ours, and each parameter's is called in each backward pass.
    """

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        # Not the tensor itself, which would live for ever, nor a weak reference, with which torch swaps no tensors.
        self._state = state

    def arrived(self, grad: torch.Tensor | None) -> torch.Tensor | None:
        """What is kept instead of a gradient that has arrived; None if it is to be kept as it is."""
        state = self._state
        target = state.get(GRADIENT_LAYOUT) or state["_form"].layout.resolved
        if type(grad) is torch.Tensor:
            if _WayBack.compiled == _current_pass() and HEARD not in state:
                state[KEPT_PLAIN] = target  # a compiled program has handed it out, to be kept
                return None
        elif isinstance(grad, ShardedTensor):
            if grad._form.layout.rank != target.rank:
                return None  # the leaf has another shape since: torch copies it to that, if it can
            whole = own_whole(grad, target) if HEARD not in state and _is_kept() else None
            if whole is not None:
                state[KEPT_PLAIN] = target
                return whole
            if grad._form.layout is target:
                return None
        waiting = left_pending(grad, target)
        return aligned_meanwhile(grad, target) if waiting is None else waiting


@final
class _HandedOut(_Aligned):
    """The same in a program that is traced, which hands it out plain where it is one tensor."""

    __slots__ = ()

    def arrived(self, grad: torch.Tensor | None) -> torch.Tensor | None:
        """The same, plain where that can be."""
        brought = super().arrived(grad)
        brought = grad if brought is None else brought
        whole = held_whole(brought) if isinstance(brought, ShardedTensor) else None
        return brought if whole is None else whole


@final
class _WayBack:
    """What is known of backward passes, which torch numbers."""

    asked: ClassVar[int] = -1
    """The one that was looked at last; -1 is none."""
    keeping: ClassVar[int] = -2
    """The last one of which it is known that leaves keep their gradients, nothing is recorded of them, and no mode looks on."""
    compiled: ClassVar[int] = -2
    """The last one of these that goes through a compiled program, which hands gradients out plain."""


def note_pass() -> None:
    """In a compiled program's way back: notes whether gradients of leaves are kept there, or given to who asked for them."""
    this = _current_pass()
    if this != -1 and this != _WayBack.compiled:
        node = torch._C._current_autograd_node()
        following = () if node is None else node.next_functions
        leaf = next((each for each, _ in following if each is not None and hasattr(each, "variable")), None)
        if leaf is not None and _ask(this, leaf):
            _WayBack.compiled = this


def _is_kept() -> bool:
    """In the hook of a leaf: whether its gradient will be kept, and not given to who asked for it."""
    this = _current_pass()
    if this != _WayBack.asked:
        node = torch._C._current_autograd_node()
        return node is not None and _ask(this, node)
    return _WayBack.keeping == this


def _ask(this: int, leaf: torch.autograd.graph.Node) -> bool:
    """Notes whether leaves keep their gradients in the pass that goes on; `leaf` is where one is kept."""
    try:
        executed = torch._C._will_engine_execute_node(leaf)
    except RuntimeError:  # as torch says that they are given to `torch.autograd.grad`
        executed = False
    keeps = executed and not torch.is_grad_enabled() and not torch._C._len_torch_dispatch_stack()
    if keeps:
        _WayBack.keeping = this
    _WayBack.asked = this
    return keeps


def register_hook(x: ShardedTensor, hook: Callable[..., object]) -> RemovableHandle:
    """As in torch."""
    refuse_stale_graph(x, "register_hook")
    x.__dict__[HEARD] = True
    if is_leaf(x) and requires_grad(x):
        bring_to_leaf(x)  # of which torch knows nothing any more where it has swapped tensors
    return _register(x, hook)
