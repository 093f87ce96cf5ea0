"""`move`: the one differentiable movement. It keeps the global value; its transpose moves back."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

from ...caches import BoundedCache
from ...runtime import run
from ...runtime.holding import Pieces
from ...runtime.in_process import relabeled
from ...runtime.machine import forget_with_residences
from ...runtime.memory.lazy_copy import lazy_clone, untraced_clone
from ...runtime.memory.memory_limit import limited_to, memory_limit, planned
from ...runtime.spans import Spans
from ...runtime.strides import dense_strides, order_of
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...watch import comm_log
from ...watch.notes import is_watched
from ..form import Form
from ..memory import memory_of
from ..memory.carrying import carried, gathered
from ..programs.compiling import announce
from ..sharded import ShardedTensor, requires_grad, tensor_of, wrap
from ..total import known_total
from ..views.copy_views import refresh
from .asynchrony import begun, is_issuing, issuing
from .telling import note_move, tell

__all__ = [
    "aligned",
    "aligned_meanwhile",
    "check_strided",
    "from_plain",
    "is_recorded",
    "is_transformed",
    "laid",
    "layout_of",
    "move",
    "moved",
    "to_plain",
    "to_write_plain",
    "with_memory",
]


def layout_of(x: torch.Tensor) -> Layout | None:
    """The layout of a tensor as its holder sees it, inside torch.func transforms too; None for a plain tensor."""
    if isinstance(x, ShardedTensor):
        return x._layout
    if functorch.is_functorch_wrapped_tensor(x):
        inner = layout_of(functorch.get_unwrapped(x))
        if inner is not None and functorch.is_batchedtensor(x):
            return inner.without_dim(functorch.maybe_get_bdim(x))
        return inner
    return None


def from_plain(
    x: torch.Tensor, layout: Layout, asked: DeviceMapping | None = None, *, brought_to: str | None = None
) -> ShardedTensor:
    """A plain tensor, which counts as whole, in a layout. Not recorded by autograd.

    `brought_to` is the call that a user gives it to: all processes have to give the same one.
    """
    check_strided(x, brought_to)
    announce()  # where a compiler is loaded: it may look at the ops that follow before it is given a sharded tensor
    return memory_of(layout).put(with_memory(x), layout, asked, brought_to)


def with_memory(x: torch.Tensor) -> torch.Tensor:
    """The tensor, or as many zeros for a tangent that torch knows to be zero, which has no memory."""
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device) if x._is_zerotensor() else x


def check_strided(x: torch.Tensor, brought_to: str | None = None) -> None:
    """Refuses a plain tensor that has no shards, sparse ones and nested ones; `brought_to` is the call that it is given to."""
    if x.layout is not torch.strided:
        raise NotImplementedError(
            f"a tensor of layout {x.layout} cannot lie on a mesh{'' if brought_to is None else f', as {brought_to} needs it to'}: "
            "give x.to_dense() (of nested tensors, x.to_padded_tensor(0.0) and a mask), or compute with y.full_tensor()"
        )


def to_plain(
    x: ShardedTensor, op: str = "full_tensor", *, implicit: bool = False, fix: str | None = None
) -> torch.Tensor:
    """The whole value as a plain tensor, in every process. Not recorded by autograd."""
    whole = moved(x, Layout.replicated(x._layout.mesh, x.dim()), op, implicit=implicit, fix=fix)
    return gathered(whole._value.pieces, whole._layout, tuple(x.shape), x.stride(), x.dtype)


def to_write_plain(x: ShardedTensor, op: str) -> torch.Tensor:
    """The whole value for an op that writes to a plain tensor: it is gathered, and nobody has asked for that."""
    whole = memory_of(x._layout).held_whole(x) if _is_added_to_gradient() else None
    return to_plain(x, op, implicit=True, fix=_PLAIN_IS_WRITTEN) if whole is None else whole


def _is_added_to_gradient() -> bool:
    """Whether torch adds a gradient to the one that a leaf has, which lies as the leaf does, if it is held plain."""
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"


_PLAIN_IS_WRITTEN = (
    "It is written to a plain tensor, which is whole everywhere. Lay that one out like it, and nothing has to be gathered: "
    "make it by torch.zeros_like(x), x.new_zeros(size) or weft.zeros(size, mapping=x.mapping), or weft.shard it; "
    "to gather on purpose, write x.full_tensor()."
)


def moved(
    x: ShardedTensor,
    target: Layout,
    op: str,
    *,
    implicit: bool = False,
    asked: DeviceMapping | None = None,
    fix: str | None = None,
) -> ShardedTensor:
    """The same value in another layout. Not recorded by autograd. `fix`: what the policy says to do instead."""
    known = _relabels.get((x._form, target))
    if known is not None:
        again = _relabeled_again(x, known)
        if again is not None:
            if asked is not None:
                again._asked = asked
            return again
    if x._value.shown is not None:
        refresh((x,))
    source = x._layout
    shape = tuple(x.shape)
    strides = dense_strides(shape, x.stride())
    if source is target:
        return wrap(tuple(map(lazy_clone, x._value.pieces)), target, shape, asked=asked, dtype=x.dtype, strides=strides)
    limit = memory_limit()
    if limit is not None:
        planned(source, target, shape, x.dtype.itemsize)  # what does not fit is an error, in any memory
    tell(x, target, op, implicit=implicit, fix=fix)
    dtype = x.dtype
    if x._value.total is not None or (target.pending and not source.pending):
        there = memory_of(source).relabeled(x, target, asked)
        if there is not None:
            comm_log.note_end()
            _note_relabeled(x, there)
            return there

    def brought(pieces: Pieces) -> Pieces:
        with limited_to(limit):  # a thread may do it later
            return carried(pieces, source, target, shape, strides, dtype, op)

    if is_issuing():
        return begun(x, target, asked, strides, brought)
    pieces = brought(x._value.pieces)
    comm_log.note_end()
    there = wrap(pieces, target, shape, asked=asked, dtype=dtype, strides=strides)
    if source.mesh == target.mesh and not memory_of(source).pieces_are_shards and order_of(shape, strides) is None:
        _note_relabeled(x, there)
    return there


_relabels = BoundedCache[tuple[Form, Layout], Form](1 << 14, cleared_by=forget_with_residences)
"""Of what a movement between two layouts leaves where it was, the form that it has then."""


def _note_relabeled(x: ShardedTensor, there: ShardedTensor) -> None:
    """Notes which form a tensor has in another layout, of what stays where it is."""
    form = there._form
    is_plain = not x._form.is_special and not x._form.is_open and not x.is_meta
    if not form.layout.pending and is_plain and there._value.pieces:
        _relabels[x._form, form.layout] = form


def _relabeled_again(x: ShardedTensor, form: Form) -> ShardedTensor | None:
    """A tensor in one memory in the form of another layout, where nobody looks on: its value, or that of its contributions."""
    if is_traced() or is_watched() or memory_limit() is not None or Spans.watched:
        return None
    whole = None if x._value.total is None else known_total(x)
    if whole is None and not x._form.layout.pending:
        (whole,) = x._value.pieces
    if whole is not None:
        there = untraced_clone(whole)
    else:
        (there,) = relabeled(x._value.pieces, x._form.layout, form.layout, form.shape)
    return tensor_of(form, (there,)) if there.stride() == form.strides else None


def laid(x: ShardedTensor, target: Layout, op: str) -> ShardedTensor:
    """A tensor whose elements can be read where a layout says; in one memory they can, and what would move is noted."""
    if x._layout is target:
        return x
    if memory_of(x._layout).pieces_are_shards:
        return moved(x, target, op, implicit=True)
    note_move(x, target, op)
    return x


_MADE_HERE = ("empty", "empty_like", "gradient")
"""Where plain tensors come from that no user has brought: they may differ, by what memory held or in the last digits."""


class _MoveBetweenLayouts(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, target: Layout | None, asked: DeviceMapping | None, op: str) -> torch.Tensor:
        if target is None:
            return to_plain(x) if isinstance(x, ShardedTensor) else x.clone()
        if isinstance(x, ShardedTensor):
            return moved(x, target, op, asked=asked)
        return from_plain(x, target, asked, brought_to=None if op in _MADE_HERE or op.endswith("backward") else op)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, target, _, op = inputs
        source = layout_of(x)
        ctx.source = None if source is None else source.resolved
        ctx.target, ctx.op, ctx.device = target, op, x.device

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        back = move(grad, ctx.source, op=f"{ctx.op} backward")
        # A plain tensor may have been anywhere; what is moved back to a mesh is where the mesh is.
        return (back.to(ctx.device) if ctx.source is None else back), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        return move(tangent, ctx.target, op=ctx.op)

    @staticmethod
    def vmap(
        info: object,
        in_dims: tuple[int | None, ...],
        x: torch.Tensor,
        target: Layout | None,
        asked: DeviceMapping | None,
        op: str,
    ) -> tuple[torch.Tensor, int | None]:
        dim = in_dims[0]
        if dim is not None and target is not None:
            target = target.with_dim(dim, _free_axes(layout_of(x), dim, target))
        return _MoveBetweenLayouts.apply(x, target, None, op), dim  # type: ignore[no-untyped-call]


def _free_axes(source: Layout | None, dim: int, target: Layout) -> tuple[str, ...]:
    """The axes that split the batch dim of `vmap` and may go on doing so: those that the layout asked for leaves alone."""
    if source is None or source.mesh != target.mesh:
        return ()
    return tuple(axis for axis in source.splits[dim] if axis in target.replicated_axes)


def is_recorded(x: torch.Tensor) -> bool:
    """Whether what is done to a tensor is differentiated."""
    return (_is_grad_enabled() and requires_grad(x)) or _interpreter() is not None or forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is under way."""
    return _interpreter() is not None or forward_ad._current_level >= 0


