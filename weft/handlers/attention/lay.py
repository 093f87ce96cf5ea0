"""`Lay`: where the tensors of an attention call lie while it is computed in parts.

That is, when its sequence is split, or its heads are split finer than keys have heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ...caches import cached
from ...engine.sharded import ShardedTensor
from ...rules.call import BoundCall
from ...runtime.traced import hinted
from ...sharding.geometry import Interval
from ...sharding.layout import Layout
from .blocks import Stretches, cuts, swapped
from .kernels import Kernel

__all__ = ["Lay", "heads_of", "lay_between", "lay_of"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Lay:
    """How a call is cut: its queries as they lie, its keys and values whole along the sequence."""

    query: Layout
    """(b, h, s, –)."""
    key: Layout
    """(b, the axes of h that cut the heads of the keys too, –, –)."""
    query_shape: Shape
    key_shape: Shape
    is_causal: bool
    held: tuple[str, ...] = ()
    """Where the queries are whole, the mesh axes that split the sequence of the keys."""

    @cached_property
    def by_rule(self) -> bool:
        """Whether the op's rule says the same, once the keys are gathered."""
        return not self.axes and not self.shared

    @cached_property
    def gathered(self) -> Lay:
        """The same, with keys that do not stay where they are."""
        return replace(self, held=())

    @cached_property
    def hinted(self) -> Lay:
        """The same for prices: sizes that a compiler leaves open are what they are at present."""
        return replace(self, query_shape=hinted(self.query_shape), key_shape=hinted(self.key_shape))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that split the sequence of the queries, major first."""
        return self.query.splits[2]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many devices there are along each of them."""
        return tuple(map(self.query.mesh.axis_size, self.axes))

    @cached_property
    def parts(self) -> int:
        """Into how many parts the sequence is cut."""
        return math.prod(self.counts)

    @cached_property
    def groups(self) -> int:
        """How many heads of queries share one of the keys."""
        return self.query_shape[1] // self.key_shape[1]

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """The mesh axes along which devices have other heads of queries and the same of keys."""
        return self.query.splits[1][len(self.key.splits[1]) :]

    @cached_property
    def rows(self) -> Layout:
        """Of one number for each query."""
        return self.query.without_dim(3)

    @cached_property
    def split_key(self) -> Layout:
        """Of keys, split like the queries."""
        return self.key.with_split(2, self.axes)

    @cached_property
    def held_key(self) -> Layout:
        """Of keys that stay where they are."""
        return self.key.with_split(2, self.held)

    @cached_property
    def heads(self) -> Layout | None:
        """Of queries whose heads are split instead of the sequence; None where keys have too few heads for that."""
        axes = (*self.query.splits[1], *self.axes)
        count, heads = self.parts * self.query.split_count(1), self.key_shape[1]
        if not self.axes or heads < count or (self.groups > 1 and heads % count):
            return None
        return self.query.with_split(2, ()).with_split(1, axes)

    def mask(self, query: Layout, shape: Shape) -> Layout:
        """Of a mask, beside queries in a layout."""
        splits = (*query.splits[:3], ())[4 - len(shape) :]
        return Layout(query.mesh, [() if size == 1 else axes for size, axes in zip(shape, splits, strict=True)])

    @cached_property
    def query_cuts(self) -> tuple[Interval, ...]:
        """Where the parts of the queries lie."""
        return cuts(self.query_shape[2], self.counts)

    @cached_property
    def key_cuts(self) -> tuple[Interval, ...]:
        """Where the parts of the keys lie, when they are split like the queries, or as they are."""
        return cuts(self.key_shape[2], tuple(map(self.key.mesh.axis_size, self.held)) or self.counts)

    @cached_property
    def query_stretches(self) -> tuple[Stretches, ...]:
        """The positions of each part of the queries: under a causal mask, after devices have swapped halves."""
        return swapped(self.query_cuts) if self.is_causal else tuple((each,) for each in self.query_cuts)

    @cached_property
    def key_stretches(self) -> tuple[Stretches, ...]:
        """The same of the keys, when they go round."""
        return swapped(self.key_cuts) if self.is_causal else tuple((each,) for each in self.key_cuts)

    def part_at(self, coords: tuple[int, ...]) -> int:
        """Which part of the sequence is at some mesh coordinates: of the queries, or of keys that stay where they are."""
        found, mesh = 0, self.query.mesh
        for axis in self.axes or self.held:
            found = found * mesh.axis_size(axis) + coords[mesh.index_of[axis]]
        return found


def heads_of(query: Interval, key: Interval, groups: int) -> slice | list[int]:
    """Which of the heads of keys that a device has its heads of queries use: a stretch of them, or one for each.

    >>> heads_of((2, 4), (0, 2), 4), heads_of((3, 6), (0, 2), 4)
    (slice(0, 1, None), [0, 1, 1])
    """
    (first, last), (base, _) = query, key
    start, stop = first // groups - base, -(-last // groups) - base
    if stop - start <= 1 or (first % groups == 0 and last % groups == 0):
        return slice(start, stop)
    return [head // groups - base for head in range(first, last)]


def lay_of(call: BoundCall, kernel: Kernel) -> Lay | None:
    """How a call is cut; None where its rule says it better."""
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    if not isinstance(query, ShardedTensor) or call.number("dropout_p") > 0 or call.flag("return_debug_mask"):
        return None
    mask, is_causal = None if kernel.mask is None else call.optional(kernel.mask), call.flag("is_causal")
    if any(x.dim() != 4 or not x.numel() for x in (query, key, value)) or (mask is not None and is_causal):
        return None
    if query.shape[1] % key.shape[1] or key.shape != value.shape or any(_is_elsewhere(x, query) for x in call.tensors):
        return None
    held = () if query._layout.splits[2] else _held(query._layout.with_split(3, ()), key, value)
    lay = _lay(query._layout, tuple(query.shape), tuple(key.shape), is_causal, held)
    return None if lay.by_rule and not held else lay


def lay_between(query: ShardedTensor, key: torch.Tensor) -> Lay:
    """How queries and keys are cut, whatever is done with them."""
    return _lay(query._layout, tuple(query.shape), tuple(key.shape), False, ())


@cached(4096, of_sizes=True)
def _lay(given: Layout, query: Shape, key: Shape, is_causal: bool, held: tuple[str, ...]) -> Lay:
    layout = given.resolved.with_split(3, ())
    there = layout.with_split(1, _heads_of_keys(layout, query[1], key[1])).with_split(2, ())
    return Lay(layout, there, query, key, is_causal, held)


def _is_elsewhere(x: torch.Tensor, query: ShardedTensor) -> bool:
    return isinstance(x, ShardedTensor) and x._layout.mesh != query._layout.mesh


def _held(query: Layout, *keys: torch.Tensor) -> tuple[str, ...]:
    """The mesh axes that split the sequence of keys and values alike, and no dim of the queries."""
    found = {x._layout.splits[2] if isinstance(x, ShardedTensor) else () for x in keys}
    axes = found.pop()
    return () if found or any(axis in query.dim_of for axis in axes) else axes


def _heads_of_keys(query: Layout, heads: int, of_keys: int) -> tuple[str, ...]:
    """The leading axes of those that split the heads of the queries that cut the heads of the keys in the same places."""
    axes = query.splits[1]
    if heads == of_keys:
        return axes
    count = 1
    for k, axis in enumerate(axes):
        count *= query.mesh.axis_size(axis)
        if of_keys % count:
            return axes[:k]
    return axes
