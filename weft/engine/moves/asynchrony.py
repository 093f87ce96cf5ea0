"""`async_op=True`: a tensor that is on its way. Whoever uses its elements waits for them; nobody else does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TypeGuard, final

from ...during import during
from ...runtime import run
from ...runtime.holding import Pieces
from ...runtime.on_paper import Promise
from ...runtime.strides import Strides
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...watch import comm_log
from ..sharded import ShardedTensor, made, wrap, wrap_arriving
from ..value import Value, value_from

__all__ = ["TimedPieces", "begun", "detached", "is_issuing", "is_on_its_way", "issuing"]

_is_issuing = ContextVar("issuing", default=False)
is_issuing = _is_issuing.get
"""Whether what moves now is begun and not waited for."""


_WAITING = nullcontext()


def issuing(async_op: bool) -> AbstractContextManager[None]:
    """With True: inside, what moves is begun and not waited for."""
    return during(_is_issuing, True) if async_op else _WAITING


def begun(
    x: ShardedTensor, target: Layout, asked: DeviceMapping | None, strides: Strides, action: Callable[[Pieces], Pieces]
) -> ShardedTensor:
    """The tensor that `action` on the pieces of `x` makes, in another layout; on its way, if other processes take part."""
    shape, dtype = tuple(x.shape), x.dtype
    under_way = comm_log.UnderWay()

    def done(pieces: Pieces) -> Pieces:
        under_way.start()
        result = action(pieces)
        under_way.end()
        return result

    arriving = run.begin(done, x._value.pieces, x._layout.mesh, target.mesh)
    if isinstance(arriving, tuple):
        return wrap(arriving, target, shape, asked=asked, dtype=dtype, strides=strides)
    under_way.overlap()
    return wrap_arriving(TimedPieces(arriving, under_way), target, shape, dtype, strides, asked)


@final
class TimedPieces:
    """Pieces on their way, of which the logs are told how long they were waited for."""

    def __init__(self, arriving: run.Arriving | Promise, under_way: comm_log.UnderWay) -> None:
        self._arriving, self._under_way = arriving, under_way

    def done(self) -> bool:
        """Whether they are there, or will never be."""
        return self._arriving.done()

    def wait(self) -> Pieces:
        """The pieces, once they are there."""
        start = time.perf_counter()
        try:
            return self._arriving.wait()
        finally:
            self._under_way.wait(time.perf_counter() - start)


def is_on_its_way(x: object) -> TypeGuard[ShardedTensor]:
    """Whether a tensor's pieces were asked for, and nobody has waited for them."""
    if not isinstance(x, ShardedTensor) or x._value.source is None:
        return False
    return isinstance(x._value.source, (TimedPieces, _SameAs)) and not x._value.is_made


def detached(x: ShardedTensor) -> ShardedTensor:
    """A tensor on its way, detached: it waits for the same pieces. Torch detaches every gradient that it keeps."""
    return made(x._form, value_from(_SameAs(x._value)), asked=x._asked)


@final
class _SameAs:
    """The pieces of another value, once they are there."""

    def __init__(self, value: Value) -> None:
        self._value = value

    def done(self) -> bool:
        """Whether they are there, or will never be."""
        return self._value.is_made or self._value.source is None or self._value.source.done()

    def wait(self) -> Pieces:
        """The pieces, once they are there."""
        return self._value.pieces
