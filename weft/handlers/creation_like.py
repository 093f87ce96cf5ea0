"""Tensors that are made like another: they need its shape and layout, never its value, so nothing moves.

`device=` says on which kind of devices: that of the mesh, `meta` (no memory, the same layout), or another, where the new
tensor is on one device, as `x.to(device)` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..devices import CPU, Accelerator
from ..engine.handlers import handler
from ..engine.moves.movement import from_plain
from ..engine.sharded import ShardedTensor, wrap
from ..rules.call import BoundCall
from ..runtime.holding import Holding, holding
from ..runtime.machine import residence, torch_device
from ..runtime.strides import row_major
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh

aten = torch.ops.aten

Args = tuple[object, ...]
Kwargs = dict[str, object]
Op = torch._ops.OpOverload

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
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    return _filled(_there(x._layout.resolved, x, kwargs), x, func, args[1:], kwargs)


@handler(*_NEW)
def _new(call: BoundCall) -> object:
    """Dims as large as the other's, among as many: split as they are there. Every device has all of the others."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x, size = cast(ShardedTensor, args[0]), tuple(cast("Sequence[int]", args[1]))
    layout = x._layout.resolved
    if size != tuple(x.shape):
        same = len(size) == x.dim()
        layout = Layout(
            x.mesh, [x._layout.splits[d] if same and size[d] == x.shape[d] else () for d in range(len(size))]
        )
    layout = _there(layout, x, kwargs)
    here = holding(layout)
    pieces = []
    for i in range(here.count):
        local = list(here.piece_shape(i, size))
        base = torch.empty((), dtype=x.dtype, device=_device(here, i, x, kwargs))
        if func is aten.new_empty_strided.default and not here.unified:
            pieces.append(aten.new_empty(base, local, **_kept(kwargs)))
        else:
            pieces.append(func(base, local, *args[2:], **_kept(kwargs)))
    return _wrapped(pieces, layout, size, x, kwargs)


def _there(layout: Layout, x: ShardedTensor, kwargs: Kwargs) -> Layout:
    """The layout of a new tensor: the other's, or on one device where it is to be on another kind of devices."""
    if kwargs.get("device") is None:
        return layout
    kind = _kind(x, kwargs)
    if kind in ("meta", residence(layout.mesh).device.type):
        return layout
    index = torch.device(cast(torch.device, kwargs["device"])).index or 0
    device = CPU(index) if kind == "cpu" else Accelerator(index)
    torch_device(device)  # raises for one that does not exist
    return Layout.replicated(DeviceMesh.single(device), layout.rank)


def _kind(x: ShardedTensor, kwargs: Kwargs) -> str:
    """On which kind of devices a new tensor is to be."""
    device = kwargs.get("device")
    return x.device.type if device is None else torch.device(cast(torch.device, device)).type


def _device(here: Holding, piece: int, x: ShardedTensor, kwargs: Kwargs) -> torch.device:
    return _META if _kind(x, kwargs) == "meta" else here.devices[piece]


def _kept(kwargs: Kwargs) -> Kwargs:
    return {name: value for name, value in kwargs.items() if name != "device"}


def _wrapped(
    pieces: Sequence[torch.Tensor],
    layout: Layout,
    shape: Sequence[int],
    x: ShardedTensor,
    kwargs: Kwargs,
    strides: Sequence[int] | None = None,
) -> ShardedTensor:
    dtype = cast("torch.dtype | None", kwargs.get("dtype")) or x.dtype
    device = _META if not pieces and _kind(x, kwargs) == "meta" else None
    return wrap(tuple(pieces), layout, shape, dtype=dtype, strides=strides, device=device)


def _filled(layout: Layout, x: ShardedTensor, func: Op, rest: Args, kwargs: Kwargs) -> ShardedTensor:
    here = holding(layout)
    kept = _kept(kwargs)
    if here.unified and layout.mesh == x.mesh and not x._layout.pending:
        elsewhere = {"device": _device(here, 0, x, kwargs)} if kwargs.get("device") is not None else {}
        return _wrapped([func(x._value.pieces[0], *rest, **kept, **elsewhere)], layout, x.shape, x, kwargs)
    strides = _strides(x, func, rest, kept)
    pieces = [
        func(_shaped(here.piece_shape(i, x.shape), strides, x.dtype, _device(here, i, x, kwargs)), *rest, **kept)
        for i in range(here.count)
    ]
    return _wrapped(pieces, layout, x.shape, x, kwargs, strides)


def _strides(x: ShardedTensor, func: Op, rest: Args, kwargs: Kwargs) -> tuple[int, ...] | None:
    """The strides that torch would give the new tensor; None: those of a contiguous one."""
    if kwargs.get("memory_format") in (None, torch.preserve_format):
        if x.stride() == row_major(x.shape):
            return None
        if _is_dense(x):
            return x.stride()
    with _disable_current_modes():  # whoever looks on is to see what the devices do
        made = func(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=_META), *rest, **kwargs)
    return cast("tuple[int, ...]", made.stride())


def _is_dense(x: torch.Tensor) -> bool:
    """Whether the elements fill a piece of memory, in whatever order of dims."""
    step = 1
    if not x.numel():
        return True
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def _shaped(
    shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor to make others like, its dims in the order that strides say; a contiguous one takes no memory."""
    if strides is None:
        return torch.empty((), dtype=dtype, device=device).expand(tuple(shape))
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
    return torch.empty_permuted(tuple(shape), order, dtype=dtype, device=device)


@handler(*(op for op in _RANDOM if not any(argument.is_out for argument in op._schema.arguments)))
def _random_like(call: BoundCall) -> object:
    """The numbers that one device would draw, laid out like the other tensor."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    layout = _there(x._layout.resolved, x, kwargs)
    if holding(layout).unified or _kind(x, kwargs) == "meta":
        return _filled(layout, x, func, args[1:], kwargs)
    rest, kept = args[1:], _kept(kwargs)
    base = _shaped(x.shape, _strides(x, func, rest, kept), x.dtype, residence(layout.mesh).device)
    return from_plain(func(base, *rest, **kept), layout)
