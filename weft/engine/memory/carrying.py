"""Pieces on their way: runtimes write row by row, so dims that stand in another order are renumbered before and after."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...runtime import run
from ...runtime.holding import Pieces, holding
from ...runtime.strides import Strides, order_of
from ...sharding.layout import Layout

__all__ = ["carried", "gathered", "scattered"]


def carried(
    pieces: Pieces,
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    strides: Strides,
    dtype: torch.dtype,
    op: str,
) -> Pieces:
    """The pieces of the same tensor in another layout, their dims in the order that these strides say."""
    order = order_of(shape, strides)
    if order is None:
        there = run.move(pieces, source, target, shape, dtype, op)
    else:
        turned = source.permuted(order), target.permuted(order), tuple(shape[dim] for dim in order)
        there = _turned(run.move(_turned(pieces, order), *turned, dtype, op), _back(order))
    if holding(target).shaped_whole(there) is None:
        return there
    return tuple(_with_single_strides(piece, strides) for piece in there)


def _with_single_strides(piece: torch.Tensor, strides: Strides) -> torch.Tensor:
    """A piece whose dims of size 1 have these strides: they say nothing, and kernels go by them all the same."""
    given = tuple(said if n == 1 else own for n, own, said in zip(piece.shape, piece.stride(), strides, strict=True))
    return piece if given == piece.stride() else piece.as_strided(piece.shape, given)


def scattered(whole: torch.Tensor, layout: Layout) -> Pieces:
    """The pieces of a value that this process has whole."""
    order = order_of(tuple(whole.shape), whole.stride())
    if order is None:
        return run.scatter(whole, layout)
    return _turned(run.scatter(whole.permute(order), layout.permuted(order)), _back(order))


def gathered(
    pieces: Pieces, layout: Layout, shape: tuple[int, ...], strides: Strides, dtype: torch.dtype
) -> torch.Tensor:
    """The value of which every device has the whole, in every process."""
    order = order_of(shape, strides)
    if order is None:
        return run.whole(pieces, layout, shape, dtype)
    turned = _turned(pieces, order), layout.permuted(order), tuple(shape[dim] for dim in order)
    return run.whole(*turned, dtype).permute(_back(order))


def _turned(pieces: Pieces, order: Sequence[int]) -> Pieces:
    # Torch holds what it knows views of, and who asks whether somebody else has the memory would be told so.
    with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
        return tuple(piece.permute(*order) for piece in pieces)


_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def _back(order: Sequence[int]) -> list[int]:
    """The order that undoes another."""
    return sorted(range(len(order)), key=lambda at: order[at])
