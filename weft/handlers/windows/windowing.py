"""Ops that look over the border of what a device holds: devices exchange halos, and each computes its part of the result.

In one memory the op runs as it is, and what devices would exchange is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ...caches import BoundedCache
from ...engine.choose import Choice
from ...engine.execute import brought, run_in
from ...engine.memory import held_whole
from ...engine.moves.movement import moved
from ...engine.moves.rearranging import note_rearrangement, rearranged, resolved
from ...engine.op_plan import chosen
from ...engine.running.on_pieces import run_everywhere
from ...engine.running.schedule import OpSchedule, schedule_for
from ...engine.sharded import ShardedTensor, as_sharded, wrap
from ...engine.views.folded import is_unmade
from ...planning.boxes.windows import Reach, Windows, windows_of
from ...planning.rearrangement import Side
from ...rules.call import BoundCall, Op, text_of
from ...rules.factors import Factors
from ...rules.registry import Local, Rule, rules
from ...runtime.holding import Pieces, holding
from ...runtime.machine import forget_with_residences
from ...runtime.strides import dense_strides
from ...runtime.traced import Size, hinted, is_open
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh

__all__ = ["Look", "Reaches", "Windowed", "windowed"]

Reaches = Mapping[int, Reach]
"""Dims along which an op looks around, and how far."""

_MOST_WINDOWS = 256


@dataclass(frozen=True, slots=True)
class Look:
    """A tensor of a call of which devices read windows: those that their part of results of a shape is made of."""

    tensor: int
    results: tuple[int, ...]
    back: bool = False
    """Whether the tensor is the results, and the shape that of what they were made of."""


@dataclass(slots=True)
class Windowed:
    """How a call is computed on windows, decided once for all such calls."""

    func: Op
    choice: Choice
    reaches: dict[int, Reach]
    """Those along dims that stay split."""
    windows: dict[Look, Windows]
    mesh: DeviceMesh
    schedules: dict[str, OpSchedule] = field(default_factory=dict)

    def brought(self, call: BoundCall, position: int) -> ShardedTensor:
        """A tensor of the call in the layout that it is computed in."""
        return as_sharded(brought(call.tensors[position], self.choice.inputs[position], str(call), False))

    def exchanged(self, look: Look, x: ShardedTensor, fill: float = 0) -> ShardedTensor:
        """A tensor whose pieces are windows; only for `everywhere`, since its layout says nothing of their shapes."""
        windows, plan, op = self.windows[look], self.windows[look].plan, str(self.func)
        covered = None if windows.is_covered else fill
        side_by_side = rearranged([x], windows.target, plan.target.shape, plan.parts, op, torch.clone, fill=covered)
        pieces = []
        for piece, coords in zip(side_by_side._value.pieces, holding(windows.target).coords, strict=True):
            for dim, window in enumerate(windows.at(coords)):
                piece = piece if window is None else piece.narrow(dim, 0, window[1] - window[0])
            pieces.append(piece)
        return wrap(tuple(pieces), windows.target, x.shape, dtype=x.dtype)

    def everywhere(self, call: BoundCall, laid: Sequence[ShardedTensor], local: Local) -> object:
        """What each device computes with `local`, where it has the call's tensors as `laid` says."""
        key = _told(call)
        schedule = self.schedules.get(key)
        if schedule is None:
            schedule = schedule_for(call, self.choice.inputs, self.choice.outputs, self.mesh)
            self.schedules[key] = schedule
        rule = Rule(rules[self.func].factors, local=local)
        return run_everywhere(call, laid, schedule, rule)

    def on_whole(self, call: BoundCall, brings: Collection[int]) -> object:
        """The op on whole values, in the layouts that devices would have, with what they would exchange noted.

        `brings`: the tensors that they would bring; of others they read windows, or only the shape. None where there are only parts.
        """
        if any(held_whole(as_sharded(call.tensors[look.tensor])) is None for look in self.windows):
            return None
        space = {axis for look in self.windows for dim in self.reaches for axis in self._need(look).splits[dim]}
        whole = _without(space)
        given: list[torch.Tensor] = []
        for i, (x, need) in enumerate(zip(call.tensors, self.choice.inputs, strict=True)):
            if i in brings:
                x = brought(x, need, str(call), True)
            for look in self.windows:
                if look.tensor == i:
                    note_rearrangement(self.windows[look].plan, x.dtype.itemsize, str(self.func))
            given.append(wrap(self._read(i, x, brings), whole(need), x.shape) if isinstance(x, ShardedTensor) else x)
        inputs, outputs = tuple(map(whole, self.choice.inputs)), tuple(map(whole, self.choice.outputs))
        result = run_in(call.with_tensors(given), inputs, outputs, rules[self.func])
        if isinstance(result, torch.Tensor):
            return self._relabeled(result, 0)
        assert isinstance(result, (list, tuple))
        return tuple(None if x is None else self._relabeled(x, k) for k, x in enumerate(result))

    def _read(self, position: int, x: ShardedTensor, brings: Collection[int]) -> Pieces:
        """What the op reads of a tensor: nothing that would have to be exchanged first, where only the shape counts."""
        if not is_unmade(x) or position in brings or any(look.tensor == position for look in self.windows):
            return x._value.pieces
        return (torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device),)

    def _relabeled(self, result: object, k: int) -> ShardedTensor:
        x, target = as_sharded(result), self.choice.outputs[k]
        return x if x._layout is target else moved(x, target, str(self.func), implicit=True)

    def _need(self, look: Look) -> Layout:
        return self.choice.inputs[look.tensor]


