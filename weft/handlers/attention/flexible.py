"""`flex_attention`: every device computes its own batches, heads and queries, with masks and scores that know their places.

Keys and values are gathered along the sequence where they are split. Blocks that a block mask leaves out stay left out where
the queries of a device begin with one of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._subclasses.fake_tensor import is_fake

from ...engine.memory import held_whole, memory_of
from ...engine.moves.movement import from_plain, moved
from ...engine.sharded import ShardedTensor, as_sharded, wrap, wrap_whole
from ...runtime.holding import holding
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ...watch.comm_log import paused
from ...watch.policy import reshard_policy
from .lay import Lay, lay_between
from .moving import come_to
from .proposing import key_sums, summed_key
from .query_holders import QueryHolder, query_holders

__all__ = ["flexible_attention", "flexible_attention_backward"]

Mod = Callable[..., torch.Tensor]
Blocks = tuple[Any, ...]
"""What torch makes of a block mask: lengths, blocks, sizes of blocks, and last the mask itself."""
Buffers = tuple[object, ...]
"""What a mask or a change of scores has captured."""
_OP = "flex_attention"
_ONE_BLOCK = 1 << 30
"""What torch takes as the size of a block that has everything."""

_forward: Callable[..., tuple[torch.Tensor, ...]] = flex_attention
_backward: Callable[..., tuple[Any, ...]] = flex_attention_backward


def flexible_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Mod,
    block_mask: Blocks,
    scale: float,
    options: dict[str, object],
    of_scores: Buffers = (),
    of_mask: Buffers = (),
) -> tuple[torch.Tensor, ...]:
    """The result, its logarithms and its highest scores."""
    lay = _lay(query, key, value)
    with _unseen(query):
        given = [come_to(query, lay.query, _OP), *(come_to(x, lay.key, _OP) for x in (key, value))]
        captured = _Captured(lay, of_scores, of_mask)
    layouts = lay.query, lay.rows, lay.rows
    if not memory_of(lay.query).pieces_are_shards:
        first, *keys = (_piece(x, None) for x in given)
        wholes = _forward(first, *keys, score_mod, block_mask, scale, options, *captured.at(None))
        return tuple(wrap_whole(x, layout) for x, layout in zip(wholes, layouts, strict=True))
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    made: list[tuple[torch.Tensor, ...]] = []
    for holder in query_holders(lay):
        first, *keys = (_piece(x, holder.slot) for x in given)
        if not holder.has_queries:
            made.append((first, *[first.new_empty(first.shape[:3], dtype=wide)] * 2))
            continue
        mods = _placed(score_mod, holder, 1), _blocks(block_mask, holder)
        own = map(holder.taken, keys)
        made.append(_forward(first, *own, *mods, scale, options, *captured.at(holder.slot)))
    dtypes, dims = (query.dtype, wide, wide), (4, 3, 3)
    return tuple(
        wrap(tuple(each[k] for each in made), layout, lay.query_shape[:dim], dtype=dtype)
        for k, (layout, dtype, dim) in enumerate(zip(layouts, dtypes, dims, strict=True))
    )


def flexible_attention_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    rows: torch.Tensor,
    grad: torch.Tensor | None,
    of_rows: torch.Tensor | None,
    score_mod: Mod,
    joint: Mod | None,
    block_mask: Blocks,
    scale: float,
    options: dict[str, object],
    of_scores: Buffers = (),
    of_mask: Buffers = (),
) -> tuple[object, ...]:
    """The gradients of queries, keys and values, and none of what is captured."""
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in of_scores):
        raise NotImplementedError(
            "flex_attention of sharded tensors has no gradient for tensors that score_mod captures: detach() them, or add "
            "them to the scores of torch.nn.functional.scaled_dot_product_attention as a mask"
        )
    lay, op = _lay(query, key, value), f"{_OP} backward"
    on_rows = (query, lay.query), (out, lay.query), (rows, lay.rows), (grad, lay.query), (of_rows, lay.rows)
    with _unseen(query):
        given = [None if x is None else come_to(x, there, op) for x, there in on_rows]
        keys = [come_to(x, lay.key, op) for x in (key, value)]
        captured = _Captured(lay, of_scores, of_mask)
    sums = key_sums(lay, rings=False)
    layouts = lay.query, sums, sums
    if not memory_of(lay.query).pieces_are_shards:
        first, *others = (None if x is None else _piece(x, None) for x in given)
        own = [_piece(x, None) for x in keys]
        wholes = _backward(first, *own, *others, score_mod, joint, block_mask, scale, options, *captured.at(None))
        made = [from_plain(x, there) for x, there in zip(wholes[:3], layouts, strict=True)]
    else:
        mods = score_mod, joint, block_mask
        pieces = [_gradients_at(each, given, keys, mods, (scale, options), captured) for each in query_holders(lay)]
        shapes = lay.query_shape, lay.key_shape, lay.key_shape
        made = [
            wrap(tuple(each[k] for each in pieces), there, shape, dtype=query.dtype)
            for k, (there, shape) in enumerate(zip(layouts, shapes, strict=True))
        ]
    left = [summed_key(lay, as_sharded(x)._layout) for x in (key, value)]
    with _unseen(query):
        of_keys = [moved(x, there, op, implicit=True) for x, there in zip(made[1:], left, strict=True)]
    return made[0], *of_keys, (None,) * len(of_scores)


def _gradients_at(
    holder: QueryHolder,
    given: Sequence[ShardedTensor | None],
    keys: Sequence[ShardedTensor],
    mods: tuple[Mod, Mod | None, Blocks],
    settings: tuple[float, dict[str, object]],
    captured: _Captured,
) -> tuple[Any, ...]:
    """The gradients of the queries that a device has, and of all keys and values by these."""
    first, *others = (None if x is None else _piece(x, holder.slot) for x in given)
    held = [_piece(x, holder.slot) for x in keys]
    if not holder.has_queries:
        return first, *map(torch.zeros_like, held)
    score_mod, joint, blocks = mods
    placed = (
        _placed(score_mod, holder, 1),
        None if joint is None else _placed(joint, holder, 1),
        _blocks(blocks, holder),
    )
    own = [holder.taken(x) for x in held]
    got = _backward(first, *own, *others, *placed, *settings, *captured.at(holder.slot))
    return got[0], *(holder.put_back(x, held[0].shape) for x in got[1:3])


@contextmanager
def _unseen(x: torch.Tensor) -> Iterator[None]:
    """While torch only looks at what will be, nothing moves: it calls again when it computes."""
    if not is_fake(x):
        yield
        return
    with paused(), reshard_policy("silent"):
        yield


@final
class _Captured:
    """What a change of scores and a mask have captured, whole on every device."""

    def __init__(self, lay: Lay, *buffers: Buffers) -> None:
        self._buffers = [[self._everywhere(x, lay) for x in each] for each in buffers]

    @staticmethod
    def _everywhere(x: object, lay: Lay) -> object:
        return come_to(x, Layout.replicated(lay.query.mesh, x.dim()), _OP) if isinstance(x, torch.Tensor) else x

    def at(self, slot: Slot | None) -> list[Buffers]:
        """What a device has of it; in one memory, all of it."""
        return [tuple(_piece(x, slot) if isinstance(x, ShardedTensor) else x for x in each) for each in self._buffers]


def _lay(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Lay:
    if not all(isinstance(x, ShardedTensor) for x in (query, key, value)) or key.shape != value.shape:
        raise NotImplementedError(
            "flex_attention takes queries, keys and values that are all sharded, keys and values of one shape, but got "
            f"{', '.join(f'{type(x).__name__} {tuple(x.shape)}' for x in (query, key, value))}: weft.shard the plain ones, "
            "or use torch.nn.functional.scaled_dot_product_attention with a mask"
        )
    if key.shape[0] != query.shape[0]:
        raise NotImplementedError(
            f"flex_attention of sharded tensors takes as many batches of keys as of queries, but got {key.shape[0]} and "
            f"{query.shape[0]}: expand the keys and values"
        )
    return lay_between(as_sharded(query), key)


def _piece(x: ShardedTensor, slot: Slot | None) -> torch.Tensor:
    """What a device has of a tensor; in one memory, all of it."""
    if slot is not None:
        return x._value.pieces[holding(x._layout).piece_of[slot]]
    whole = held_whole(x)
    assert whole is not None
    return whole


def _placed(mod: Mod, holder: QueryHolder, skipped: int) -> Mod:
    """A function of places in the whole, for places in what a device has; they come after some other arguments."""
    starts = [start for start, _ in holder.query[:3]]

    def moved_by(*args: torch.Tensor) -> torch.Tensor:
        ahead, (batch, head, row, *rest) = args[:skipped], args[skipped:]
        return mod(*ahead, batch + starts[0], head + starts[1], row + starts[2], *rest)

    return moved_by


def _blocks(given: Blocks, holder: QueryHolder) -> Blocks:
    """A block mask for what a device has: its rows of blocks, or one block where it begins inside of one."""
    from torch.nn.attention.flex_attention import BlockMask  # which loads sympy: whoever is here has loaded it

    made: Callable[..., BlockMask] = BlockMask.from_kv_blocks
    _, keys, some, where, full, full_where, *_, rows, columns, mask = given
    assert isinstance(some, torch.Tensor)
    first, last = holder.query[2]
    sized = _placed(mask, holder, 0), (last - first, keys)
    if first % rows:
        one = torch.ones((1, 1, 1), dtype=torch.int32, device=some.device)
        return made(one, torch.zeros_like(one).unsqueeze(-1), None, None, (_ONE_BLOCK, _ONE_BLOCK), *sized).as_tuple()
    own = [_of_holder(x, holder, first // rows, -(-last // rows)) for x in (some, where, full, full_where)]
    return made(*own, (rows, columns), *sized).as_tuple()


def _of_holder(x: torch.Tensor | None, holder: QueryHolder, start: int, stop: int) -> torch.Tensor | None:
    """What is said of the batches, heads and rows of blocks of a device; batches and heads may all be alike."""
    if x is None:
        return None
    for dim, (low, high) in enumerate(holder.query[:2]):
        x = x if x.shape[dim] == 1 else x.narrow(dim, low, high - low)
    return x[:, :, start:stop]
