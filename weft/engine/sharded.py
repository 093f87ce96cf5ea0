"""`ShardedTensor`: what every room knows of a tensor: its form, its value, and the mapping that a user asked for.

`weft.Tensor` is the one class that derives from it; it adds what users call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, cast, final

import torch
from torch.autograd.graph import Node

from ..rules.call import BoundCall
from ..runtime.holding import Pieces, holding
from ..runtime.machine import residence
from ..runtime.strides import row_major
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from ..sharding.mesh import DeviceMesh
from .form import Form, form_of
from .total import UNKNOWN, Contributions, Total
from .value import Flat, Source, Value, value_from, value_of

__all__ = [
    "ShardedTensor",
    "Stand",
    "all_sharded",
    "as_it_is",
    "as_sharded",
    "as_viewed",
    "begins_at",
    "grad_fn",
    "is_leaf",
    "requires_grad",
    "sharded",
    "stand_of",
    "tensor_of",
    "total_of",
    "use_count",
    "without_graph",
    "wrap",
    "wrap_total",
    "wrap_whole",
]

requires_grad: Callable[[torch.Tensor], bool] = vars(torch._C.TensorBase)["requires_grad"].__get__
is_leaf: Callable[[torch.Tensor], bool] = vars(torch._C.TensorBase)["is_leaf"].__get__
grad_fn: Callable[[torch.Tensor], Node | None] = vars(torch._C.TensorBase)["grad_fn"].__get__
use_count: Callable[[torch.Tensor], int] = vars(torch._C.TensorBase)["_use_count"]
"""What torch knows of a tensor, asked in the least time, and of torch alone."""

_make: Callable[..., ShardedTensor] = torch.Tensor._make_wrapper_subclass


class ShardedTensor(torch.Tensor):
    """A tensor that lies in pieces."""

    _form: Form
    _value: Value
    _asked: DeviceMapping | None = None
    """The mapping the user asked for, where the layout came from one."""

    final: ClassVar[type[ShardedTensor]]
    """The class that tensors are made of."""
    __tensor_flatten__: Callable[[], tuple[list[str], Flat]]
    """What torch.compile asks; that class answers."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if ShardedTensor in cls.__bases__:
            ShardedTensor.final = Form.kind = cls

    @property
    def _layout(self) -> Layout:
        return self._form.layout

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh the tensor lies on."""
        return self._form.layout.mesh


HEARD = "_heard"
"""Where a tensor keeps that somebody else hears of its gradient when that arrives."""

KEPT_PLAIN = "_kept_plain"
"""Where a leaf keeps the layout of a gradient that is held plain: see `weft.engine.held_gradient`."""

HELD_BACK = "_held_back"
"""Where a leaf keeps what is to be added to its gradient later: see `weft.engine.held_gradient`."""

OWN_STATE = ("_form", "_value", "_asked", HEARD, KEPT_PLAIN, HELD_BACK)
"""The attributes that are Weft's, not a user's or torch's."""


def sharded(call: BoundCall, name: str) -> ShardedTensor:
    """An argument of a call that is a sharded tensor."""
    x = call.tensor(name)
    assert isinstance(x, ShardedTensor), f"{call}: {name} is a plain tensor"
    return x


def as_sharded(x: object) -> ShardedTensor:
    """A value that is known to be a sharded tensor."""
    assert isinstance(x, ShardedTensor), f"{type(x).__name__} instead of a sharded tensor"
    return x


def all_sharded(values: Iterable[object]) -> list[ShardedTensor]:
    """Values that are known to be sharded tensors."""
    return [as_sharded(x) for x in values]


def begins_at(x: torch.Tensor) -> int:
    """Where in its memory a tensor begins; a compiler may leave that open."""
    return cast(int, x.storage_offset())


def as_viewed(x: ShardedTensor) -> tuple[bool, int]:
    """Notes that a view of a tensor is made; says whether that is an inference tensor, and where it begins."""
    value = x._value
    value.is_viewed = True
    asked = (x.is_inference(), begins_at(x))
    if value.lent_by is None:  # whose views have to be noted each
        value.as_viewed = asked
    return asked


