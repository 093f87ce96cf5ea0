"""What torch.compile takes sharded tensors apart into, and puts them together from.

Torch asks each input of a compiled program for it twice before the program runs, and makes each gradient of it afterwards: every
call here counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..caches import BoundedCache
from ..engine.compiling import announce, check_compilable
from ..engine.form import Form, form_of
from ..engine.sharded import ShardedTensor, is_leaf, requires_grad, tensor_of
from ..engine.views.copy_views import current
from ..runtime.holding import Holding, holding
from ..runtime.machine import forget_with_residences
from ..runtime.processes import world
from ..runtime.processes.mesh_processes import spans
from ..runtime.traced import is_traced
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from ..watch.notes import is_watched
from ..watch.setting import Setting
from .leaf_gradient import GRADIENT_LAYOUT, gradient_in
from .named_pieces import piece_names

__all__ = ["Flat", "flattened", "unflattened"]

Flat = tuple[Layout, DeviceMapping | None, bool, Layout | None, bool]
"""What torch.compile knows of a tensor beside its pieces: how it lies, as what it was asked for, whether somebody watches, the
layout of its gradient where that is another, and whether it is a leaf, whose gradient is brought to that layout."""

_compilable = BoundedCache[Layout, bool](4096, cleared_by=world.forget_on_change)


def flattened(x: ShardedTensor) -> tuple[list[str], Flat]:
    """The names of the pieces of a tensor, and what else torch.compile is to know of it."""
    own = x.__dict__
    value, layout = own["_value"], own["_form"].layout
    announce()
    if layout not in _compilable:
        check_compilable(layout.mesh)
        _compilable[layout] = True
    pieces = value.pieces if value.shown is None else current(x)
    stays = (requires_grad(x) and is_leaf(x)) or value.is_traced_leaf
    flat = (layout, own.get("_asked"), Setting.is_used and is_watched(), own.get(GRADIENT_LAYOUT), stays)
    return piece_names(len(pieces)), flat


def unflattened(
    inner: dict[str, torch.Tensor], flat: Flat, outer_size: Sequence[int], outer_stride: Sequence[int]
) -> ShardedTensor:
    """The tensor that such pieces make up."""
    layout, asked, _, gradient, stays = flat
    pieces = tuple(inner.values()) if len(inner) == 1 else tuple([inner[name] for name in piece_names(len(inner))])
    first = pieces[0]
    key = (layout, outer_size, outer_stride, first.dtype, first.device)
    try:
        known = _made_of.get(key)
    except TypeError:  # sizes that a compiler has not settled have no hash
        known = _form_of(*key)
    else:
        if known is None:
            known = _made_of[key] = _form_of(*key)
    form, there = known
    shaped = there.shaped_whole(pieces)
    whole = tensor_of(form, pieces, 0 if shaped is None else int(shaped.storage_offset()))
    if asked is not None:
        whole._asked = asked
    if gradient is not None:
        gradient_in(whole, gradient)
    if stays and is_traced():
        whole._value.is_traced_leaf = True
        # Between processes, gradients of leaves travel beside the program instead, when all of it has run.
        whole._value.is_traced_input = not spans(layout.mesh)
    return whole


_made_of = BoundedCache[tuple[object, ...], tuple[Form, Holding]](4096, cleared_by=forget_with_residences)


def _form_of(
    layout: Layout, size: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[Form, Holding]:
    """The form of a tensor, and what this process stores of it."""
    return form_of(layout, size, strides, dtype, device), holding(layout)
