"""`move`: the one differentiable movement. It keeps the global value; its transpose moves back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _functorch as functorch

from ...planning import plan_layouts
from ...runtime import run
from ...runtime.holding import Pieces, holding
from ...runtime.in_process import placed
from ...runtime.lazy_copy import lazy_clone
from ...runtime.strides import Strides, dense_strides, order_of
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...watch import comm_log, policy
from ..compiling import is_traced
from ..sharded import ShardedTensor, wrap, wrap_total
from ..total import Contributions, Origin, known_total
from ..views.copy_views import refresh
from .asynchrony import begun, is_issuing

__all__ = [
    "aligned",
    "from_plain",
    "is_recorded",
    "is_transformed",
    "layout_of",
    "move",
    "moved",
    "note_move",
    "note_return",
    "spread",
    "to_plain",
    "to_write_plain",
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
    here = holding(layout)
    if brought_to is not None and not here.unified:
        run.check_same(x, brought_to, layout.mesh)
    shape = tuple(x.shape)
    if here.unified:
        whole = lazy_clone(placed(x.detach(), here.residence.device))
        if layout.pending and not whole.is_meta and not is_traced():
            return spread(whole, layout, asked)
        pieces = (whole,) if not layout.pending else run.spread(whole, layout)
        return wrap(pieces, layout, shape, asked=asked, dtype=x.dtype)
    order = order_of(shape, x.stride())
    if order is None:
        pieces = run.scatter(x.detach(), layout)
    else:
        pieces = _turned(run.scatter(x.detach().permute(order), layout.permuted(order)), _back(order))
    return wrap(pieces, layout, shape, asked=asked, dtype=x.dtype, strides=dense_strides(shape, x.stride()))


def to_plain(
    x: ShardedTensor, op: str = "full_tensor", *, implicit: bool = False, fix: str | None = None
) -> torch.Tensor:
    """The whole value as a plain tensor, in every process. Not recorded by autograd."""
    whole = moved(x, Layout.replicated(x._layout.mesh, x.dim()), op, implicit=implicit, fix=fix)
    shape = tuple(x.shape)
    order = order_of(shape, x.stride())
    if order is None:
        return run.whole(whole._value.pieces, whole._layout, shape, x.dtype)
    turned = _turned(whole._value.pieces, order), whole._layout.permuted(order), tuple(shape[dim] for dim in order)
    return run.whole(*turned, x.dtype).permute(_back(order))


def to_write_plain(x: ShardedTensor, op: str) -> torch.Tensor:
    """The whole value for an op that writes to a plain tensor: it is gathered, and nobody has asked for that."""
    return to_plain(x, op, implicit=True, fix=_PLAIN_IS_WRITTEN)


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
    if x._value.shown is not None:
        refresh((x,))
    source = x._layout
    shape = tuple(x.shape)
    strides = dense_strides(shape, x.stride())
    if source is target:
        return wrap(tuple(map(lazy_clone, x._value.pieces)), target, shape, asked=asked, dtype=x.dtype, strides=strides)
    _note(x, target, op, implicit, fix)
    dtype = x.dtype
    if x._value.total is not None or (target.pending and not source.pending):
        relabeled = _relabeled(x, target, asked)
        if relabeled is not None:
            if comm_log.is_logging():
                comm_log.note_end()
            return relabeled
    if is_issuing():
        return begun(
            x, target, asked, strides, lambda pieces: _carried(pieces, source, target, shape, strides, dtype, op)
        )
    pieces = _carried(x._value.pieces, source, target, shape, strides, dtype, op)
    if comm_log.is_logging():
        comm_log.note_end()
    return wrap(pieces, target, shape, asked=asked, dtype=dtype, strides=strides)


def _carried(
    pieces: Pieces,
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    strides: Strides,
    dtype: torch.dtype,
    op: str,
) -> Pieces:
    """The pieces of the same tensor in another layout, their dims in the order that these strides say.

    Runtimes write row by row: dims that stand in another order are renumbered on the way.
    """
    order = order_of(shape, strides)
    if order is None:
        return run.move(pieces, source, target, shape, dtype, op)
    there = source.permuted(order), target.permuted(order), tuple(shape[dim] for dim in order)
    return _turned(run.move(_turned(pieces, order), *there, dtype, op), _back(order))


def _turned(pieces: Pieces, order: Sequence[int]) -> Pieces:
    return tuple(piece.permute(*order) for piece in pieces)


def _back(order: Sequence[int]) -> list[int]:
    """The order that undoes another."""
    return sorted(range(len(order)), key=lambda at: order[at])


def _relabeled(x: ShardedTensor, target: Layout, asked: DeviceMapping | None) -> ShardedTensor | None:
    """The same whole value in one memory, with other reductions pending; None where that is not all there is to do."""
    source = x._layout
    here, there = holding(source), holding(target)
    if not (here.unified and there.unified) or here.residence.memories[0] != there.residence.memories[0]:
        return None
    total = known_total(x) if source.pending else lazy_clone(x._value.pieces[0])
    if total is None or is_traced():
        return None
    if not target.pending:
        return wrap((lazy_clone(total),), target, x.shape, asked=asked, dtype=x.dtype)
    if not source.pending:
        return spread(total, target, asked)
    if source.mesh != target.mesh or not set(target.pending) <= set(source.pending):
        return None
    shape, dtype = tuple(x.shape), x.dtype

    def less() -> ShardedTensor:
        strides = dense_strides(shape, x.stride())
        return wrap(
            _carried(x._value.pieces, source, target, shape, strides, dtype, "a movement"), target, shape, dtype=dtype
        )

    total = lazy_clone(total)
    return wrap_total(total, target, Contributions(Origin(less), 0, total, target), [False], asked)


def spread(total: torch.Tensor, target: Layout, asked: DeviceMapping | None = None) -> ShardedTensor:
    """A value in one memory as a pending tensor: some device contributes it, others what changes nothing."""

    def each() -> ShardedTensor:
        return wrap(run.spread(total, target), target, total.shape)

    return wrap_total(total, target, Contributions(Origin(each), 0, total, target), [False], asked)


def note_move(x: ShardedTensor, target: Layout, op: str) -> None:
    """Logs and reports a movement that this memory need not carry out."""
    if x._layout is not target:
        _note(x, target, op, implicit=True)


def note_return(x: ShardedTensor, source: Layout, op: str) -> None:
    """Logs and reports the movement of a tensor back from another layout, which this memory need not carry out."""
    if source is not x._layout and (comm_log.is_logging() or policy.watches()):
        _tell(source, x._layout, x, op, implicit=True)


def _note(x: ShardedTensor, target: Layout, op: str, implicit: bool, fix: str | None = None) -> None:
    source = x._layout
    if comm_log.is_logging() or (implicit and policy.watches()) or source.pending or source.mesh != target.mesh:
        _tell(source, target, x, op, implicit, fix)


def _tell(source: Layout, target: Layout, x: ShardedTensor, op: str, implicit: bool, fix: str | None = None) -> None:
    plan = plan_layouts(source, target, tuple(x.shape), x.dtype.itemsize)
    if implicit:
        policy.report(plan, op, fix)
    comm_log.log_plan(plan, op, implicit=implicit)


_MADE_HERE = ("empty", "empty_like", "gradient")
"""Where plain tensors come from that no user has brought: they may differ, by what memory held or in the last digits."""


class _Move(torch.autograd.Function):
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
        return _Move.apply(x, target, None, op), dim  # type: ignore[no-untyped-call]


def _free_axes(source: Layout | None, dim: int, target: Layout) -> tuple[str, ...]:
    """The axes that split the batch dim of `vmap` and may go on doing so: those that the layout asked for leaves alone."""
    if source is None or source.mesh != target.mesh:
        return ()
    return tuple(axis for axis in source.splits[dim] if axis in target.replicated_axes)


def is_recorded(x: torch.Tensor) -> bool:
    """Whether what is done to a tensor is differentiated."""
    return (torch.is_grad_enabled() and x.requires_grad) or is_transformed()


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is under way."""
    return functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


def move(
    x: torch.Tensor, target: Layout | None, *, asked: DeviceMapping | None = None, op: str = "shard"
) -> torch.Tensor:
    """The same value in another layout (None: as a plain tensor); the gradient moves back."""
    if is_recorded(x):
        return _Move.apply(x, target, asked, op)  # type: ignore[no-any-return, no-untyped-call]
    return _Move.forward(x, target, asked, op)


def aligned(grad: torch.Tensor | None, layout: Layout) -> torch.Tensor | None:
    """A gradient in the layout of what it is the gradient of."""
    return grad if grad is None or layout_of(grad) is layout else move(grad, layout, op="gradient")


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