_is_grad_enabled, _interpreter = torch.is_grad_enabled, functorch.peek_interpreter_stack
"""Asked of each call."""


def move(
    x: torch.Tensor, target: Layout | None, *, asked: DeviceMapping | None = None, op: str = "shard"
) -> torch.Tensor:
    """The same value in another layout (None: as a plain tensor); the gradient moves back."""
    if type(x) is not ShardedTensor.final and functorch.is_legacy_batchedtensor(x):
        return _move_batch(x, target, asked, op)
    if is_recorded(x):
        return _MoveBetweenLayouts.apply(x, target, asked, op)  # type: ignore[no-any-return, no-untyped-call]
    if target is not None and isinstance(x, ShardedTensor):
        return moved(x, target, op, asked=asked)
    return _MoveBetweenLayouts.forward(x, target, asked, op)


def _move_batch(x: torch.Tensor, target: Layout | None, asked: DeviceMapping | None, op: str) -> torch.Tensor:
    """The same for one of many gradients that are computed at once, which `autograd.grad(is_grads_batched=True)` does."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    batch = torch._remove_batch_dim(x, level, 1, 0)
    there, _ = _MoveBetweenLayouts.vmap(None, (0,), batch, target, asked, op)
    return torch._add_batch_dim(there, 0, level)


def aligned(grad: torch.Tensor | None, layout: Layout) -> torch.Tensor | None:
    """A gradient in the layout of what it is the gradient of."""
    return grad if grad is None or layout_of(grad) is layout else move(grad, layout, op="gradient")


def aligned_meanwhile(grad: torch.Tensor | None, layout: Layout) -> torch.Tensor | None:
    """The same for a leaf: nobody needs it before the way back has ended, so it goes there while that goes on."""
    source = None if grad is None else layout_of(grad)
    if grad is None or source is None or source is layout or is_recorded(grad):
        return aligned(grad, layout)
    stays = source.mesh == layout.mesh and not memory_of(layout).pieces_are_shards
    with issuing(not stays and run.goes_on_beside(grad, source.mesh, layout.mesh)):
        return _MoveBetweenLayouts.forward(grad, layout, None, "gradient")


def _as_tangent(
    grad: torch.Tensor, expected: tuple[Layout, DeviceMapping | None], expected_type: type | None = None
) -> torch.Tensor | None:
    """A plain gradient as a compiled backward pass expects it; None where it expects something else than Weft's tensors."""
    if expected_type is not ShardedTensor.final or type(grad) is not torch.Tensor:
        return None
    return move(grad, expected[0], asked=expected[1], op="gradient")


# Torch asks a gradient itself to become what a compiled backward pass expects, and makes plain zeros for outputs that had
# no part in the loss: they have to know how.
if not hasattr(torch.Tensor, "__coerce_same_metadata_as_tangent__"):
    torch.Tensor.__coerce_same_metadata_as_tangent__ = _as_tangent  # type: ignore[attr-defined]
