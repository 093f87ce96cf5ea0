"""Views that are copies: in separate memories, a view whose elements lie elsewhere than the ones it shows.

A view of a tensor shows later writes to the tensor, and writes to the view change the tensor. Where the view's shards
are views of the tensor's shards, torch sees to that. Where elements had to move (a slice of a split dim), the view is a
copy that remembers what it shows: it is read again when the tensor was written to, and written back when it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count

import torch

from ...during import during
from ...runtime.holding import Pieces
from ...runtime.memory.lazy_copy import may_overlap
from ...runtime.traced import seen_by, tracers
from ...watch import comm_log, policy
from ...watch.notes import is_watched as is_observed
from ..form import special
from ..moves.resolved import forget_resolved
from ..sharded import ShardedTensor, Stand, stand_of
from ..total import last_write, note_write, own_pieces
from ..writes.copying import copy_once
from .folded import is_unmade

__all__ = [
    "Shown",
    "Told",
    "catch_up",
    "count_beside",
    "current",
    "is_alias",
    "is_copy",
    "is_copy_apart",
    "is_observed",
    "is_shown",
    "note_unseen_write",
    "refresh",
    "remember",
    "remember_alias",
    "remember_apart",
    "remember_base",
    "remember_counted_alone",
    "remember_told",
    "repeats",
    "shows_another",
    "tell_writes",
    "told_before",
    "write_through",
]


@dataclass(frozen=True, slots=True)
class Told:
    """How to log and report what reading a view that is a copy moves, and what writing it back does."""

    read: Callable[[ShardedTensor], None]
    write: Callable[[ShardedTensor, ShardedTensor], None]


@dataclass(slots=True)
class Shown:
    """What a view shows: its base, and how to read it from there and write it back; without these it is a true view."""

    base: Stand
    read: Callable[[ShardedTensor], ShardedTensor] | None
    write: Callable[[ShardedTensor, ShardedTensor], None] | None
    stamp: int
    is_apart: bool = False
    """Whether torch counts its writes for itself, not with those of the base, as for `base.data`."""
    reads: int = 0
    """How often it was read again."""
    told: Told | None = None
    """What is told before it is written to; without `read` and `write`, in one memory, that is all that there is to do."""


class _Copies:
    numbers = count(1)
    """Taking the next is one step for all threads, which adding 1 is not."""
    unseen_write = 0


_is_told: ContextVar[bool] = ContextVar("_is_told", default=False)


def shows_another(x: torch.Tensor) -> bool:
    """Whether a tensor is a view that is a copy, or one of such a view: it may have to be read again, or written back."""
    return isinstance(x, ShardedTensor) and x._value.shown is not None


def is_shown(x: ShardedTensor) -> bool:
    """Whether others show a tensor, and say of it what torch does not."""
    return x._value.stand is not None and x._value.stand() is not None


def is_alias(x: ShardedTensor) -> bool:
    """Whether a tensor has the memory of what it shows, if it shows another."""
    return x._value.shown is None or x._value.shown.read is None


def is_copy_apart(x: ShardedTensor) -> bool:
    """Whether a view is a copy with memories apart; known in one memory too, where somebody looks on."""
    shown = x._value.shown
    return shown is not None and (shown.read is not None or shown.told is not None)


def repeats(x: ShardedTensor) -> bool:
    """Whether a tensor is such a view, and some of its elements are one."""
    return x._value.shown is not None and may_overlap(x)


def is_copy(x: ShardedTensor) -> bool:
    """Whether a tensor is a view that is a copy, or one of such a view."""
    while (shown := x._value.shown) is not None:
        if shown.write is not None:
            return True
        x = shown.base.tensor
    return False


def _show(view: ShardedTensor, shown: Shown) -> None:
    view._value.shown = shown
    view._form = special(view._form)
    looking = tracers()
    if looking:
        view._value.tracers = looking


def remember(
    view: ShardedTensor,
    base: ShardedTensor,
    read: Callable[[ShardedTensor], ShardedTensor],
    write: Callable[[ShardedTensor, ShardedTensor], None],
    *,
    told: Told | None = None,
) -> ShardedTensor:
    """Notes that `view` is a copy of what it shows of `base`."""
    _show(view, Shown(stand_of(base), read, write, _stamp(base), told=told))
    return view


def remember_told(view: ShardedTensor, base: ShardedTensor, told: Told) -> ShardedTensor:
    """Notes that `view` is a true view of `base` in one memory, and would be a copy with memories apart.

    Only where somebody looks on (`is_observed`), since ops on it take longer.
    """
    _show(view, Shown(stand_of(base), None, None, _stamp(base), told=told))
    return view


def tell_writes(tensors: Iterable[ShardedTensor]) -> None:
    """Before a write: logs and reports what writing back to what they show will move."""
    for x in tensors if is_observed() and not _is_told.get() else ():
        at = x
        while (shown := at._value.shown) is not None:
            if shown.told is not None:
                shown.told.write(shown.base.tensor, at)
            at = shown.base.tensor


def told_before() -> AbstractContextManager[None]:
    """Inside, what writing back will move has been told already, and what is read between is not: for ops that run as several."""
    return during(_is_told, True)


def remember_alias(view: ShardedTensor, base: ShardedTensor) -> ShardedTensor:
    """Notes that `view` is a true view of `base`, which itself is a copy of what it shows."""
    if base._value.shown is not None:
        _show(view, Shown(stand_of(base), None, None, 0))
    return view


def remember_apart(alias: ShardedTensor, base: ShardedTensor) -> ShardedTensor:
    """Notes that torch does not know `alias` as a view of `base`, as for `base.data`: copies show writes to both."""
    shown = alias._value.shown
    if alias is not base and (shown is None or (shown.read is None and shown.told is None)):
        _show(alias, Shown(stand_of(base), None, None, 0, is_apart=True))
    return alias


def remember_counted_alone(view: ShardedTensor, base: ShardedTensor) -> ShardedTensor:
    """Notes that torch counts the writes to what shows `base` for themselves, be it a copy or not, as those to `base.data`."""
    remember_apart(view, base)
    if view._value.shown is not None:
        view._value.shown.is_apart = True
    return view


def remember_base(view: ShardedTensor, before: ShardedTensor, base: ShardedTensor) -> None:
    """Notes of a view of `base` that was made a view of what it was, `before`: writes to `base` are writes to that."""
    shown = view._value.shown
    if before._value.shown is None and shown is not None:
        _show(before, Shown(stand_of(base), None, None, 0, is_apart=True))
        shown.stamp = _stamp(before)


def count_beside(x: ShardedTensor, other: ShardedTensor) -> None:
    """Notes that `x` was given the memory of another tensor: views that are copies of either show writes to both."""
    root = _root(other)
    known = root._value.counted_beside
    known = [] if known is None else known  # one list for all of them
    known[:] = [ref for ref in known if ref() is not None]

    def one_less(_: weakref.ref[ShardedTensor]) -> None:
        if sum(ref() is not None for ref in known) < 2:
            known.clear()  # torch swaps no tensors that are held weakly, and one is counted beside nothing

    known += [weakref.ref(each, one_less) for each in (root, x) if all(ref() is not each for ref in known)]
    root._value.counted_beside = x._value.counted_beside = known


def _root(x: ShardedTensor) -> ShardedTensor:
    """What torch knows a tensor as a view of, or the tensor."""
    return x._base if x._is_view() and isinstance(x._base, ShardedTensor) else x


def note_unseen_write() -> None:
    """After a write that torch has not counted, or not yet: views that are copies are read again."""
    _Copies.unseen_write = next(_Copies.numbers)


def _stamp(x: ShardedTensor) -> int:
    """A number that changes when a tensor, or anything that shares its memory, is written to."""
    version = _version(x)
    stamp = last_write() if version is None else version + (_Copies.unseen_write << 32)
    stamp += _written_beside(x)
    # Torch knows nothing of reading again what an op has taken views of on its way.
    at = x
    while (shown := at._value.shown) is not None:
        stamp += shown.reads << 16
        at = shown.base.tensor
        stamp += (_version(at) or 0) if shown.is_apart else 0
        stamp += _written_beside(at)
    return stamp


def _written_beside(x: ShardedTensor) -> int:
    """A number that changes when others are written to that were given the memory of a tensor."""
    root = _root(x)
    if root._value.counted_beside is None:
        return 0
    found = [(ref, ref()) for ref in root._value.counted_beside]
    # No sum: one that is gone would make room for a write to another.
    versions = ((ref, _version(y)) for ref, y in found if y is not None and y is not root)
    return hash(tuple((id(ref), last_write() if version is None else version) for ref, version in versions))


def _version(x: ShardedTensor) -> int | None:
    """How often a tensor was written to, as torch counts; None where it does not: what inference mode gave, whatever memory it has now."""
    if x.is_inference():
        return None
    try:
        return x._version
    except RuntimeError:
        return None


def refresh(tensors: Iterable[torch.Tensor]) -> None:
    """Reads views that are copies again where their base was written to since."""
    for x in tensors:
        if isinstance(x, ShardedTensor) and x._value.shown is not None:
            _refresh(x, x._value.shown)


_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def current(x: ShardedTensor) -> Pieces:
    """The pieces of a tensor, read again where it is a view whose base was written to; for who looks at them outside of ops."""
    catch_up(x)
    return x._value.pieces


def catch_up(x: ShardedTensor) -> None:
    """Reads a tensor again outside of ops, where it is a view whose base was written to."""
    if x._value.shown is not None:
        with _inside(), seen_by(x._value.tracers):
            refresh((x,))


@contextmanager
def _inside() -> Iterator[None]:
    """As inside an op: torch records neither gradients nor views there, and takes no op apart, as it does in inference mode."""
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_VIEWS):
        yield


def _refresh(x: ShardedTensor, shown: Shown) -> None:
    base = shown.base.tensor
    if base._value.shown is not None:
        _refresh(base, base._value.shown)
    if shown.read is None and shown.told is None:
        return
    stamp = _stamp(base)
    if stamp != shown.stamp:
        if is_unmade(x):
            pass  # its elements are read of the base when something needs them
        elif shown.read is not None:
            own_pieces(x)
            # What is composite, torch takes apart in inference mode alone: elsewhere another op is told of.
            with _untold() if _is_told.get() else nullcontext(), torch.inference_mode(base.is_inference()), _inside():
                read = shown.read(base)._value.pieces
            _put(x._value.pieces, read)
        elif shown.told is not None and not _is_told.get():
            shown.told.read(base)
        shown.stamp = stamp
        shown.reads += 1


def _put(pieces: Pieces, values: Pieces) -> None:
    """Writes values to pieces, if there are any: what was made in inference mode is written to in it alone."""
    for piece, value in zip(pieces, values, strict=bool(values)):
        with torch.inference_mode() if piece.is_inference() else nullcontext():
            copy_once(piece, value)


def write_through(x: ShardedTensor) -> None:
    """After a write to `x`: writes it back to what it shows."""
    is_unseen = False
    while (shown := x._value.shown) is not None:
        base = shown.base.tensor
        is_unseen |= shown.is_apart or shown.base.has_become
        if shown.write is not None or shown.told is not None:
            # The ops that write back read `x`, which is newer than its base now: it is not to be read again for them. Where it only
            # tells, and lies in the memory of a copy, that is not to be read again over it.
            written = tuple(piece.clone() for piece in x._value.pieces) if shown.read is None and is_copy(base) else ()
            refresh((base,))
            _put(x._value.pieces, written)
            shown.stamp = _stamp(base)
        if shown.write is not None:
            with _untold() if shown.told is not None else nullcontext():
                shown.write(base, x)
        elif shown.told is not None and is_unmade(base):
            with _untold():
                base._value.pieces  # noqa: B018 - which what writes it back makes, where it is a copy
        if shown.told is not None and base._layout.pending:
            forget_resolved()  # as what writes it back does, where it is a copy
        note_write((base,))
        x = base
    if is_unseen:
        note_unseen_write()


@contextmanager
def _untold() -> Iterator[None]:
    """Moves what has been told before."""
    with comm_log.paused(), policy.reshard_policy("silent"):
        yield
