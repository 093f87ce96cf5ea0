"""`View`: what a view shows of another tensor, and where it lies in the memory that this would have if it were whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...runtime.holding import Pieces
from ...runtime.strides import in_order, reach_of
from ..sharded import ShardedTensor, begins_at, wrap
from .copy_views import Told

__all__ = ["Geometry", "View", "at", "beginning", "extent", "shown"]

Geometry = tuple[tuple[int, ...], int]
"""Strides, and the offset from where the other tensor begins."""


@dataclass(frozen=True, slots=True)
class View:
    """How a view is read of its base and written back, and what is told of that; needed where it has to be a copy."""

    read: Callable[[ShardedTensor], ShardedTensor]
    write: Callable[[ShardedTensor, ShardedTensor], None]
    told: Callable[[], Told]
    geometry: Callable[[], Geometry] | None = None
    """None: it lies already where it is said to."""
    is_loose: bool = False
    """Whether nobody else has the base, which need not show what is written to the view."""


def shown(x: ShardedTensor, y: ShardedTensor, geometry: Geometry) -> ShardedTensor:
    """A copy of what a view shows of another tensor, as that view: with the strides and the offset that it has there."""
    return at(x, y, tuple(in_order(piece, geometry[0]) for piece in y._value.pieces), geometry)


def at(x: ShardedTensor, y: ShardedTensor, pieces: Pieces, geometry: Geometry) -> ShardedTensor:
    """The tensor of these pieces, with the strides and the offset that a view has in another."""
    strides, offset = geometry
    return wrap(pieces, y._layout, y.shape, dtype=y.dtype, strides=strides, offset=beginning(x, y.dtype) + offset)


def beginning(x: ShardedTensor, dtype: torch.dtype) -> int:
    """Where a tensor begins in its memory, in elements of a dtype: a view may have larger ones, or smaller."""
    return begins_at(x) * x.dtype.itemsize // dtype.itemsize


def extent(x: ShardedTensor) -> int:
    """How many elements of its dtype the memory has that a tensor lies in, if it were whole."""
    root = x._base if x._is_view() and x._base is not None else x
    return (begins_at(root) + reach_of(root.shape, root.stride())) * root.itemsize // x.itemsize
