"""Ops on lists of tensors, and fused optimizer steps: one call for all pieces of all tensors.

The tensors at one place of the lists (a parameter, its gradient, its state) are computed on in the layout of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast, final

import torch
from torch.autograd.graph import increment_version

from ..engine.form import Form
from ..engine.handlers import handler
from ..engine.memory import memory_of
from ..engine.moves.movement import from_plain, moved, to_plain, to_write_plain
from ..engine.op_kind import kind_of
from ..engine.op_plan import NOT_REPEATED, Repeat
from ..engine.sharded import ShardedTensor, tensor_of, wrap
from ..engine.strides.result_strides import Strided
from ..engine.total import note_write, own_pieces
from ..engine.views.copy_views import is_copy, note_unseen_write, refresh, told_before
from ..engine.writes.overlapping import shown_memory
from ..engine.writes.writing import store
from ..rules.call import Args, BoundCall, Kwargs, Op
from ..runtime.holding import holding
from ..runtime.lazy_copy import is_aside, part
from ..runtime.processes.mesh_processes import leaves_out
from ..runtime.strides import elementwise_strides, in_order
from ..sharding.layout import Layout

aten = torch.ops.aten
_FUSED = ("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad")


def _lists_of(names: Collection[str]) -> Iterator[Op]:
    """All overloads of some ops but those with `out=`, and their in-place forms."""
    for name in _NAMES:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if packet.removesuffix("_") in names and not overload.endswith("out"):
            yield cast(Op, getattr(getattr(aten, packet), overload or "default"))


_NAMES = [
    name for name in torch._C._dispatch_get_all_op_names() if name.startswith(("aten::_foreach_", "aten::_fused_"))
]
_FOREACH = {name.removeprefix("aten::").partition(".")[0].removesuffix("_") for name in _NAMES if "_foreach_" in name}


@dataclass(frozen=True, slots=True)
class _Entry:
    """The tensors at one place of the lists, all in one layout; None where a list is empty."""

    given: tuple[torch.Tensor | None, ...]
    laid: tuple[torch.Tensor | None, ...]
    layout: Layout | None
    shape: tuple[int, ...]
    dtype: torch.dtype | None

    @property
    def lay_right(self) -> bool:
        """Whether all tensors were computed on where they lie."""
        return self.layout is not None and all(
            x is y and (not isinstance(x, ShardedTensor) or not (x._form.is_special or x._layout.pending))
            for x, y in zip(self.given, self.laid, strict=True)
        )

    @property
    def count(self) -> int:
        """How many pieces each tensor has."""
        return 1 if self.layout is None else holding(self.layout).count

    def pieces(self, position: int) -> list[torch.Tensor]:
        """The pieces of the tensor of one list; a plain one serves for all pieces."""
        x = self.laid[position]
        assert x is not None
        return list(x._value.pieces) if isinstance(x, ShardedTensor) else [x] * self.count


def _elementwise(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    lists = [i for i, a in enumerate(func._schema.arguments) if str(a.type) == "List[Tensor]" and i < len(args)]
    columns = [list(cast("Sequence[torch.Tensor]", args[i])) for i in lists]
    places = max(map(len, columns), default=0)
    written = kind_of(func).written
    changing = [x for j, i in enumerate(lists) if i in written for x in columns[j]]
    if places > 1 and (any(map(_is_written_elsewhere, changing)) or _race(changing)):
        with told_before():
            _one_by_one(func, args, kwargs, places)
        own = [x for x in changing if isinstance(x, ShardedTensor)]
        if len(set(map(shown_memory, own))) < len(own):
            refresh(changing)
        return args[0] if func._schema.returns else None
    entries = [
        _entry([column[k] if column else None for column in columns], bool(written), str(func)) for k in range(places)
    ]
    counts = [entry.count for entry in entries]
    flat = {
        i: [piece for entry in entries for piece in entry.pieces(j)] if columns[j] else [] for j, i in enumerate(lists)
    }
    # Torch's kernels for lists on GPUs write past copy-on-write.
    part(piece for i in written for piece in flat.get(i, ()) if piece.is_cuda)
    if func._schema.name.removeprefix("aten::").startswith("_fused"):
        flat = {i: [_evenly(x, i in written) for x in pieces] for i, pieces in flat.items()}
    here = [flat[i] if i in flat else _repeated(value, counts, i, func) for i, value in enumerate(args)]
    options = {name: to_plain(v) if isinstance(v, ShardedTensor) else v for name, v in kwargs.items()}
    # A process that has no device of any mesh has nothing to compute on.
    result = func(*here, **options) if any(counts) else []
    if written:
        _stored(entries, [j for j, i in enumerate(lists) if i in written], str(func))
        _counted(func, changing)
        call.repeat = _repeat(call, lists, entries, None)
        return args[0] if func._schema.returns else None
    results = _regrouped(cast("list[torch.Tensor]", result), entries)
    call.repeat = _repeat(call, lists, entries, results)
    return results


def _repeat(
    call: BoundCall, lists: Sequence[int], entries: Sequence[_Entry], results: Sequence[torch.Tensor] | None
) -> Repeat | None:
    """What repeats a call whose tensors all lay right: one call on all of their pieces."""
    if any(not entry.lay_right for entry in entries) or call.kwargs.keys() & {"grad_scale", "found_inf"}:
        return None
    numbers = [i for i, x in enumerate(call.args) if i not in lists and isinstance(x, torch.Tensor)]
    if any(not _is_number(call.args[i]) for i in numbers):
        return None
    func, written, counts = call.func, kind_of(call.func).written, [entry.count for entry in entries]
    if any(_is_mixed(call.args[i]) for i in lists) or not any(counts):
        return None
    spread = {
        i: _repeated(value, counts, i, func)
        for i, value in enumerate(call.args)
        if isinstance(value, (list, tuple)) and i not in lists
    }
    is_fused, returns = call.name.startswith("_fused"), bool(func._schema.returns)
    made = None if results is None else [_made(x) for x in results]
    changed = [piece for i in written for piece in _pieces(call.args[i], counts)]
    places = _Places(changed) if any(piece.is_cuda for piece in changed) else None
    # Torch's own function parses lists in half the time that the overload takes, and finds that overload by them.
    op: Callable[..., object] = getattr(torch, call.name, func)
    single = set(counts) == {1}
    is_whole = not any(memory_of(entry.layout).pieces_are_shards for entry in entries if entry.layout is not None)
    own = {i for i in lists if any(isinstance(x, ShardedTensor) for x in cast("Sequence[object]", call.args[i]))}
    counted = () if is_fused else [i for i in written if i in own]

    def repeat(args: Args, kwargs: Kwargs) -> object:
        here = list(args)
        for i in lists:
            if not single:
                here[i] = _pieces(args[i], counts)
            elif i in own:
                here[i] = [x._value.pieces[0] for x in args[i]]  # type: ignore[attr-defined]
        if places is not None and places.race([x for i in written for x in cast("list[torch.Tensor]", here[i])]):
            return NOT_REPEATED
        if is_fused:
            for i in lists:
                here[i] = [_evenly(x, i in written) for x in cast("list[torch.Tensor]", here[i])]
        for i in () if single else spread:
            here[i] = _repeated(args[i], counts, i, func)
        for i in numbers:
            value = args[i]
            here[i] = value._value.pieces[0] if isinstance(value, ShardedTensor) else value
        if written:
            note_write(x for i in written for x in cast("Sequence[object]", args[i]) if isinstance(x, ShardedTensor))
        result = op(*here, **kwargs)
        if made is None:
            if is_fused:
                note_unseen_write()
            for i in counted:
                _count(cast("Sequence[torch.Tensor]", args[i]))
            return args[0] if returns else None
        given = cast("list[torch.Tensor]", result)
        if is_whole:
            return [tensor_of(form, (whole,)) for (form, _), whole in zip(made, given, strict=True)]
        if single:
            return [
                tensor_of(form, strided.ordered((piece,))) for (form, strided), piece in zip(made, given, strict=True)
            ]
        rest = iter(given)
        return [
            tensor_of(form, strided.ordered(tuple([next(rest) for _ in range(count)])))
            for (form, strided), count in zip(made, counts, strict=True)
        ]

    return repeat


def _is_number(x: object) -> bool:
    """Whether a tensor is one number that every device has, and every process."""
    if not isinstance(x, torch.Tensor) or x.dim():
        return False
    return not isinstance(x, ShardedTensor) or not (x._layout.pending or leaves_out(x.mesh))


def _made(x: torch.Tensor) -> tuple[Form, Strided]:
    assert isinstance(x, ShardedTensor)
    return x._form, Strided(x._layout, tuple(x.shape), x.stride())


def _is_mixed(value: object) -> bool:
    """Whether some tensors of a list are sharded and some are not."""
    return len({isinstance(x, ShardedTensor) for x in cast("Sequence[torch.Tensor]", value)}) > 1


def _pieces(value: object, counts: Sequence[int]) -> list[torch.Tensor]:
    """The pieces of all tensors of a list; a plain one serves for all pieces of its place."""
    given = cast("Sequence[torch.Tensor]", value)
    if given and not isinstance(given[0], ShardedTensor):
        return [x for x, count in zip(given, counts, strict=True) for _ in range(count)]
    return [piece for x in cast("Sequence[ShardedTensor]", given) for piece in x._value.pieces]


def _counted(func: Op, written: Sequence[torch.Tensor]) -> None:
    """Counts writes to the tensors of a list, which autograd does not do for ops that we run: it leaves that to kernels."""
    if func._schema.name.removeprefix("aten::").startswith("_fused"):
        note_unseen_write()  # torch's own fused steps do not count theirs
    else:
        _count([x for x in written if type(x) is ShardedTensor.final])


def _count(written: Sequence[torch.Tensor]) -> None:
    try:
        increment_version(written)
    except RuntimeError:  # tensors made in inference mode count nothing, and are no mistake here
        increment_version([x for x in written if not x.is_inference()])


def _is_written_elsewhere(x: torch.Tensor) -> bool:
    """Whether a tensor is computed on in other memory than its own, so that others of its list do not see it at once."""
    return isinstance(x, ShardedTensor) and (bool(x._layout.pending) or is_copy(x))


@final
class _Places:
    """Where the pieces that calls of one kind write to lie on a GPU. Asking for their addresses parts lazy copies, too."""

    def __init__(self, pieces: Sequence[torch.Tensor]) -> None:
        self._reach = [
            (_span(piece)[2] - piece.storage_offset()) * piece.itemsize * bool(piece.numel()) for piece in pieces
        ]
        self._apart: list[int] = []
        """The addresses that were looked at last, and do not overlap: the next step writes to the same."""

    def race(self, pieces: Sequence[torch.Tensor]) -> bool:
        """Whether some share elements."""
        if is_aside(pieces[0].get_device()):
            part(pieces)
        starts = [piece.data_ptr() for piece in pieces]
        if starts == self._apart:
            return False
        spans = sorted((start, start + reach) for start, reach in zip(starts, self._reach, strict=True) if reach)
        if any(other[0] < one[1] for one, other in pairwise(spans)):
            return True
        self._apart = starts
        return False


def _race(written: Sequence[torch.Tensor]) -> bool:
    """Whether some tensors of a list share elements on a GPU, whose kernels write to all of them at once."""
    pieces = [
        piece for x in written if x.is_cuda for piece in (x._value.pieces if isinstance(x, ShardedTensor) else (x,))
    ]
    spans = sorted(_span(piece) for piece in pieces if piece.numel())
    return any(one[0] == other[0] and other[1] < one[2] for one, other in pairwise(spans))


def _span(x: torch.Tensor) -> tuple[int, int, int]:
    """The storage of a tensor, and from where to where in it the elements are."""
    start = int(x.storage_offset())
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.untyped_storage()._cdata, start, start + reach + 1


def _one_by_one(func: Op, args: Args, kwargs: Kwargs, places: int) -> None:
    """The op on each place of the lists alone: what is written at one is read at the next, as torch does."""
    kinds = [str(argument.type) for argument in func._schema.arguments]
    for k in range(places):
        # Lists that are empty stay so; scalars in a plain tensor stand for one place each.
        here = [
            list(value[k : k + 1])
            if isinstance(value, (list, tuple)) and kind.startswith("List")
            else value[k : k + 1]
            if isinstance(value, torch.Tensor) and value.dim() == 1
            else value
            for value, kind in zip(args, kinds, strict=False)
        ]
        func(*here, **kwargs)


def _evenly(x: torch.Tensor, is_written: bool) -> torch.Tensor:
    """A piece with the strides of a fresh tensor: fused steps on GPUs compare strides, also of dims of size 1."""
    x = x if is_written or x.is_contiguous() else x.contiguous()
    if not x.is_contiguous() or (1 not in x.shape and x.numel()):
        return x
    strides = torch._prims_common.make_contiguous_strides_for(x.shape)
    return x if x.stride() == strides else x.as_strided(x.shape, strides)


def _entry(given: list[torch.Tensor | None], writes: bool, op: str) -> _Entry:
    leader = given[0]
    if not isinstance(leader, ShardedTensor):
        sharded = (
            next((x for x in given if isinstance(x, ShardedTensor) and x.shape == leader.shape), None)
            if leader is not None
            else None
        )
        if sharded is None or writes:
            plain = tuple(to_write_plain(x, op) if isinstance(x, ShardedTensor) else x for x in given)
            shape = () if leader is None else tuple(leader.shape)
            return _Entry(tuple(given), plain, None, shape, None)
        leader = sharded
    layout = leader._layout.resolved
    laid = tuple(None if x is None else _laid(x, layout, tuple(leader.shape), op) for x in given)
    return _Entry(tuple(given), laid, layout, tuple(leader.shape), leader.dtype)


def _laid(x: torch.Tensor, layout: Layout, shape: tuple[int, ...], op: str) -> torch.Tensor:
    """A tensor in the layout of the first of its place; a single number is plain and serves for all pieces."""
    if not x.dim() and shape:
        return to_plain(x) if isinstance(x, ShardedTensor) else x
    if tuple(x.shape) != shape:
        x = aten.expand.default(x, list(shape))
    if not isinstance(x, ShardedTensor):
        return from_plain(x, layout, brought_to=op)
    if x._layout is layout:
        own_pieces(x)
        return x
    return moved(x, layout, op, implicit=True)


def _repeated(value: object, counts: list[int], position: int, func: Op) -> object:
    """An argument that has one entry per tensor, for each piece of the tensors."""
    kind = str(func._schema.arguments[position].type)
    if isinstance(value, torch.Tensor):
        value = to_plain(value) if isinstance(value, ShardedTensor) else value
        if value.dim() == 1:
            return value.repeat_interleave(torch.tensor(counts, device=value.device))
        return value
    if isinstance(value, (list, tuple)) and kind.startswith("List"):
        return [item for item, count in zip(value, counts, strict=True) for _ in range(count)]
    return value


def _stored(entries: Sequence[_Entry], positions: Sequence[int], op: str) -> None:
    """Writes back what was written in another layout than its own."""
    for entry in entries:
        for j in positions:
            x, changed = entry.given[j], entry.laid[j]
            if x is changed or x is None or changed is None:
                continue
            if isinstance(x, ShardedTensor):
                store(x, changed, op)
            else:
                x.copy_(to_write_plain(changed, op) if isinstance(changed, ShardedTensor) else changed)


def _regrouped(values: list[torch.Tensor], entries: Sequence[_Entry]) -> list[torch.Tensor]:
    """The pieces of the results, put together."""
    result: list[torch.Tensor] = []
    rest = iter(values)
    for entry in entries:
        pieces = tuple(next(rest) for _ in range(entry.count))
        if entry.layout is None:
            result.append(pieces[0])
        else:
            strides = elementwise_strides([x for x in entry.given if x is not None and x.dim()] or [pieces[0]])
            pieces = tuple(in_order(piece, strides) for piece in pieces)
            result.append(wrap(pieces, entry.layout, entry.shape, dtype=entry.dtype, strides=strides))
    return result


def _powsum(x: torch.Tensor, order: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    powers = aten.pow.Tensor_Scalar(aten.abs.default(x), order)
    return cast(torch.Tensor, aten.sum.default(powers, dtype=dtype))


_EACH: dict[str, Callable[..., torch.Tensor]] = {
    "_foreach_powsum": _powsum,
    "_foreach_max": aten.max.default,
}
"""The ops that reduce each tensor of a list."""


def _reduced(call: BoundCall) -> object:
    each = _EACH[call.name]
    return [each(x, *call.args[1:], **call.kwargs) for x in call.tensor_list("self")]


def _products(call: BoundCall) -> object:
    left, right = call.tensor_list("self"), call.tensor_list("mat2")
    return [aten.mm.default(a, b) for a, b in zip(left, right, strict=True)]


def _power(call: BoundCall) -> object:
    """One number to the power of each tensor: the tensors stand second."""
    return [aten.pow.Scalar(call.args[0], x) for x in call.tensor_list("exponent")]


def _fused_copy(call: BoundCall) -> object:
    """A fused step that gives new tensors: the step in place, of copies of what it writes to."""
    step = cast(Op, getattr(getattr(aten, f"{call.name}_"), call.func._overloadname))
    args = [
        [x.clone() for x in cast("Sequence[torch.Tensor]", value)] if i in kind_of(step).written else value
        for i, value in enumerate(call.args)
    ]
    step(*args, **call.kwargs)
    return tuple(args[i] for i in kind_of(step).written)


handler(*_lists_of({*_FOREACH, *_FUSED}))(_elementwise)
handler(*(func for func in _lists_of(_FUSED) if not kind_of(func).written))(_fused_copy)
handler(*_lists_of(_EACH))(_reduced)
handler(*_lists_of(["_foreach_mm"]))(_products)
handler(aten._foreach_pow.ScalarAndTensor)(_power)
