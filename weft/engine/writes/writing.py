"""Writing to tensors: whole values into the memory of a tensor, and `out=`."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import cast

import torch

from ...caches import cached
from ...rules.call import BoundCall, Op, each_of
from ...rules.registry import ops_named
from ...runtime.memory.lazy_copy import may_overlap, part
from ...runtime.strides import Strides, dense_strides, row_major
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ..memory import held_whole, memory_of
from ..moves.movement import from_plain, moved, to_plain, to_write_plain
from ..moves.resolved import forget_resolved
from ..op_kind import is_elementwise, kind_of
from ..sharded import ShardedTensor, as_sharded
from ..strides.whole_results import whole_results
from ..total import own_pieces
from ..value import Value
from .becoming import become
from .casting import check_cast
from .copying import copy_once
from .overlapping import Lying, copies_first, is_named, is_shaped_first, named_alike, refuse_overlaps, share_memory
from .resizing import resize_shared
from .settling import write_total

__all__ = ["is_last_out", "shares_places", "store", "write_out", "write_whole", "written_tensors"]

aten = torch.ops.aten
_AS_OUT = {
    aten.sum.dim_IntList, aten.nansum.default, aten.prod.default, aten.prod.dim_int, aten.cumsum.default, aten.cumprod.default,
}  # fmt: skip
"""Ops that compute in the dtype of `out`, where none is given."""
_CAST_FIRST = {aten.cat.out, aten.stack.out}
"""Ops that look at dtypes before they look at what they share."""
_PRODUCTS = {aten.mm.out, aten.mv.out, aten.bmm.out}
"""Ops to which `matmul(out=)` gives a view of its `out`, which it then copies to that."""
_BY_ROWS = frozenset(ops_named("_fft_c2c.out _fft_r2c.out _fft_c2r.out cholesky.out stack.out"))
"""Ops whose `out` lies row by row where it had another shape; for others it lies as the result. Torch's generated ones copy to rows."""


def written_tensors(call: BoundCall) -> Iterator[ShardedTensor]:
    """The sharded tensors that a call writes to."""
    func, args, kwargs = call.func, call.args, call.kwargs
    kind = kind_of(func)
    if not kind.written and not kind.outs:
        return
    names = [argument.name for argument in func._schema.arguments]
    values = [args[i] if i < len(args) else kwargs.get(names[i]) for i in kind.written]
    for value in [*values, *(kwargs.get(name) for name in kind.outs)]:
        for x in each_of(value):
            if isinstance(x, ShardedTensor):
                yield x


def store(x: ShardedTensor, value: torch.Tensor, op: str, *, non_blocking: bool = False) -> None:
    """Writes a value of the same shape into the memory of `x`, whose layout stays."""
    if is_traced() and write_total(x, value):
        return
    if isinstance(value, ShardedTensor) and value._layout.pending and value._layout is not x._layout:
        value = moved(value, value._layout.resolved, op, implicit=True)
    if value.dtype != x.dtype and (x._layout.pending or (isinstance(value, ShardedTensor) and value._layout.pending)):
        if isinstance(value, ShardedTensor):
            value = moved(value, value._layout.resolved, op, implicit=True)
        value = aten._to_copy.default(value, dtype=x.dtype)
    own_pieces(x)
    if isinstance(value, ShardedTensor):
        if value._layout is not x._layout:
            value = moved(value, x._layout, op, implicit=True)
    elif (whole := held_whole(x)) is not None:
        copy_once(whole, value, non_blocking=non_blocking)
        return
    else:
        value = from_plain(value, x._layout, brought_to=op)
    for piece, new in zip(x._value.pieces, value._value.pieces, strict=True):
        copy_once(piece, new, non_blocking=non_blocking)
    if x._layout.pending:
        forget_resolved()


