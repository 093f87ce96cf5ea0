"""Repeated calls on lists whose tensors all lie right: their pieces are taken, the op runs, results are wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar, cast

import torch

from ...engine.memory import memory_of
from ...engine.op_kind import kind_of
from ...engine.op_plan import NOT_REPEATED, Repeat
from ...engine.running.quick import Call
from ...engine.sharded import ShardedTensor, as_sharded, tensor_of
from ...engine.strides.result_strides import Strided
from ...engine.total import note_write
from ...engine.views.copy_views import note_unseen_write
from ...engine.writes.counting import count_writes
from ...engine.writes.overlapping import refusing_overlaps
from ...rules.call import BoundCall, Known, Kwargs
from ...runtime.processes.mesh_processes import leaves_out
from .entries import ListEntry
from .races import KnownPlaces

__all__ = ["evened", "for_pieces", "repeat_of"]

T = TypeVar("T")
Taken = list[Any]
"""The arguments of a call, with pieces for tensors."""
Take = Callable[[Known], Taken]


def repeat_of(
    call: BoundCall, lists: Sequence[int], entries: Sequence[ListEntry], results: Sequence[torch.Tensor] | None
) -> Repeat | None:
    """What repeats a call; None where it has to be looked at every time. `results` is None where it writes in place."""
    if not _is_repeated(call, lists, entries):
        return None
    # Torch's own function parses lists in half the time that the overload takes, and finds that overload by them.
    op: Call = getattr(torch, call.name, call.func)
    take = _taking(call, lists, [entry.count for entry in entries])
    if results is None:
        return _writing(call, op, take, lists)
    wrapped = _wrapping(entries, list(map(as_sharded, results)))
    return lambda args, kwargs: wrapped(op(*take(args), **kwargs))


def _is_repeated(call: BoundCall, lists: Sequence[int], entries: Sequence[ListEntry]) -> bool:
    """Whether calls like this one need no look at their tensors."""
    known = cast(Known, call.args)
    if call.kwargs.keys() & {"grad_scale", "found_inf"} or any(_is_mixed(known[i]) for i in lists):
        return False
    if any(isinstance(x, torch.Tensor) and not _is_number(x) for x in call.args):
        return False
    return all(entry.lay_right for entry in entries) and any(entry.count for entry in entries)


def _is_number(x: torch.Tensor) -> bool:
    """Whether a tensor is one number that every device has, and every process."""
    return not x.dim() and not (isinstance(x, ShardedTensor) and (x._layout.pending or leaves_out(x.mesh)))


def _is_mixed(tensors: Iterable[object]) -> bool:
    """Whether some tensors of a list are sharded and some are not."""
    return len({isinstance(x, ShardedTensor) for x in tensors}) > 1


def _taking(call: BoundCall, lists: Sequence[int], counts: Sequence[int]) -> Take:
    """What takes the pieces of all tensors."""
    takes: list[tuple[int, Callable[..., object]]] = []
    single, written = set(counts) == {1}, kind_of(call.func).written
    for i, value in enumerate(call.args):
        if isinstance(value, ShardedTensor):
            takes.append((i, lambda x: x._value.pieces[0]))
        elif isinstance(value, (list, tuple)) and value:
            if isinstance(value[0], ShardedTensor):
                takes.append((i, _first_pieces if single else _all_pieces))
            elif not single:
                takes.append((i, lambda values: for_pieces(values, counts)))

    def take(args: Known) -> Taken:
        here = list(args)
        for i, pieces in takes:
            here[i] = pieces(args[i])
        return here

    if not call.name.startswith("_fused"):
        return take
    here = take(call.args)
    evening = [(i, i in written) for i in lists if any(_may_be_uneven(x, i in written) for x in here[i])]

    def take_evened(args: Known) -> Taken:
        here = take(args)
        for i, is_written in evening:
            here[i] = [evened(x, is_written) for x in here[i]]
        return here

    return take_evened if evening else take


def _first_pieces(tensors: Sequence[ShardedTensor]) -> list[torch.Tensor]:
    return [x._value.pieces[0] for x in tensors]


def _all_pieces(tensors: Sequence[ShardedTensor]) -> list[torch.Tensor]:
    return [piece for x in tensors for piece in x._value.pieces]


def for_pieces(values: Sequence[T], counts: Sequence[int]) -> list[T]:
    """What is said of each tensor of a list, for each of its pieces.

    >>> for_pieces([0.1, 0.2], [1, 2])
    [0.1, 0.2, 0.2]
    """
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _writing(call: BoundCall, op: Call, take: Take, lists: Sequence[int]) -> Repeat:
    """Repeats a call that writes in place."""
    written, known, here = kind_of(call.func).written, cast(Known, call.args), take(call.args)
    is_fused, returns = call.name.startswith("_fused"), bool(call.func._schema.returns)
    own = [i for i in written if any(isinstance(x, ShardedTensor) for x in known[i])]
    changed = [piece for i in written for piece in here[i]]
    places = KnownPlaces(changed) if any(piece.is_cuda for piece in changed) else None
    # Pieces with dims of size 1 may lie in two ways, and kernels refuse what is read by another name then.
    read = [i for i in lists if i not in written and known[i]]
    refuse = refusing_overlaps(call.func) if read and any(1 in piece.shape for piece in changed) else None

    def repeat(args: Known, kwargs: Kwargs) -> object:
        if refuse is not None and any(
            refuse(x, [args[j][k] for j in read]) for i in written for k, x in enumerate(args[i])
        ):
            return NOT_REPEATED
        here = take(args)
        if places is not None and places.race([piece for i in written for piece in here[i]]):
            return NOT_REPEATED
        note_write(chain.from_iterable([args[i] for i in own]))
        op(*here, **kwargs)
        if is_fused:
            note_unseen_write()
        else:
            for i in own:
                count_writes(args[i])
        return args[0] if returns else None

    return repeat


def _wrapping(
    entries: Sequence[ListEntry], results: Sequence[ShardedTensor]
) -> Callable[[list[torch.Tensor]], list[ShardedTensor]]:
    """What makes tensors of the pieces that an op gives."""
    forms = [x._form for x in results]
    if not any(memory_of(x._layout).pieces_are_shards for x in results):
        return lambda given: [tensor_of(form, (whole,)) for form, whole in zip(forms, given, strict=True)]
    made = [
        (x._form, Strided(x._layout, tuple(x.shape), x.stride()), entry.count)
        for x, entry in zip(results, entries, strict=True)
    ]

    def wrapped(given: list[torch.Tensor]) -> list[ShardedTensor]:
        rest = iter(given)
        return [
            tensor_of(form, strided.ordered(tuple([next(rest) for _ in range(count)]))) for form, strided, count in made
        ]

    return wrapped


def evened(x: torch.Tensor, is_written: bool) -> torch.Tensor:
    """A piece with the strides of a fresh tensor: fused steps on GPUs compare strides, also of dims of size 1."""
    x = x if is_written or x.is_contiguous() else x.contiguous()
    if not x.is_contiguous() or (1 not in x.shape and x.numel()):
        return x
    strides = torch._prims_common.make_contiguous_strides_for(x.shape)
    return x if x.stride() == strides else x.as_strided(x.shape, strides)


def _may_be_uneven(x: torch.Tensor, is_written: bool) -> bool:
    """Whether another piece of this shape may not be as a fused step expects it."""
    return not is_written or (x.is_cuda and (1 in x.shape or not x.numel()))
