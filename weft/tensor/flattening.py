"""What torch.compile takes sharded tensors apart into, and puts them together from.

Torch asks each input of a compiled program for it twice before the program runs, and makes each gradient of it afterwards: every
call here counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from ..caches import BoundedCache
from ..engine.form import Form, form_of
from ..engine.programs.compiling import announce, check_compilable
from ..engine.ragged.families import settle
from ..engine.sharded import ShardedTensor, begins_at, is_leaf, requires_grad, tensor_of, total_of
from ..engine.total import UNKNOWN, Contributions, known_total, own_pieces
from ..engine.value import Flat
from ..engine.views.copy_views import current, is_alias
from ..runtime.holding import Holding, Pieces, holding
from ..runtime.machine import forget_with_residences
from ..runtime.open_sizes import introduce, start_over_where_settled, still_open
from ..runtime.traced import is_traced
from ..sharding.layout import Layout
from ..watch.notes import is_watched
from ..watch.setting import Setting
from .leaf_gradient import GRADIENT_LAYOUT, gradient_in, note_pass
from .named_pieces import TOTAL, piece_names

__all__ = ["flattened", "unflattened"]

_compilable = BoundedCache[Layout, bool](4096, cleared_by=forget_with_residences)
_flats = BoundedCache[Flat, Flat](4096)
"""Each once, so that comparing two of them is to see that they have the same parts."""
_TOTAL_ALONE = [TOTAL]
_is_written: Callable[[torch.Tensor], bool] = vars(torch)["_functionalize_has_data_mutation"]


def flattened(x: ShardedTensor) -> tuple[list[str], Flat]:
    """The names of the pieces of a tensor, and what else torch.compile is to know of it."""
    value = x._value
    known = value.flat
    if known is not None:
        names, flat = known
        if flat[0] in _compilable and flat[2] is (Setting.is_used and is_watched()):
            total = value.total
            if names is not _TOTAL_ALONE or (total is not None and not total.written[0] and value.source is not None):
                return known
    return _flattened_anew(x)


def _flattened_anew(x: ShardedTensor) -> tuple[list[str], Flat]:
    """The same, looked at."""
    own = x.__dict__
    if x._value.rows is not None:
        settle(x)  # a compiler knows tensors by their pieces, and asks every result for them
    value, layout = x._value, x._form.layout
    if x._form.is_open:
        start_over_where_settled((*x._form.shape, *x._form.strides))
    announce()
    if layout not in _compilable:
        check_compilable(layout.mesh)
        _compilable[layout] = True
    stays = (requires_grad(x) and is_leaf(x)) or value.is_traced_leaf
    if not stays:
        note_pass()
    if value.is_traced_copy:
        _refuse_written(x)
    is_apart = value.is_traced_copy or not is_alias(x)
    flat = (layout, own.get("_asked"), Setting.is_used and is_watched(), own.get(GRADIENT_LAYOUT), stays, is_apart)
    if value.shown is not None:
        return piece_names(len(current(x))), flat
    is_whole = bool(layout.pending) and _is_given_whole(x)
    found = _TOTAL_ALONE if is_whole else piece_names(len(value.pieces)), _flats.get(flat) or _interned(flat)
    if (is_whole or not layout.pending) and not is_traced():
        value.flat = found
    return found


def _refuse_written(x: ShardedTensor) -> None:
    """Raises where a program that is traced has written to a view that is a copy: what the view shows would not change."""
    for piece in x._value.pieces:
        if isinstance(piece, FunctionalTensor) and _is_written(piece.elem):
            raise NotImplementedError(
                f"a compiled program writes to an input of shape {list(x.shape)} that is a view of another tensor along a split dim. Between memories "
                "its elements are copies, and the other tensor would not change. Take the view inside of the program, with the other tensor "
                "as its input, or write to it outside"
            )


def _interned(flat: Flat) -> Flat:
    _flats[flat] = flat
    return flat


def _is_given_whole(x: ShardedTensor) -> bool:
    """Whether a compiler is given the whole value of a pending tensor, not what devices contribute to it.

    It may write to what it is given: that is what counts from now on.
    """
    value, total = x._value, known_total(x)
    if total is None:
        return False
    if type(total) is not torch.Tensor:
        return True  # in a program that is traced both are written to
    if value.is_made:
        own_pieces(x)
        return False
    value.source = Contributions(UNKNOWN, 0, total, x._form.layout)
    return True


def unflattened(
    inner: dict[str, torch.Tensor], flat: Flat, outer_size: Sequence[int], outer_stride: Sequence[int]
) -> ShardedTensor:
    """The tensor that such pieces make up."""
    layout, asked, _, gradient, stays, is_apart = flat
    total = inner.get(TOTAL)
    if total is not None:
        pieces: Pieces = (total,)
    elif len(inner) == 1:
        pieces = tuple(inner.values())
    else:
        pieces = tuple([inner[name] for name in piece_names(len(inner))])
    first = pieces[0]
    key = (layout, outer_size, outer_stride, first.dtype, first.device)
    try:
        known = _made_of.get(key)
    except TypeError:  # sizes that a compiler has not settled have no hash
        outer_size, outer_stride = still_open(outer_size), still_open(outer_stride)
        for piece in pieces:
            still_open(piece.shape)  # torch may call them otherwise than the sizes of the whole that they make up
        introduce((*outer_size, *outer_stride))
        known = _form_of(layout, outer_size, outer_stride, first.dtype, first.device)
    else:
        if known is None:
            known = _made_of[key] = _form_of(*key)
    form, there = known
    shaped = there.shaped_whole(pieces)
    offset = 0 if shaped is None else begins_at(shaped)
    whole = tensor_of(form, pieces, offset) if total is None else total_of(form, total, offset)
    if asked is not None:
        whole._asked = asked
    if gradient is not None:
        gradient_in(whole, gradient)
    if stays and is_traced():
        whole._value.is_traced_leaf = whole._value.is_traced_input = True
    if is_apart and is_traced():
        whole._value.is_traced_copy = True
    return whole


_made_of = BoundedCache[tuple[object, ...], tuple[Form, Holding]](4096, cleared_by=forget_with_residences)


def _form_of(
    layout: Layout, size: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[Form, Holding]:
    """The form of a tensor, and what this process stores of it."""
    return form_of(layout, size, strides, dtype, device), holding(layout)
