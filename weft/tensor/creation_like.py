"""Tensors that are made like another: they need its shape and layout, never its value, so nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..runtime.holding import holding
from ..sharding.layout import Layout
from .handling import handler
from .movement import from_plain
from .tensor import Tensor, wrap

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


def _elsewhere(x: Tensor, kwargs: Kwargs) -> bool:
    """Whether the new tensor is to lie on another kind of device, as a plain one."""
    device = kwargs.get("device")
    return device is not None and torch.device(cast(torch.device, device)).type != x.device.type


@handler(aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default)
def _like(func: Op, args: Args, kwargs: Kwargs) -> object:
    x = cast(Tensor, args[0])
    if _elsewhere(x, kwargs):
        return func(_shaped(x.shape, x), *args[1:], **kwargs)
    return _filled(x._layout.resolved, x, func, args[1:], kwargs)


@handler(*_NEW)
def _new(func: Op, args: Args, kwargs: Kwargs) -> object:
    """Dims as large as the other's, among as many: split as they are there. Every device has all of the others."""
    x, size = cast(Tensor, args[0]), tuple(cast("Sequence[int]", args[1]))
    if _elsewhere(x, kwargs):
        return func(_shaped((), x), *args[1:], **kwargs)
    layout = x._layout.resolved
    if size != tuple(x.shape):
        same = len(size) == x.dim()
        layout = Layout(
            x.mesh, [x._layout.splits[d] if same and size[d] == x.shape[d] else () for d in range(len(size))]
        )
    here = holding(layout)
    pieces = []
    for i in range(here.count):
        local = list(here.piece_shape(i, size))
        base = torch.empty((), dtype=x.dtype, device=here.devices[i])
        if func is aten.new_empty_strided.default and not here.unified:
            pieces.append(aten.new_empty(base, local, **kwargs))
        else:
            pieces.append(func(base, local, *args[2:], **_kept(kwargs)))
    return wrap(tuple(pieces), layout, size, dtype=cast("torch.dtype | None", kwargs.get("dtype")) or x.dtype)


def _kept(kwargs: Kwargs) -> Kwargs:
    return {name: value for name, value in kwargs.items() if name != "device"}


def _shaped(shape: Sequence[int], x: Tensor) -> torch.Tensor:
    """A plain tensor of a shape that takes no memory."""
    return torch.empty((), dtype=x.dtype, device=x.device).expand(tuple(shape))


def _filled(layout: Layout, x: Tensor, func: Op, rest: Args, kwargs: Kwargs) -> Tensor:
    here = holding(layout)
    pieces = []
    for i in range(here.count):
        if here.unified:
            base = x._pieces[i]
        else:
            base = torch.empty((), dtype=x.dtype, device=here.devices[i]).expand(here.piece_shape(i, x.shape))
        pieces.append(func(base, *rest, **_kept(kwargs)))
    return wrap(tuple(pieces), layout, x.shape, dtype=cast("torch.dtype | None", kwargs.get("dtype")) or x.dtype)


@handler(*(op for op in _RANDOM if not any(argument.is_out for argument in op._schema.arguments)))
def _random_like(func: Op, args: Args, kwargs: Kwargs) -> object:
    """The numbers that one device would draw, laid out like the other tensor."""
    x = cast(Tensor, args[0])
    if _elsewhere(x, kwargs):
        return func(_shaped(x.shape, x), *args[1:], **kwargs)
    layout = x._layout.resolved
    if holding(layout).unified:
        return _filled(layout, x, func, args[1:], kwargs)
    like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return from_plain(func(like, *args[1:], **_kept(kwargs)), layout)
