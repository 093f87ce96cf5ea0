"""What a view op gives: strides as of the whole tensor, and the memory of what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch

from ...caches import BoundedCache
from ...rules.call import Args, BoundCall, Kwargs, Op, text_of
from ...runtime.on_paper import aside
from ...sharding.layout import Layout
from ..memory import memory_of
from ..moves.movement import to_plain
from ..moves.resolving import kept_resolved, note_turned
from ..moves.telling import note_move
from ..op_plan import layouts_for
from ..sharded import ShardedTensor, as_sharded
from ..writes.copying import copy_once
from ..writes.writing import store
from .copy_views import Told, is_copy_apart
from .view import Geometry, View

__all__ = ["ViewOp", "noted", "tell_whole", "view_again", "viewed"]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ViewOp:
    """A view op, what it is called with beside the tensor, and which of its results is meant."""

    func: Op
    rest: Args
    kwargs: Kwargs = field(default_factory=dict)
    i: int = 0

    @classmethod
    def of(cls, call: BoundCall, i: int = 0) -> ViewOp:
        """That of a call whose first argument is the tensor."""
        return cls(call.func, call.args[1:], call.kwargs, i)

    def geometry(self, x: ShardedTensor) -> Geometry:
        """The strides of the view, and its offset from where `x` begins."""
        try:
            key = (self.func, text_of((self.rest, self.kwargs)), x.shape, x.stride(), x.dtype)
            known = _geometries.get(key)
        except TypeError:  # sizes that a compiler has not settled have no hash
            return self._found(x)[self.i]
        if known is None:
            known = _geometries[key] = self._found(x)
        return known[self.i]

    def _found(self, x: ShardedTensor) -> list[Geometry]:
        with aside():
            meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
            views = _listed(self.func(meta, *self.rest, **self.kwargs))
        return [(view.stride(), cast(int, view.storage_offset())) for view in views]

    def read(self, base: ShardedTensor) -> ShardedTensor:
        """The view of a tensor that may have other strides than the one it was a view of."""
        return as_sharded(self._all(base)[self.i])

    def _all(self, base: ShardedTensor) -> Sequence[torch.Tensor]:
        return _listed(self._again(base, *self.rest, **self.kwargs))

    @property
    def _again(self) -> Op:
        return aten.reshape.default if self.func is aten.view.default else self.func

    def write_whole(self, base: ShardedTensor, y: ShardedTensor) -> None:
        """Writes a view of any kind back: into a whole copy of its base, which is stored."""
        whole = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=base.device)
        copy_once(whole, to_plain(base, str(self.func), implicit=True))
        part = _listed(self.func(whole, *self.rest, **self.kwargs))[self.i]
        copy_once(part, to_plain(y, str(self.func), implicit=True))
        store(base, whole, str(self.func))

    def tell_read(self, base: ShardedTensor) -> None:
        """Logs and reports what `read` moves."""
        note_move(base, layouts_for(BoundCall(self.func, (base, *self.rest), self.kwargs))[0], str(self._again))

    def share_resolved(self, x: ShardedTensor, outs: Sequence[ShardedTensor]) -> None:
        """All views of a pending tensor that was resolved already are resolved too."""
        whole = kept_resolved(x)
        if whole is None:
            return
        for y, resolved in zip(outs, map(as_sharded, self._all(whole)), strict=True):
            if y._layout.pending and resolved._layout is y._layout.resolved:
                y._value.resolved, y._value.resolved_at = resolved, x._value.resolved_at


def view_again(func: Op, rest: Args, kwargs: Kwargs, base: ShardedTensor) -> ShardedTensor:
    """The one view that an op gives of a tensor, which may have other strides than the one it was a view of."""
    return ViewOp(func, rest, kwargs).read(base)


_geometries = BoundedCache[object, list[Geometry]](1 << 14)


def _listed(result: object) -> Sequence[torch.Tensor]:
    return result if isinstance(result, (list, tuple)) else [result]  # type: ignore[list-item]


def viewed(
    call: BoundCall,
    result: object,
    *,
    is_moved: bool,
    is_copied: bool = False,
    tell_read: Callable[[ShardedTensor], None] | None = None,
) -> object:
    """The results of a view op, as views of the first argument.

    `is_moved`: with memories apart, the argument is moved for them; `tell_read` tells how, where the rule does not.
    `is_copied`: it is in one memory too.
    """
    x = as_sharded(call.args[0])
    memory = memory_of(x._layout)
    outs = []
    for i, each in enumerate(_listed(result)):
        op = ViewOp.of(call, i)
        told = partial(Told, tell_read or op.tell_read, partial(tell_whole, call.func))
        view = View(op.read, op.write_whole, told, partial(op.geometry, x))
        outs.append(memory.show(as_sharded(each), x, view, is_moved=is_moved, is_copied=is_copied))
    if not is_moved:  # what its base is resolved to would have to move again
        _note_turned(call, x, outs)
    return type(result)(outs) if isinstance(result, (list, tuple)) else outs[0]


def noted(call: BoundCall, result: object) -> object:
    """The views of a pending tensor in one memory, which remember what they are views of."""
    _note_turned(call, as_sharded(call.args[0]), [as_sharded(y) for y in _listed(result)])
    return result


def _note_turned(call: BoundCall, x: ShardedTensor, outs: Sequence[ShardedTensor]) -> None:
    if x._layout.pending and not any(map(is_copy_apart, outs)):
        for i, y in enumerate(outs):
            note_turned(call.func, y, x, ViewOp.of(call, i).read)
        ViewOp.of(call).share_resolved(x, outs)


def tell_whole(func: Op, base: ShardedTensor, y: ShardedTensor) -> None:
    """Logs and reports what writing a whole copy of a base moves."""
    for x in (base, y):
        note_move(x, Layout.replicated(x._layout.mesh, x.dim()), str(func))
