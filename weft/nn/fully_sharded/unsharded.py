"""`Unsharded`: the parameters of a block, whole while they are needed, in memory that comes and goes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ...caches import cached
from ...engine.memory import memory_of
from ...engine.moves.asynchrony import TimedPieces
from ...engine.moves.movement import moved
from ...engine.sharded import ShardedTensor, made, wrap
from ...engine.value import Value, value_of
from ...runtime import run
from ...runtime.holding import Pieces, holding
from ...runtime.machine import forget_with_residences
from ...runtime.on_paper import resize
from ...runtime.processes.mesh_processes import is_elsewhere, spans
from ...runtime.strides import Strides, dense_strides
from ...sharding.layout import Layout
from ...watch import comm_log
from ..gathering import Gathering
from .offloading import fetch, fetched

__all__ = ["Unsharded"]


@final
class Unsharded:
    """Whole tensors made of split ones. What autograd keeps of them, views included, has the memory that is filled again."""

    def __init__(
        self, gathering: Gathering, parameters: Sequence[ShardedTensor], dtypes: Sequence[torch.dtype]
    ) -> None:
        self._gathering, self._parameters = gathering, parameters
        self._mesh = gathering.targets[0].mesh
        self._is_in_one_memory = not memory_of(gathering.targets[0]).pieces_are_shards
        self._shares = self._is_in_one_memory and parameters[0].mesh == self._mesh
        self._arriving: TimedPieces | None = None
        self._is_sent = False
        """Whether other processes count on what is arriving."""
        self._is_filled = False
        with torch.no_grad(), comm_log.paused():
            whole = [
                self._labelled(x, at, dtype) if self._shares else self._room(x, at, dtype)
                for at, (x, dtype) in enumerate(zip(parameters, dtypes, strict=True))
            ]
        self._forms = [x._form for x in whole]
        self._pieces: list[Pieces] = [x._value.pieces for x in whole]
        self._sizes = [[piece.untyped_storage().nbytes() for piece in pieces] for pieces in self._pieces]
        self._lent: weakref.WeakSet[Value] = weakref.WeakSet()
        """What has this memory. Autograd keeps it, it keeps this, and this keeps neither."""

    def tensors(self) -> list[ShardedTensor]:
        """The whole tensors."""
        values = list(map(value_of, self._pieces))
        for value in () if self._shares else values:
            self.lend(value)
        return [made(form, value) for form, value in zip(self._forms, values, strict=True)]

    def _labelled(self, x: ShardedTensor, at: int, dtype: torch.dtype) -> ShardedTensor:
        """In one memory a split tensor is whole already."""
        whole = moved(x, self._gathering.targets[at], "fully_shard")
        return whole if whole.dtype is dtype else whole.to(dtype)  # type: ignore[return-value]

    def _room(self, x: ShardedTensor, at: int, dtype: torch.dtype) -> ShardedTensor:
        target, shape = self._gathering.targets[at], tuple(x.shape)
        strides, stored = _stored(target, shape, x.stride())
        pieces = tuple(
            torch.empty_strided(own, laid, dtype=dtype, device=x.device if x.is_meta else device)
            for own, laid, device in stored
        )
        return wrap(pieces, target, shape, dtype=dtype, strides=strides)

    def lend(self, value: Value) -> None:
        """Notes a value that has this memory: that of a tensor, or of a view that autograd may keep."""
        value.lend(self)
        self._lent.add(value)

    @property
    def is_filled(self) -> bool:
        """Whether they are whole now."""
        return self._is_filled

    def begin(self) -> None:
        """Lets them be filled while the program goes on: what is gathered ahead is logged here in every form, used or not."""
        if self._is_filled or self._arriving is not None:
            return
        if comm_log.is_logging():
            self._gathering.log()
        under_way = comm_log.UnderWay()

        def action(_: Pieces) -> Pieces:
            under_way.start()
            self._filled()
            under_way.end()
            return ()

        is_here = not spans(self._mesh) or is_elsewhere(self._mesh)
        arriving = _WhenNeeded(action) if is_here else run.begin(action, (), self._mesh)
        assert not isinstance(arriving, tuple)
        under_way.overlap()
        self._arriving, self._is_sent = TimedPieces(arriving, under_way), not is_here

    def fill(self) -> None:
        """Makes them whole, or waits until they are."""
        if self._is_filled:
            return
        if self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            with torch.no_grad():
                arriving.wait()
        else:
            if comm_log.is_logging():
                self._gathering.log()
            with torch.no_grad():
                self._filled()
            comm_log.note_end()
        self._is_filled = True

    def _filled(self) -> None:
        if self._shares:
            return
        flat = tuple(piece for pieces in self._pieces for piece in pieces)
        for piece, size in zip(flat, (size for sizes in self._sizes for size in sizes), strict=True):
            if piece.untyped_storage().nbytes() != size:
                resize(piece, size)
        # To autograd they are what they were: whoever has saved them finds the values that were saved.
        with _unsafe_preserve_version_counter(tuple(piece for piece in flat if not piece.is_inference())):
            self._fill()

    def _fill(self) -> None:
        if self._is_in_one_memory:  # what is fetched there is whole
            for x, target, pieces in zip(self._parameters, self._gathering.targets, self._pieces, strict=True):
                fetch(x, target, pieces)
        else:
            self._gathering.fill([fetched(x, self._mesh) for x in self._parameters], self._pieces)

    def free(self) -> None:
        """Gives the memory back; what autograd has kept of it is there again after `fill`."""
        if self._arriving is not None and self._is_sent:
            self.fill()  # the others count on it
        self._arriving = None
        if self._is_filled and not self._shares:
            for value in self._lent:
                if value.is_made:  # whoever looks at it from now on, fills it
                    value.source = _Filled(self, value.pieces)
                    del value.pieces
            for piece in (piece for pieces in self._pieces for piece in pieces):
                resize(piece, 0)
        self._is_filled = False


@cached(4096, cleared_by=forget_with_residences)
def _stored(
    layout: Layout, shape: tuple[int, ...], strides: Strides
) -> tuple[Strides, tuple[tuple[tuple[int, ...], Strides, torch.device], ...]]:
    """The strides of a tensor without gaps, and of the pieces that this process stores shape, strides and device."""
    here, dense = holding(layout), dense_strides(shape, strides)
    kinds = zip(here.shapes(shape), here.devices, strict=True)
    return dense, tuple((own, dense_strides(own, dense), on) for own, on in kinds)


@final
class _WhenNeeded:
    """What one process gathers ahead: nobody else waits for it, and it costs the same when it is needed."""

    def __init__(self, action: Callable[[Pieces], Pieces]) -> None:
        self._action = action

    def done(self) -> bool:
        """Not before somebody waits."""
        return False

    def wait(self) -> Pieces:
        """Does it."""
        return self._action(())


@final
class _Filled:
    """Where the pieces of values come from whose memory was given back: it is filled again for whoever needs it."""

    def __init__(self, unsharded: Unsharded, pieces: Pieces) -> None:
        self._unsharded, self._pieces = unsharded, pieces

    def done(self) -> bool:
        """Whether they are there."""
        return self._unsharded.is_filled

    def wait(self) -> Pieces:
        """The pieces, filled."""
        self._unsharded.fill()
        return self._pieces
