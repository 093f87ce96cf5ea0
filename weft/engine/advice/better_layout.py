"""Which one tensor of a call to lay out otherwise, so that less moves and no activation loses a split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...rules.call import BoundCall
from ...rules.registry import rule_for
from ...sharding.layout import Layout
from ..choose import Choice, Input, choose, stop_over
from ..op_plan import factors_of, inputs_of
from ..sharded import ShardedTensor
from ..strategy import BroughtTensor

__all__ = ["Better", "better_layout", "bytes_to_resolve"]

_EVEN_ENOUGH = 16
"""How many entries each device has to have of a dim that does not divide evenly."""
Made = tuple[tuple[int, ...], int]
"""The shape of a result and the bytes of its elements."""


class Better(NamedTuple):
    """A tensor of a call, by position, the layout it might have, and what a device would receive then."""

    position: int
    layout: Layout
    nbytes: int


def better_layout(
    call: BoundCall, made: Sequence[Made], axes: Sequence[str], kept: Sequence[bool], may_change: Sequence[bool]
) -> Better | None:
    """The layout of one tensor with which least moves: one of `axes` splits another dim of it.

    `kept`: the tensors none of whose splits may be lost. None where the op has no rule, or no such layout.
    """
    rule = rule_for(call.func)
    factors = None if rule is None else factors_of(rule, call)
    if factors is None or len(factors.outputs) != len(made):
        return None
    given = inputs_of(call.tensors)
    mesh = next(x._layout.mesh for x in call.tensors if isinstance(x, ShardedTensor))
    itemsize = max(each.itemsize for each in given)
    found: list[Better] = []
    for position, layout in _layouts(given, axes, may_change):
        inputs = [replace(x, layout=layout) if at == position else x for at, x in enumerate(given)]
        choice = choose(factors, inputs, mesh, itemsize)
        if not any(keep and _loses(x, need) for keep, x, need in zip(kept, inputs, choice.inputs, strict=True)):
            found.append(Better(position, layout, _received(choice, inputs, made)))
    return min(found, key=lambda each: each.nbytes, default=None)


def bytes_to_resolve(made: Sequence[tuple[Layout, tuple[int, ...], int]], given: Sequence[Layout]) -> int:
    """What a device receives when the sums that a call has left pending, and was not given, are resolved."""
    known = {axis for layout in given for axis in layout.pending_axes}
    return sum(
        BroughtTensor(layout, layout.resolved, shape, itemsize).bytes
        for layout, shape, itemsize in made
        if not known.issuperset(layout.pending_axes)
    )


def _layouts(given: Sequence[Input], axes: Sequence[str], may_change: Sequence[bool]) -> Iterator[tuple[int, Layout]]:
    """Tensors by position, each in the layouts in which an axis splits another dim of it, evenly or nearly."""
    for position, (x, may) in enumerate(zip(given, may_change, strict=True)):
        if x.layout is None or not may:
            continue
        for axis in axes:
            if axis in x.layout.pending_axes or axis not in x.layout.mesh.axis_names:
                continue
            without = [tuple(each for each in split if each != axis) for split in x.layout.splits]
            for dim, size in enumerate(x.shape):
                if axis in x.layout.splits[dim]:
                    continue
                splits = [*without[:dim], (*without[dim], axis), *without[dim + 1 :]]
                layout = Layout(x.layout.mesh, splits, x.layout.pending)
                if not size % layout.split_count(dim) or size >= _EVEN_ENOUGH * layout.split_count(dim):
                    yield position, layout


def _loses(x: Input, need: Layout) -> bool:
    """Whether a tensor is brought to a layout in which a dim is split less."""
    assert x.layout is not None
    return any(not set(before) <= set(after) for before, after in zip(x.layout.splits, need.splits, strict=True))


def _received(choice: Choice, inputs: Sequence[Input], made: Sequence[Made]) -> int:
    received = 0
    for x, need in zip(inputs, choice.inputs, strict=True):
        if x.layout is not None and x.layout is not need:
            middle = stop_over(x.layout, need)
            steps = [(x.layout, need)] if middle is None else [(x.layout, middle), (middle, need)]
            received += sum(BroughtTensor(source, target, x.shape, x.itemsize).bytes for source, target in steps)
    results = [(layout, *each) for layout, each in zip(choice.outputs, made, strict=True)]
    return received + bytes_to_resolve(results, [x.layout for x in inputs if x.layout is not None])
