"""The ways to compute attention whose sequence is split, and what each of them moves.

    gather keys     every device receives all keys and values, and computes its own queries
    split heads     the heads are split instead of the sequence, and what comes out is split as before (Ulysses)
    ring            keys and values go round; a device has one part of them at a time
    merge           where only keys and values are split: they stay, and what each device sees of them is merged

A causal mask hides half of the scores, other ones on each device: devices swap halves of their queries first, so that all
have the same work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...caches import cached
from ...engine.moves.movement import layout_of
from ...engine.strategy import BroughtTensor, Exchanged, PassedShards, Strategy, cheapest, decided_once, may_prefer
from ...planning.rearrangement import Rearrangement, Side
from ...runtime.traced import hinted
from ...sharding.geometry import most_elements
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp
from .blocks import swap_parts
from .lay import Lay

__all__ = [
    "GATHER_KEYS",
    "RING",
    "SPLIT_HEADS",
    "AttentionQuestion",
    "Brought",
    "chosen",
    "key_sums",
    "padded",
    "summed_key",
    "swap",
]

GATHER_KEYS, SPLIT_HEADS, RING, MERGE = "gather keys", "split heads", "ring", "merge"
may_prefer(GATHER_KEYS, SPLIT_HEADS, RING, MERGE)

Move = BroughtTensor | Exchanged | PassedShards


@dataclass(frozen=True, slots=True)
class Brought:
    """A tensor of a call: how it lies (None: whole everywhere), and how large it is."""

    layout: Layout | None
    shape: tuple[int, ...]
    itemsize: int

    @staticmethod
    def of(x: torch.Tensor) -> Brought:
        """What there is to know of one."""
        return Brought(layout_of(x), hinted(x.shape), x.dtype.itemsize)

    def to(self, target: Layout) -> tuple[BroughtTensor, ...]:
        """What it takes to bring it."""
        return () if self.layout is None else (BroughtTensor(self.layout, target, self.shape, self.itemsize),)


@dataclass(frozen=True, slots=True)
class AttentionQuestion:
    """What the choice depends on."""

    lay: Lay
    queries: tuple[Brought, ...]
    """What has queries and features: the queries; of a gradient also the result and its gradient."""
    keys: tuple[Brought, ...]
    rows: tuple[Brought, ...]
    """The logarithms, where they are given."""
    mask: Brought | None
    is_gradient: bool
    sum_size: int
    """The bytes of an element that sums are added up in."""


@decided_once
def chosen(question: AttentionQuestion) -> str:
    """The way to go."""
    lay, work = question.lay, _operations(question)
    whole = sum(most_elements(lay.key, lay.key_shape) * key.itemsize for key in question.keys)
    ways = [Strategy(GATHER_KEYS, GATHER_KEYS, tuple(_gathering(question)), work, whole)]
    if lay.heads is not None:
        count = lay.heads.split_count(1)
        uneven = -(-lay.key_shape[1] // count) * count / lay.key_shape[1]
        ways.append(Strategy(SPLIT_HEADS, SPLIT_HEADS, tuple(_splitting_heads(question, lay.heads)), uneven * work))
    if lay.held:
        count = lay.key.mesh.group_size(lay.held)
        ways.append(Strategy(MERGE, MERGE, tuple(_merging(question)), work / count))
    if lay.axes and any(key.layout is not None and key.layout.splits[2] for key in question.keys):
        ways.append(Strategy(RING, RING, tuple(_passing(question)), work))
    return cheapest(ways)


def _operations(question: AttentionQuestion) -> float:
    """What a device computes when all compute the same: two products forward, five for a gradient."""
    lay = question.lay
    scores = math.prod(lay.query_shape[:3]) * lay.key_shape[2] / (2 if lay.is_causal else 1)
    split = math.prod(map(lay.query.split_count, range(3)))
    return 2.0 * scores * lay.query_shape[3] * (5 if question.is_gradient else 2) / split


def _gathering(question: AttentionQuestion) -> Iterator[Move]:
    lay = question.lay
    yield from _bringing(question, lay.query, lay.key)
    yield from _swapping(question)
    if question.is_gradient:
        for key in question.keys:
            summed = summed_key(lay, key.layout)
            yield BroughtTensor(key_sums(lay, rings=False), summed, lay.key_shape, key.itemsize)


def _splitting_heads(question: AttentionQuestion, heads: Layout) -> Iterator[Move]:
    lay, given = question.lay, question.queries[0]
    there = heads.with_split(2, ())
    yield from _bringing(question, heads, there)
    yield BroughtTensor(heads, lay.query, lay.query_shape, given.itemsize)
    if question.is_gradient:
        for key in question.keys:
            yield BroughtTensor(there, lay.split_key, lay.key_shape, key.itemsize)


def _passing(question: AttentionQuestion) -> Iterator[Move]:
    lay = question.lay
    shape = padded(lay)
    yield from _bringing(question, lay.query, lay.split_key)
    yield from _swapping(question)
    for key in question.keys:
        yield PassedShards(lay.split_key, 2, shape, key.itemsize, lay.parts - 1)
        if question.is_gradient:
            yield PassedShards(lay.split_key, 2, shape, question.sum_size, lay.parts - 1)
        if lay.is_causal:
            yield from _halves(lay.split_key, lay.key_shape, key.itemsize, lay, 2 if question.is_gradient else 1)


def _merging(question: AttentionQuestion) -> Iterator[Move]:
    lay = question.lay
    yield from _bringing(question, lay.query, lay.held_key)
    if not question.is_gradient:
        seen = seen_rows(lay)
        yield BroughtTensor(seen, seen.with_split(0, ()), seen_shape(lay), question.sum_size)
    yield BroughtTensor(merged_query(lay), lay.query, lay.query_shape, question.queries[0].itemsize)


def _bringing(question: AttentionQuestion, query: Layout, key: Layout) -> Iterator[Move]:
    for each in question.queries:
        yield from each.to(query)
    for each in question.keys:
        yield from each.to(key)
    for each in question.rows:
        yield from each.to(query.without_dim(3))
    if question.mask is not None:
        yield from question.mask.to(question.lay.mask(query, question.mask.shape))


def _swapping(question: AttentionQuestion) -> Iterator[Move]:
    """What is swapped of the queries, there and back: as many tensors as there are, and one more that comes out."""
    lay = question.lay
    if lay.is_causal:
        size = question.queries[0].itemsize
        yield from _halves(lay.query, lay.query_shape, size, lay, len(question.queries) + 1)
        yield from _halves(lay.rows, lay.query_shape[:3], question.sum_size, lay, 1)


def _halves(layout: Layout, shape: tuple[int, ...], itemsize: int, lay: Lay, times: int) -> Iterator[Exchanged]:
    yield from [Exchanged(swap(layout, shape, lay), itemsize)] * times


@cached(1024, of_sizes=True)
def swap(layout: Layout, shape: tuple[int, ...], lay: Lay, *, back: bool = False) -> Rearrangement:
    """What devices swap of a tensor whose sequence is split; `back`: so that they have again what they had."""
    bounds = lay.query_cuts if shape[2] == lay.query_shape[2] else lay.key_cuts
    side = Side.of(layout, shape)
    return Rearrangement((side,), side, swap_parts(shape, 2, bounds, back=back))


def padded(lay: Lay) -> tuple[int, ...]:
    """The shape of keys when all parts have as many as the largest, so that they can go round."""
    most = max(stop - start for start, stop in lay.key_cuts)
    return (*lay.key_shape[:2], most * lay.parts, lay.key_shape[3])


def key_sums(lay: Lay, *, rings: bool) -> Layout:
    """How the contributions of devices to gradients of keys lie: of all keys, or of those that have come home."""
    layout, axes = (lay.split_key, ()) if rings else (lay.key, lay.axes)
    return layout.with_pending(dict.fromkeys((*axes, *lay.shared), ReduceOp.SUM))


def summed_key(lay: Lay, given: Layout | None) -> Layout:
    """How gradients of gathered keys are left: split where the keys are, else pending."""
    axes = () if given is None or not set(given.splits[2]) <= set(lay.axes) else given.splits[2]
    left = [axis for axis in (*lay.axes, *lay.shared) if axis not in axes]
    return lay.key.with_split(2, axes).with_pending(dict.fromkeys(left, ReduceOp.SUM))


def merged_query(lay: Lay) -> Layout:
    """How what devices contribute lies, to a result or to gradients of queries, when each sees keys that stay."""
    return lay.query.with_pending(dict.fromkeys(lay.held, ReduceOp.SUM))


def held_sums(lay: Lay) -> Layout:
    """How the gradients of keys that stay lie."""
    return lay.held_key.with_pending(dict.fromkeys(lay.shared, ReduceOp.SUM))


def seen_rows(lay: Lay) -> Layout:
    """How logarithms lie when each device has its own: (device, b, h, q)."""
    return lay.rows.with_dim(0, lay.held)


def seen_shape(lay: Lay) -> tuple[int, ...]:
    """The shape of all of them."""
    return lay.key.mesh.group_size(lay.held), *lay.query_shape[:3]
