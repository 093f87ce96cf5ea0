"""Ops that change what a tensor is, not only its values: `t_`, `unsqueeze_`, `resize_`, `set_`, and `x.data = y`."""

from __future__ import annotations

import math

import torch

from ..engine.dispatch_keys import let_in
from ..engine.handlers import handler
from ..engine.memory import memory_of
from ..engine.moves.movement import from_plain, moved
from ..engine.sharded import ShardedTensor, as_it_is, as_sharded, sharded
from ..engine.views.conjugation import mark
from ..engine.views.copy_views import remember_apart, remember_base
from ..engine.writes.becoming import become, share
from ..engine.writes.resizing import resize_shared, root_of
from ..engine.writes.turned import may_be_turned, note_turned
from ..engine.writes.writing import store
from ..rules.call import BoundCall
from ..runtime.strides import dense_strides, order_of, row_major
from ..runtime.traced import is_traced
from ..sharding.layout import Layout

aten = torch.ops.aten

_VIEWED = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.as_strided_.default: aten.as_strided.default,
}
"""The ops that make a tensor a view of itself."""


@handler(*_VIEWED)
def _view_in_place(call: BoundCall) -> object:
    x = sharded(call, "self")
    if call.func is aten.squeeze_.default and 1 not in x.shape:
        return x  # which nothing becomes of
    is_noted = may_be_turned(x, call.func._schema.name.removeprefix("aten::"))
    conjugate, negative, may_be_copied = x.is_conj(), x.is_neg(), memory_of(x._layout).copies_views(x)
    # The view is one of what the tensor was, which goes on without it, or of the tensor that it was a view of, beyond it.
    whole = _root_of(x) if call.func is aten.as_strided_.default else None
    is_cut = call.func is aten.as_strided_.default and not x._is_view()
    before = _counted_together(x) if is_cut and whole is None else as_it_is(x)
    before._value.counted_beside = beside = x._value.counted_beside
    if whole is not None:
        offset = x.storage_offset() if call.arg("storage_offset") is None else call.integer("storage_offset")
        become(x, aten.as_strided.default(whole, call.integers("size"), call.integers("stride"), offset))
    else:
        become(x, _VIEWED[call.func](before, *call.args[1:], **call.kwargs))
    x._value.counted_beside = beside  # it is still in that memory
    if is_cut or (may_be_copied and whole is None):
        # Torch counts writes to it from now on for itself, and earlier views show what it was.
        if x._value.shown is None:
            remember_apart(x, before if whole is None else whole)
        else:
            x._value.shown.is_apart = True
        base = x._base if x._is_view() else None
        if isinstance(base, ShardedTensor):
            remember_base(x, before, base)
    mark(x, conjugate=conjugate, negative=negative)
    if is_noted:
        note_turned(x)
    return x


def _root_of(x: ShardedTensor) -> ShardedTensor | None:
    """What a tensor is a part of, if that shows the same numbers: elements beside it can be found there alone."""
    root = root_of(x)
    if root is None or root.dtype is not x.dtype:
        return None
    return None if any(each.is_conj() or each.is_neg() for each in (root, x)) else root


def _counted_together(x: ShardedTensor) -> ShardedTensor:
    """What a tensor is, for it to be a part of: torch counts writes to both, and to what shares their memory, as one."""
    if torch.is_inference_mode_enabled() or is_traced():
        return as_it_is(x)
    with let_in(torch._C.DispatchKey.ADInplaceOrView):
        return as_sharded(aten.detach.default(x))


@handler(aten.addbmm_.default)
def _addbmm(call: BoundCall) -> object:
    """Torch lets a smaller tensor grow to the shape of the product."""
    x, y = sharded(call, "self"), aten.addbmm.default(*call.args, **call.kwargs)
    if y.shape == x.shape:
        store(x, y, "addbmm_")
    else:
        become(x, y)
    return x


@handler(aten.set_.source_Tensor)
def _set(call: BoundCall) -> object:
    x, source = call.tensor("self"), call.tensor("source")
    if not isinstance(x, ShardedTensor) or not isinstance(source, ShardedTensor):
        kinds = " to ".join("a sharded tensor" if isinstance(t, ShardedTensor) else "a plain one" for t in (source, x))
        raise TypeError(f"set_ cannot give the memory of {kinds}: use x.copy_(source), or weft.shard the source first")
    if source is not x:
        if source.is_inference() and not x.is_inference():
            with torch.inference_mode(False):  # what is given memory of such a tensor stays one that counts its writes
                source = torch.ops.aten.detach.default(source)
        source = aten._conj.default(source) if source.is_conj() else source  # it is the memory that is given
        share(x, as_sharded(aten._neg_view.default(source) if source.is_neg() else source))
    return x


@handler(aten.set_.default)
def _set_to_nothing(call: BoundCall) -> object:
    x = sharded(call, "self")
    become(x, from_plain(torch.empty(0, dtype=x.dtype, device=x.device), Layout.replicated(x.mesh, 1)))
    return x


@handler(aten.resize_as_.default)
def _resize_as(call: BoundCall) -> object:
    x = call.tensor("self")  # by `_resize`: where torch asks nothing of gradients, `resize_` by itself would be asked
    return _resize(BoundCall(aten.resize_.default, (x, list(call.tensor("the_template").shape))))


@handler(aten.resize_.default)
def _resize(call: BoundCall) -> object:
    """What there was stays, in row-major order; what is new is zero."""
    x, shape = sharded(call, "self"), call.integers("size")
    if list(x.shape) == shape or resize_shared(x, shape, row_major(shape)):
        return x
    if x.stride() != dense_strides(tuple(x.shape), x.stride()):
        raise RuntimeError(
            f"resize_ keeps what lies in memory, and this tensor of shape {list(x.shape)} with strides {list(x.stride())} is a "
            "view with gaps: resize a copy, x.clone().resize_(...)"
        )
    order = order_of(tuple(x.shape), x.stride())
    flat = aten.reshape.default(x if order is None else aten.permute.default(x, list(order)), [x.numel()])
    more = math.prod(shape) - x.numel()
    flat = aten.constant_pad_nd.default(flat, [0, more])
    y = aten.reshape.default(flat, shape)
    if len(shape) == x.dim():
        y = moved(y, x._layout.resolved, "resize_", implicit=True)
    become(x, memory_of(y._layout).begun(y, int(x.storage_offset())))
    return x