def write_out(call: BoundCall) -> object:
    """An op with `out=`: the same op without it, whose results are written to the outs."""
    func, args, kwargs = call.func, call.args, call.kwargs
    outs, functional = kind_of(func).outs, _functional(func)
    if func in _CAST_FIRST and functional is not None and len({x.dtype for x in call.tensors}) > 1:
        check_cast(call, functional)
    if functional is None:
        return write_whole(call)
    _refuse_read(call, functional)
    given = {name: value for name, value in kwargs.items() if name not in outs}
    if functional in _AS_OUT and given.get("dtype") is None:
        given["dtype"] = call.tensor(outs[0]).dtype
    outs_given, read = [x for name in outs for x in _listed(kwargs[name])], BoundCall(functional, args, given).tensors
    if any(out.dtype is not x.dtype for out in outs_given for x in read[:1]):
        check_cast(call, functional)  # before anything moves
    results = functional(*args, **given)
    listed = isinstance(kwargs[outs[0]], (list, tuple))
    values = results if isinstance(results, (list, tuple)) and not listed else (results,)
    pairs = [
        pair
        for name, value in zip(outs, values, strict=True)
        for pair in zip(_listed(kwargs[name]), _listed(value), strict=True)
    ]
    if any(out.dtype is not new.dtype for out, new in pairs):
        check_cast(call, functional)
    pairs = [(out, _brought(out, new)) for out, new in pairs]  # all of them, before anything is written
    for out, new in pairs:
        _assign(out, new, is_by_rows=func in _BY_ROWS or torch.Tag.generated in func.tags)
    last = outs_given[-1]
    is_part = func in _PRODUCTS and isinstance(last, ShardedTensor) and last._is_view()
    _last_out.set(_Out.of(as_sharded(last)) if is_part else None)
    if not func._schema.returns:
        return None
    return kwargs[outs[0]] if len(outs) == 1 else tuple(kwargs[name] for name in outs)


@dataclass(frozen=True, slots=True)
class _Out:
    """What is remembered of an `out`: not the tensor, which would live for ever, nor a weak reference to it, with which torch swaps none."""

    value: weakref.ref[Value] = field(compare=False)
    root: weakref.ref[Value]
    numel: int
    offset: int

    @classmethod
    def of(cls, x: ShardedTensor) -> _Out:
        base = x._base if x._is_view() else x
        root = base if isinstance(base, ShardedTensor) else x
        return cls(weakref.ref(x._value), weakref.ref(root._value), x.numel(), int(x.storage_offset()))


_last_out: ContextVar[_Out | None] = ContextVar("_last_out", default=None)


def _refuse_read(call: BoundCall, functional: torch._ops.OpOverload | None) -> None:
    """Raises where torch does because what is read is in part what is written to."""
    outs = [x for name in kind_of(call.func).outs for x in _listed(call.kwargs[name])]
    read = [y for value in call.args for y in _listed(value) if isinstance(y, torch.Tensor)]
    lying: list[Lying | None] = [None] * len(outs)
    shared = (share_memory(x, y) for x in outs for y in read if y is not x)
    if functional is not None and is_shaped_first(call.func) and any(shared):
        rest = {name: value for name, value in call.kwargs.items() if name not in kind_of(call.func).outs}
        specs = whole_results(BoundCall(functional, call.args, rest))
        lying = [None if spec is None or spec.strides is None else (spec.shape, spec.strides) for spec in specs]
    for x, there in zip(outs, lying, strict=True):
        if isinstance(x, ShardedTensor):
            copied = read[:1] if copies_first(call.func) else []
            _refuse_short(call.func, x, read)
            refuse_overlaps(aten.copy_.default, x, copied)
            refuse_overlaps(call.func, x, read[len(copied) :], there)


def _refuse_short(func: Op, out: torch.Tensor, read: list[torch.Tensor]) -> None:
    """Raises where torch does because an elementwise op reads `out` itself, which then keeps its shape, as part of a larger result."""
    if is_elementwise(func) and any(y is out for y in read):
        shape = torch.broadcast_shapes(*(y.shape for y in read))
        if shape != out.shape:
            raise RuntimeError(f"output with shape {list(out.shape)} doesn't match the broadcast shape {list(shape)}")


def is_last_out(x: torch.Tensor) -> bool:
    """Whether a tensor is the view that a product of this thread was written to last, or a view of all of it."""
    last = _last_out.get()
    if last is None or not isinstance(x, ShardedTensor):
        return False
    return last.value() is x._value or (x._is_view() and last == _Out.of(x))


def write_whole(call: BoundCall) -> object:
    """Runs a call that writes on whole values: an op that only exists with `out=`, or one to which the order of places matters."""
    if kind_of(call.func).outs:
        _refuse_read(call, _functional(call.func))
    for x in tuple(written_tensors(call)):
        call = call.with_tensors([named_alike(x, y) for y in call.tensors])
    func, args, kwargs = call.func, call.args, call.kwargs
    written = {id(x) for x in written_tensors(call)}
    wholes: dict[int, tuple[ShardedTensor, torch.Tensor]] = {}

    def plain(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return type(value)([plain(item) for item in value])
        if not isinstance(value, ShardedTensor):
            return value
        if id(value) not in wholes:
            wholes[id(value)] = value, _whole_copy(value, str(func), is_written=id(value) in written)
        return wholes[id(value)][1]

    func(*[plain(value) for value in args], **{name: plain(value) for name, value in kwargs.items()})
    for x, whole in wholes.values():
        if id(x) in written:
            _assign(x, whole)
    kind = kind_of(func)
    given = [kwargs[name] for name in kind.outs] or [args[at] for at in kind.written]
    if not func._schema.returns:
        return None
    return given[0] if len(given) == 1 else tuple(given)


def _whole_copy(x: ShardedTensor, op: str, *, is_written: bool) -> torch.Tensor:
    """The value of a tensor; of one that is written to, indices that name one element do so in the copy."""
    whole = to_plain(x, op, implicit=True)
    if not is_written or not may_overlap(x):
        return whole.clone()
    places = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=whole.device)
    copy_once(places, whole)
    return places


