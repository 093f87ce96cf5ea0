"""Tensors that are made like another: they need its shape and layout, never its value, so nothing moves.

`device=` says on which kind of devices: that of the mesh, `meta` (no memory, the same layout), or another, where the new
tensor is on one device, as `x.to(device)` is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..engine.handlers import handler
from ..engine.memory import held_whole
from ..engine.moves.movement import from_plain
from ..engine.op_plan import NOT_REPEATED, Repeat
from ..engine.sharded import ShardedTensor, sharded, tensor_of, wrap
from ..engine.views.folded import is_unmade
from ..rules.call import Args, BoundCall, Kwargs
from ..runtime.holding import holding
from ..runtime.machine import device_of, residence, torch_device
from ..runtime.strides import dense_strides, is_dense, row_major
from ..runtime.traced import is_traced
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh

aten = torch.ops.aten

_NEW = (
    aten.new_empty.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.new_empty_strided.default,
)
_RANDOM = tuple(
    getattr(packet, name)
    for packet in (aten.rand_like, aten.randn_like, aten.randint_like)
    for name in packet.overloads()
)
_META = torch.device("meta")


@handler(aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default)
def _like(call: BoundCall) -> object:
    x = sharded(call, "self")
    result = _filled(call, x, _there(call, x, x._layout.resolved))
    call.repeat = _like_again(call, x, result)
    return result


def _like_again(call: BoundCall, x: ShardedTensor, result: ShardedTensor) -> Repeat | None:
    """What repeats a call whose result is contiguous: the same for each piece, made like one that takes no memory."""
    is_row_major = result.stride() == row_major(
        result.shape
    )  # dims of size 1 may lie otherwise in what is contiguous, too
    if x._form.is_special or not is_row_major or result.is_meta or is_traced():
        return None
    func, form = call.func, result._form
    models = [_shaped(piece.shape, None, x.dtype, piece.device) for piece in result._value.pieces]

    def repeat(args: Args, kwargs: Kwargs) -> object:
        if is_traced():
            return NOT_REPEATED
        rest, kept = args[1:], _kept(kwargs)  # the number that fills it may be another
        return tensor_of(form, tuple([func(model, *rest, **kept) for model in models]))

    return repeat


@handler(*_NEW)
def _new(call: BoundCall) -> object:
    """Dims as large as the other's, among as many: split as they are there. Every device has all of the others."""
    x, size, strides = sharded(call, "self"), tuple(call.integers("size")), call.integers("stride")
    layout = x._layout.resolved
    if size != tuple(x.shape):
        same = len(size) == x.dim()
        splits = [x._layout.splits[d] if same and size[d] == x.shape[d] else () for d in range(len(size))]
        layout = Layout(x.mesh, splits)
    layout = _there(call, x, layout)
    here = holding(layout)
    pieces = []
    for i in range(here.count):
        local = here.piece_shape(i, size)
        base = torch.empty((), dtype=x.dtype, device=_device(call, x, here.devices[i]))
        if strides and local != size:
            pieces.append(call.func(base, local, dense_strides(local, tuple(strides)), **_kept(call.kwargs)))
        else:
            pieces.append(call.func(base, local, *call.args[2:], **_kept(call.kwargs)))
    return _wrapped(call, x, pieces, layout, size, strides or None)


def _there(call: BoundCall, x: ShardedTensor, layout: Layout) -> Layout:
    """The layout of a new tensor: the other's, or on one device where it is to be on another kind of devices."""
    asked = _asked(call)
    if asked is None or asked.type in ("meta", residence(layout.mesh).device.type):
        return layout
    device = device_of(asked)
    torch_device(device)  # raises for one that does not exist
    return Layout.replicated(DeviceMesh.single(device), layout.rank)


def _asked(call: BoundCall) -> torch.device | None:
    device = call.arg("device")
    return None if device is None else torch.device(device)  # type: ignore[call-overload]


def _is_meta(call: BoundCall, x: ShardedTensor) -> bool:
    """Whether a new tensor is to have no memory."""
    return (_asked(call) or x.device).type == "meta"


def _device(call: BoundCall, x: ShardedTensor, device: torch.device) -> torch.device:
    return _META if _is_meta(call, x) else device


def _kept(kwargs: Kwargs) -> Kwargs:
    return {name: value for name, value in kwargs.items() if name != "device"}


def _wrapped(
    call: BoundCall,
    x: ShardedTensor,
    pieces: Sequence[torch.Tensor],
    layout: Layout,
    shape: Sequence[int],
    strides: Sequence[int] | None,
) -> ShardedTensor:
    device = _META if not pieces and _is_meta(call, x) else None
    return wrap(tuple(pieces), layout, shape, dtype=call.dtype() or x.dtype, strides=strides, device=device)


def _filled(call: BoundCall, x: ShardedTensor, layout: Layout) -> ShardedTensor:
    here, rest, kept = holding(layout), call.args[1:], _kept(call.kwargs)
    whole = _whole(x, layout)
    if whole is not None:
        elsewhere = {} if _asked(call) is None else {"device": _device(call, x, here.devices[0])}
        return _wrapped(call, x, [call.func(whole, *rest, **kept, **elsewhere)], layout, x.shape, None)
    strides = _strides(call, x)
    pieces = [
        call.func(_shaped(here.piece_shape(i, x.shape), strides, x.dtype, _device(call, x, device)), *rest, **kept)
        for i, device in enumerate(here.devices)
    ]
    return _wrapped(call, x, pieces, layout, x.shape, strides)


def _whole(x: ShardedTensor, layout: Layout) -> torch.Tensor | None:
    """What a tensor in a layout can be made like at once: the whole value of another, where it lies in one memory."""
    # Only the shape of a tensor is asked for whose elements lie elsewhere for now: they stay where they are.
    return held_whole(x) if layout.mesh == x.mesh and not is_unmade(x) and not x._value.is_put_off else None


def _strides(call: BoundCall, x: ShardedTensor) -> tuple[int, ...] | None:
    """The strides that torch would give the new tensor; None: those of a contiguous one."""
    if call.arg("memory_format") in (None, torch.preserve_format):
        if x.stride() == row_major(x.shape):
            return None
        if not x.numel() or is_dense(tuple(x.shape), x.stride()):
            return x.stride()
    with _disable_current_modes():  # whoever looks on is to see what the devices do
        like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=_META)
        made: torch.Tensor = call.func(like, *call.args[1:], **_kept(call.kwargs))
    return made.stride()


def _shaped(
    shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor to make others like, its dims in the order that strides say; a contiguous one takes no memory."""
    if strides is None and math.prod(shape) > 1:
        return torch.empty((), dtype=dtype, device=device).expand(tuple(shape))
    if strides is None:
        return torch.empty(
            tuple(shape), dtype=dtype, device=device
        )  # what has no two elements in one place keeps its strides
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
    return torch.empty_permuted(tuple(shape), order, dtype=dtype, device=device)


@handler(*(op for op in _RANDOM if not any(argument.is_out for argument in op._schema.arguments)))
def _random_like(call: BoundCall) -> object:
    """The numbers that one device would draw, laid out like the other tensor."""
    x = sharded(call, "self")
    layout = _there(call, x, x._layout.resolved)
    if _is_meta(call, x) or _whole(x, layout) is not None:
        return _filled(call, x, layout)
    base = _shaped(x.shape, _strides(call, x), x.dtype, residence(layout.mesh).device)
    drawn = call.func(base, *call.args[1:], **_kept(call.kwargs))
    return from_plain(drawn, layout, brought_to=str(call))