def wrap(
    pieces: Pieces,
    layout: Layout,
    shape: Sequence[int],
    *,
    asked: DeviceMapping | None = None,
    dtype: torch.dtype | None = None,
    strides: Sequence[int] | None = None,
    offset: int | None = None,
    device: torch.device | None = None,
) -> ShardedTensor:
    """The tensor of this shape that these pieces make up; `device` where it has none here and is not on its mesh's."""
    if pieces:
        dtype, device = pieces[0].dtype, pieces[0].device
        whole = holding(layout).shaped_whole(pieces)
        if whole is not None:
            strides = whole.stride() if strides is None else strides
            offset = begins_at(whole) if offset is None else offset
    assert dtype is not None
    strides = row_major(shape) if strides is None else strides
    form = form_of(layout, shape, strides, dtype, device or residence(layout.mesh).device)
    return made(form, value_of(pieces), offset or 0, asked)


def made(form: Form, value: Value, offset: int = 0, asked: DeviceMapping | None = None) -> ShardedTensor:
    """The tensor of a form that holds a value."""
    tensor = _make(*(form.made_at(offset) if offset else form.made_with))
    tensor._form = form
    tensor._value = value
    if asked is not None:
        tensor._asked = asked
    return tensor


def tensor_of(form: Form, pieces: Pieces, offset: int = 0) -> ShardedTensor:
    """The tensor of a form that these pieces make up: `made`, in the least time."""
    value = Value()
    value.pieces = pieces
    tensor = _make(*form.made_at(offset)) if offset else _make(*form.made_with)
    tensor._form = form
    tensor._value = value
    return tensor


def wrap_arriving(
    source: Source,
    layout: Layout,
    shape: Sequence[int],
    dtype: torch.dtype,
    strides: Sequence[int],
    asked: DeviceMapping | None,
) -> ShardedTensor:
    """The tensor of this shape whose pieces are on their way."""
    form = form_of(layout, shape, strides, dtype, residence(layout.mesh).device)
    return made(form, value_from(source), asked=asked)


def wrap_whole(whole: torch.Tensor, layout: Layout, asked: DeviceMapping | None = None) -> ShardedTensor:
    """The tensor that a whole value in one memory is."""
    form = form_of(layout, whole.shape, whole.stride(), whole.dtype, whole.device)
    return made(form, value_of((whole,)), begins_at(whole), asked)


def wrap_total(
    whole: torch.Tensor,
    layout: Layout,
    contributions: Contributions,
    written: list[bool],
    asked: DeviceMapping | None = None,
) -> ShardedTensor:
    """The pending tensor in one memory whose whole value is known; tensors that share memory share `written`."""
    form = form_of(layout, whole.shape, whole.stride(), whole.dtype, whole.device)
    value = value_from(contributions)  # the whole is no contribution
    value.total = Total(whole, written)
    return made(form, value, begins_at(whole), asked)


def total_of(form: Form, whole: torch.Tensor, offset: int = 0) -> ShardedTensor:
    """The pending tensor of a form in one memory of which nothing but the whole value is known."""
    value = value_from(Contributions(UNKNOWN, 0, whole, form.layout))
    value.total = Total(whole, [False])
    return made(form, value, offset)


@final
class Stand:
    """What views show: a tensor, or what it was before it became another."""

    __slots__ = ("__weakref__", "has_become", "tensor")

    def __init__(self, tensor: ShardedTensor) -> None:
        self.tensor = tensor
        self.has_become = False


def stand_of(x: ShardedTensor) -> Stand:
    """What views of a tensor are to hold, instead of the tensor itself."""
    stand = None if x._value.stand is None else x._value.stand()
    if stand is None:
        stand = Stand(x)
        x._value.stand = weakref.ref(stand)  # the stand holds the tensor, and is held by views only
    return stand


def without_graph(x: ShardedTensor) -> ShardedTensor:
    """Another tensor with the same value, which keeps nothing of what it was computed of: what detached ones hold."""
    return made(x._form, x._value, begins_at(x))


def as_it_is(x: ShardedTensor) -> ShardedTensor:
    """Another tensor with the same memory, which stays what it is when `x` becomes another."""
    return made(x._form, x._value.taken(), begins_at(x), x._asked)