def _without(axes: set[str]) -> Callable[[Layout], Layout]:
    """Layouts with nothing split over some axes, nor pending."""

    def without(layout: Layout) -> Layout:
        splits = [[axis for axis in names if axis not in axes] for names in layout.splits]
        return Layout(layout.mesh, splits, [(axis, op) for axis, op in layout.pending if axis not in axes])

    return without


Proposal = Callable[[BoundCall, frozenset[int]], Factors | None]
"""The factors of a call of which some dims, counted from the first of space, are read in windows."""

_known = BoundedCache[tuple[object, ...], Windowed | None](1 << 12, cleared_by=forget_with_residences)


def windowed(
    call: BoundCall, propose: Proposal, reaches: Sequence[Reach], looks: Sequence[Look]
) -> tuple[Windowed, BoundCall] | None:
    """How a call is computed on windows of the last dims, and with what; None where they are whole."""
    tensors = call.tensors
    around = set(_split_space(tensors, len(reaches)))
    if not around:
        return None
    if (
        not looks
        or any(reach.stride < 1 or reach.dilation < 1 for reach in reaches)
        or any(len(look.results) <= len(reaches) or any(size < 1 for size in look.results) for look in looks)
    ):
        return None  # nothing to look at, or a call that torch refuses
    # Which windows devices read holds for one size of the dims that they are read along; others a compiler may leave open.
    looks = [Look(look.tensor, _known_along(around, look.results, len(reaches)), look.back) for look in looks]
    if any(is_open((*x.shape, *x.stride())) for x in tensors):
        there = _resolved_all(call)
        found = _decided(there, propose, reaches, looks)
        return None if found is None else (found, there)
    named = call.with_tensors([_as_if_resolved(x) if isinstance(x, ShardedTensor) else x for x in tensors])
    key = (call.func, _told(call), *(_signature(x) for x in named.tensors), *looks)
    if key not in _known:
        _known[key] = _decided(named, propose, reaches, looks)
    found = _known[key]
    if found is None:
        return None
    return found, _resolved_all(call)


def _known_along(around: Collection[int], results: Sequence[int], space: int) -> Size:
    """The sizes of results, settled along some dims of space; of the others only a hint, which nothing is decided by."""
    first = len(results) - space
    return tuple(
        [
            int(size) if d - first in around else hint
            for d, (size, hint) in enumerate(zip(results, hinted(results), strict=True))
        ]
    )


def _resolved_all(call: BoundCall) -> BoundCall:
    """A call with nothing pending."""
    return call.with_tensors([resolved(x, str(call)) if isinstance(x, ShardedTensor) else x for x in call.tensors])


def _as_if_resolved(x: ShardedTensor) -> ShardedTensor:
    """A tensor that says how one lies once it is resolved: nothing is to move before it is known what for."""
    if not x._layout.pending:
        return x
    shape = tuple(x.shape)
    strides = dense_strides(shape, x.stride())
    return wrap((), x._layout.resolved, shape, dtype=x.dtype, strides=strides, device=x.device)


def _told(call: BoundCall) -> str:
    """What a call says beside its tensors."""
    return text_of(call.with_tensors(["tensor"] * len(call.tensors)).args)


def _signature(x: torch.Tensor) -> tuple[object, ...]:
    return x._layout if isinstance(x, ShardedTensor) else None, tuple(x.shape), x.stride(), x.dtype


def _decided(call: BoundCall, propose: Proposal, reaches: Sequence[Reach], looks: Sequence[Look]) -> Windowed | None:
    tensors = call.tensors
    factors = propose(call, frozenset(_split_space(tensors, len(reaches))))
    mesh = max((x._layout.mesh for x in tensors if isinstance(x, ShardedTensor)), key=lambda mesh: mesh.num_devices)
    if factors is None or any(not _may_be_read(tensors[look.tensor], mesh) for look in looks):
        return None
    choice = chosen(factors, tensors, mesh)
    first = len(looks[0].results) - len(reaches)
    split = choice.inputs[looks[0].tensor].splits
    reached = {first + i: reach for i, reach in enumerate(reaches) if split[first + i]}
    windows = {look: _windows(look, tensors, choice, reached) for look in looks}
    if not reached or any(each.parts > _MOST_WINDOWS for each in windows.values()):
        return None
    # However wide a window is, a device receives no more for it than it would of the whole.
    return Windowed(call.func, choice, reached, windows, mesh)


def _split_space(tensors: Sequence[torch.Tensor], space: int) -> Iterator[int]:
    """The dims of space that are split in some tensor."""
    for i in range(space):
        if any(isinstance(x, ShardedTensor) and x.dim() > space and x._layout.splits[i - space] for x in tensors):
            yield i


def _may_be_read(x: torch.Tensor, mesh: DeviceMesh) -> bool:
    return isinstance(x, ShardedTensor) and x._layout.mesh == mesh and not x._layout.pending and x.numel() > 0


def _windows(look: Look, tensors: Sequence[torch.Tensor], choice: Choice, reaches: dict[int, Reach]) -> Windows:
    x, need = as_sharded(tensors[look.tensor]), choice.inputs[look.tensor]
    # What is also computed with as it is, is brought first; of other tensors windows are read from wherever they lie.
    shape = [int(size) if dim in reaches else size for dim, size in enumerate(x.shape)]
    source = Side.of(need if look.back else x._layout, shape)
    return windows_of(source, need, reaches, look.results, back=look.back)
