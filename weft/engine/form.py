"""`Form`: all that is known of a sharded tensor without looking at its values. Tensors of one form are treated alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import torch

from ..caches import BoundedCache
from ..runtime.machine import forget_with_residences
from ..runtime.strides import row_major
from ..sharding.layout import Layout
from .dispatch_keys import keys_of

__all__ = ["Form", "form_of", "special"]


@final
class Form:
    """Layout, shape, strides, dtype and device, as of the whole tensor. Interned: what is the same is one object.

    Two of one kind may be about after the table was emptied; they are told apart then, which costs a look-up and no more.
    """

    __slots__ = ("device", "dtype", "is_open", "is_special", "layout", "made_with", "shape", "strides", "told")

    kind: ClassVar[type[torch.Tensor]]
    """The class that tensors are made of."""

    def __init__(
        self,
        layout: Layout,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        is_special: bool = False,
    ) -> None:
        self.layout, self.shape, self.strides, self.dtype, self.device = layout, shape, strides, dtype, device
        self.told = (None, dtype, torch.strided, device, False, False, None, False, False, keys_of(dtype, len(shape)))
        """What torch is told of a tensor that is made, beside its sizes, strides and offset."""
        self.is_special = is_special
        """Whether ops on such a tensor are looked at every time: it shows another, or its elements lie elsewhere."""
        self.is_open = False
        """Whether a compiler leaves sizes open: then nothing is remembered of ops on such a tensor."""
        self.made_with: tuple[object, ...] = (self.kind, shape, strides, None, *self.told)
        """What torch makes such a tensor with, whose elements begin where its memory does."""

    def made_at(self, offset: int) -> tuple[object, ...]:
        """What torch makes such a tensor with, whose elements begin so far into its memory."""
        return (self.kind, self.shape, self.strides, offset, *self.told)

    def __repr__(self) -> str:
        return f"Form({self.dtype}{list(self.shape)} in {self.layout}, strides {list(self.strides)}, {self.device})"


_forms = BoundedCache[tuple[object, ...], Form](1 << 16, cleared_by=forget_with_residences)


def form_of(
    layout: Layout,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    is_special: bool = False,
) -> Form:
    """The form with these facts.

    >>> from weft.sharding.mesh import make_mesh
    >>> layout = Layout(make_mesh({"x": 2}), (("x",),))
    >>> facts = layout, (4,), (1,), torch.float32, torch.device("cpu")
    >>> form_of(*facts) is form_of(*facts)
    True
    """
    key = (layout, tuple(shape), tuple(strides), dtype, device, is_special)
    try:
        known = _forms.get(key)
    except TypeError:  # sizes that a compiler has not settled have no hash
        known = Form(*key)
        known.is_open = True
        return known
    if known is None:
        known = Form(*key)
        if known.strides == row_major(known.shape):
            # These torch finds itself, in three quarters of the time that it takes to read them.
            known.made_with = (known.kind, known.shape, None, None, *known.told)
        _forms[key] = known
    return known


def special(form: Form) -> Form:
    """The form of a tensor that is otherwise the same, and special."""
    return form_of(form.layout, form.shape, form.strides, form.dtype, form.device, is_special=True)
