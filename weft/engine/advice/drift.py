"""Drift: calls after which tensors lie worse than they need to, told whoever asks to be warned, where the program calls.

A call is looked at with what it moved. Two things are told:

- the split of a large activation is gone: its axis splits no result any more, or another dim of it in place of the batch;
- what moves for the call, with the sum that it leaves pending, is more than all it reads and writes, and with one tensor laid
  out otherwise it would be an eighth or less.

Weights that are gathered to be used are how parameters are split over replicas, and no drift. In backward passes, gradients of
activations are looked at in the same way; the line that is told is that of the call whose gradient it is. Sums that are left
pending there are not counted: the gradients of parameters are added up in any layout.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch

from ...caches import BoundedCache
from ...planning.text import bytes_text
from ...rules.call import BoundCall, Op, each_of
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...sharding.mapping import named_mapping
from ...watch.call_site import CallSite, call_site, called_at
from ...watch.comm_log import CommRecord, comm_log
from ...watch.policy import policy_now, report_drift
from ..op_kind import kind_of
from ..op_plan import has_open_sizes
from ..sharded import ShardedTensor
from ..views.folded import fold_of
from .better_layout import Better, better_layout, bytes_to_resolve

__all__ = ["may_drift", "watched"]

_LARGE = 1 << 20
"""The bytes of a device from which on it is worth a word."""
_MUCH = 8
"""How many times less another layout has to move."""


class _Within(threading.local):
    call = False


_within = _Within()
"""Whether a thread is inside a call that is looked at: what that is made of is not looked at by itself."""
_lines: BoundedCache[int, CallSite] = BoundedCache(1 << 16)
"""By the numbers that torch gives the calls it will differentiate, where the program calls them."""


def may_drift(func: Op) -> bool:
    """Whether a call is to be looked at."""
    if policy_now() != "warn" or _within.call or is_traced():
        return False
    return not kind_of(func).written and not kind_of(func).outs


def watched(call: BoundCall, run: Callable[[], object]) -> object:
    """What a call gives; it is told if it drifts."""
    backward = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
    if not backward and torch.is_grad_enabled():
        _lines[torch._C._autograd._get_sequence_nr() - 1] = call_site()  # what records the call has its number already
    _within.call = True
    try:
        with comm_log() as log:
            result = run()
        if not has_open_sizes(call):
            with called_at(_line_of_gradient()) if backward else nullcontext():
                _tell(call, result, log.records, backward)
    finally:
        _within.call = False
    return result


def _line_of_gradient() -> CallSite:
    """The line of the call whose gradient is computed; that of the backward pass where nobody looked at the call."""
    node = torch._C._current_autograd_node()
    found = None if node is None else _lines.get(node._sequence_nr())
    return call_site() if found is None else found


class _SeenTensor(NamedTuple):
    """What a call was given or gave, before dims were merged for it."""

    layout: Layout
    shape: tuple[int, ...]
    itemsize: int
    is_parameter: bool = False

    @property
    def local_bytes(self) -> int:
        """What the fullest device holds of it."""
        sizes = (-(-size // self.layout.split_count(dim)) for dim, size in enumerate(self.shape))
        return math.prod(sizes) * self.itemsize

    def __str__(self) -> str:
        return f"the tensor of shape {self.shape} that is {named_mapping(self.layout).spec!r}"


def _seen(x: ShardedTensor) -> _SeenTensor:
    fold = fold_of(x)
    y = x if fold is None else fold.of
    return _SeenTensor(y._layout, tuple(y.shape), y.dtype.itemsize, _is_parameter(x))


def _is_parameter(x: torch.Tensor) -> bool:
    """Whether a tensor, or what it is a view of, is trained."""
    whole = x if x._base is None else x._base
    return isinstance(whole, torch.nn.Parameter) or (whole.requires_grad and whole.is_leaf)


def _tell(call: BoundCall, result: object, records: Sequence[CommRecord], backward: bool) -> None:
    given = [_seen(x) for x in call.tensors if isinstance(x, ShardedTensor)]
    made = [_seen(x) for x in _results(result)]
    if not given or not made:
        return
    lost = next(_lost(given, made, records), None)
    if lost is not None:
        _tell_lost(call, *lost, made, backward)
        return
    pending = [] if backward else [(each.layout, each.shape, each.itemsize) for each in made]
    resolving = bytes_to_resolve(pending, [x.layout for x in given])
    moved = _moved(given, records)
    own = sum(each.local_bytes for each in (*given, *made))
    if moved + resolving > max(own, _LARGE):
        _tell_more(call, made, moved, resolving, own, backward)


def _results(result: object) -> Iterator[ShardedTensor]:
    for x in each_of(result):
        if isinstance(x, ShardedTensor):
            yield x


def _followed(x: _SeenTensor, records: Sequence[CommRecord]) -> tuple[Layout, set[int]]:
    """Where a tensor was brought, and by which movements."""
    layout, steps = x.layout, set()
    for at, record in enumerate(records):
        if record.source is layout and record.shape == x.shape:
            layout = record.target
            steps.add(at)
    return layout, steps


def _moved(given: Sequence[_SeenTensor], records: Sequence[CommRecord]) -> int:
    """What a device received, but for parameters."""
    parameters = {at for x in given if x.is_parameter for at in _followed(x, records)[1]}
    return sum(record.bytes_received for at, record in enumerate(records) if at not in parameters)


def _lost(
    given: Sequence[_SeenTensor], made: Sequence[_SeenTensor], records: Sequence[CommRecord]
) -> Iterator[tuple[_SeenTensor, str, bool]]:
    """Activations whose split over an axis is gone, and whether the axis splits something else now."""
    for x in given:
        if x.is_parameter:
            continue
        layout, _ = _followed(x, records)
        if max(x._replace(layout=layout).local_bytes, made[0].local_bytes) < _LARGE:
            continue
        for axis in x.layout.split_axes:
            if axis in (*layout.dim_of, *layout.pending_axes) or x.layout.mesh.axis_size(axis) == 1:
                continue
            if not any(axis in (*each.layout.dim_of, *each.layout.pending_axes) for each in made):
                yield x, axis, False
            elif (
                axis in x.layout.splits[0] and made[0].shape[:1] == x.shape[:1] and axis not in made[0].layout.splits[0]
            ):
                yield x, axis, True


def _tell_lost(
    call: BoundCall, x: _SeenTensor, axis: str, is_taken: bool, made: Sequence[_SeenTensor], backward: bool
) -> None:
    count = x.layout.mesh.axis_size(axis)
    after = "splits another dim of the result instead" if is_taken else "splits the result no more"
    better = _better(call, made, (axis,), parameters=True)
    if better is None:
        fix = f"Split a dim over {axis!r} that the op leaves as it is, or gather it on purpose, with weft.shard."
    else:
        fix = f"{_words(call, better)}, and the split stays ({bytes_text(better.nbytes)} a device would move)."
    what = (
        f"drops the split over {axis!r} of {x}: {axis!r} {after}, and {count} devices go on with all "
        f"{x.shape[x.layout.dim_of[axis]]} entries of dim {x.layout.dim_of[axis]}"
    )
    report_drift(str(call), what, fix, backward=backward)


def _tell_more(
    call: BoundCall, made: Sequence[_SeenTensor], moved: int, resolving: int, own: int, backward: bool
) -> None:
    mesh = made[0].layout.mesh
    better = _better(call, made, mesh.axis_names, parameters=moved > own)
    if better is None or better.nbytes * _MUCH > moved + resolving:
        return
    sums = [axis for each in made for axis in each.layout.pending_axes]
    parts = [f"{bytes_text(moved)} for what it is given"] if moved else []
    parts += (
        [f"{bytes_text(resolving)} for the sum that it leaves over {', '.join(map(repr, sums))}"] if resolving else []
    )
    what = f"moves more than its own {bytes_text(own)} a device: {' and '.join(parts)}"
    fix = f"{_words(call, better)}, and {bytes_text(better.nbytes)} would move."
    report_drift(str(call), what, fix, backward=backward)


def _better(call: BoundCall, made: Sequence[_SeenTensor], axes: Sequence[str], *, parameters: bool) -> Better | None:
    """One tensor laid out otherwise, and what would move then; None where no such layout is known."""
    if any(fold_of(x) is not None for x in call.tensors):
        return None
    kept = [isinstance(x, ShardedTensor) and not _is_parameter(x) for x in call.tensors]
    may_change = [
        isinstance(x, ShardedTensor) and (parameters or keep) for x, keep in zip(call.tensors, kept, strict=True)
    ]
    return better_layout(call, [(each.shape, each.itemsize) for each in made], axes, kept, may_change)


def _words(call: BoundCall, better: Better) -> str:
    x = call.tensors[better.position]
    shape, before, after = _as_written(x, better.layout)
    return f"Lay the tensor of shape {shape} out as {after!r} where it is {before!r} now"


def _as_written(x: torch.Tensor, layout: Layout) -> tuple[tuple[int, ...], object, object]:
    """The shape and the two layouts of a tensor, or of what it is a view of, which is what users know."""
    assert isinstance(x, ShardedTensor)
    base, shape = x._base, tuple(x.shape)
    before, after = (list(each.splits) for each in (x._layout, layout))
    if isinstance(base, ShardedTensor):
        whole = tuple(base.shape)
        if len(shape) == 2 and whole == shape[::-1] and base.stride() == x.stride()[::-1] != x.stride():
            before, after, shape = before[::-1], after[::-1], whole
        elif len(whole) > len(shape) > 1 and whole[1 - len(shape) :] == shape[1:]:
            middle: list[tuple[str, ...]] = [()] * (len(whole) - len(shape))
            before, after = list(base._layout.splits), [after[0], *middle, *after[1:]]
            shape = whole
    mesh = layout.mesh
    return shape, named_mapping(Layout(mesh, before)).spec, named_mapping(Layout(mesh, after)).spec