def shares_places(call: BoundCall) -> bool:
    """Whether a call writes to indices that name one element: which of them counts, the order on one device says.

    Torch refuses most of these calls, and takes some. What is the same wherever it is written is left to all devices, and
    what only says how a tensor lies writes nothing.
    """
    if call.func in _SAME_EVERYWHERE or torch.Tag.inplace_view in call.func.tags:
        return False
    return any(x.numel() and may_overlap(x) for x in written_tensors(call)) and not _copies_itself(call)


def _copies_itself(call: BoundCall) -> bool:
    """Whether a tensor is copied to itself, which writes nothing, be it by another name."""
    if call.func is not aten.copy_.default:
        return False
    value = call.args[1]
    return isinstance(value, ShardedTensor) and is_named(call.tensor("self"), value)


_SAME_EVERYWHERE = {aten.fill_.Scalar, aten.zero_.default, aten._foreach_zero_.default}


def _listed(value: object) -> list[torch.Tensor]:
    return cast("list[torch.Tensor]", list(value) if isinstance(value, (list, tuple)) else [value])


@cached(2048)
def _functional(func: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload with the same arguments but `out`."""
    packet = func.overloadpacket

    def read(overload: torch._ops.OpOverload) -> list[tuple[str, str, bool]]:
        return [(a.name, str(a.type), a.kwarg_only) for a in overload._schema.arguments if not a.is_out]

    wanted = read(func)
    for name in packet.overloads():
        candidate = cast(torch._ops.OpOverload, getattr(packet, name))
        if not kind_of(candidate).outs and not kind_of(candidate).written and read(candidate) == wanted:
            return candidate
    return None


def _brought(out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A result in the layout of the tensor that it will be written to."""
    if not isinstance(out, ShardedTensor) or not isinstance(value, ShardedTensor) or out.shape != value.shape:
        return value
    if out._layout is value._layout or out._layout.pending or value._layout.pending:
        return value
    return moved(value, out._layout, "out=", implicit=True)


def _assign(out: torch.Tensor, value: torch.Tensor, *, is_by_rows: bool = False) -> None:
    """Writes a result to an `out=` tensor, which keeps its layout and dtype; `is_by_rows`: it lies row by row if it had another shape."""
    if not torch.can_cast(value.dtype, out.dtype):
        raise RuntimeError(f"result type {value.dtype} can't be cast to the desired output type {out.dtype}")
    if out.shape != value.shape:
        strides = row_major(value.shape) if is_by_rows else dense_strides(tuple(value.shape), value.stride())
        if _resize(out, value, strides):
            aten.copy_.default(
                out, value
            )  # whoever shares its memory shows it, and may have to be written to beside it
            return
    if isinstance(out, ShardedTensor):
        store(out, value, "out=")
    else:
        out.copy_(to_write_plain(value, "out=") if isinstance(value, ShardedTensor) else value)


def _resize(out: torch.Tensor, value: torch.Tensor, strides: Strides) -> bool:
    """As torch does: an empty out takes the result's shape, another one too, with a warning. Gives whether others have its memory."""
    if out.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not "
            f"match the required output shape {list(value.shape)}",
            UserWarning,
            stacklevel=2,
        )
    if isinstance(out, ShardedTensor):
        if resize_shared(out, value.shape, strides):
            return True
        mesh, same = out._layout.mesh, out.dim() == value.dim()
        layout = out._layout.resolved if same else Layout.replicated(mesh, value.dim())
        with torch.inference_mode(out.is_inference()), torch.no_grad():
            zeros = torch.empty_strided(value.shape, strides, dtype=out.dtype, device=out.device).zero_()
            new = from_plain(zeros, layout)
            become(out, memory_of(layout).begun(new, int(out.storage_offset())))
    else:
        part([out])  # torch cannot make memory grow that is shared until it is written to
        out.resize_(value.shape).as_strided_(value.shape, strides)
    return False
