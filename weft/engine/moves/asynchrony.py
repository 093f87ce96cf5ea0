"""`async_op=True`: a tensor that is on its way. Whoever uses its elements waits for them; nobody else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from ...runtime import run
from ...runtime.holding import Pieces
from ...runtime.strides import Strides
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...watch import comm_log
from ..sharded import ShardedTensor, wrap, wrap_arriving

__all__ = ["begun", "is_issuing", "issuing"]

_is_issuing = ContextVar("issuing", default=False)
is_issuing = _is_issuing.get
"""Whether what moves now is begun and not waited for."""


@contextmanager
def _issuing() -> Iterator[None]:
    before = _is_issuing.set(True)
    try:
        yield
    finally:
        _is_issuing.reset(before)


_WAITING = nullcontext()


def issuing(async_op: bool) -> AbstractContextManager[None]:
    """With True: inside, what moves is begun and not waited for."""
    return _issuing() if async_op else _WAITING


def begun(
    x: ShardedTensor, target: Layout, asked: DeviceMapping | None, strides: Strides, action: Callable[[Pieces], Pieces]
) -> ShardedTensor:
    """The tensor that `action` on the pieces of `x` makes, in another layout; on its way, if other processes take part."""
    shape, dtype = tuple(x.shape), x.dtype
    end = comm_log.ending()

    def done(pieces: Pieces) -> Pieces:
        result = action(pieces)
        end()
        return result

    arriving = run.begin(done, x._value.pieces, x._layout.mesh, target.mesh)
    if isinstance(arriving, tuple):
        return wrap(arriving, target, shape, asked=asked, dtype=dtype, strides=strides)
    return wrap_arriving(arriving, target, shape, dtype, strides, asked)
