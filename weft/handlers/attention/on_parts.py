"""Attention on the parts that devices have: each sees with its queries the keys that it has, in one round or in several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from ...engine.moves.asynchrony import issuing
from ...engine.sharded import ShardedTensor, wrap
from ...rules.call import BoundCall
from ...runtime.holding import holding
from ...sharding.geometry import Interval
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from .blocks import ScoreBlock, Stretches, blocks
from .kernels import Kernel, QueryRows
from .lay import Lay
from .merging import Gradients, Merged, sum_dtype
from .moving import made_even, next_part
from .proposing import key_sums
from .query_holders import QueryHolder, query_holders

__all__ = ["AttentionOnParts"]

Pair = tuple[torch.Tensor, torch.Tensor]
Three = tuple[ShardedTensor, ShardedTensor, ShardedTensor]


@final
class AttentionOnParts:
    """One attention call on parts."""

    def __init__(self, call: BoundCall, kernel: Kernel, lay: Lay, made: Layout | None = None) -> None:
        """`made`: how what devices make lies, where it does not lie like the queries."""
        self._call, self._kernel, self._lay = call, kernel, lay
        self._holders = query_holders(lay, made)

    @property
    def slots(self) -> list[Slot]:
        """The devices at work."""
        return [holder.slot for holder in self._holders]

    def _pieces(self, x: ShardedTensor) -> list[torch.Tensor]:
        """What each device at work has of a tensor."""
        at = holding(x._layout).piece_of
        return [x._value.pieces[at[holder.slot]] for holder in self._holders]

    def _masks(self, mask: ShardedTensor | None) -> Sequence[torch.Tensor | None]:
        return [None] * len(self._holders) if mask is None else self._pieces(mask)

    def _columns(self, of: int) -> tuple[Stretches, int]:
        """The positions of a part of the keys, and where it begins."""
        return self._lay.key_stretches[of], self._lay.key_cuts[of][0]

    def _seen(self, holder: QueryHolder, columns: Stretches) -> tuple[ScoreBlock, ...]:
        return blocks(self._lay.query_stretches[holder.part], columns, self._lay.is_causal)

    def gathered(
        self, query: ShardedTensor, key: ShardedTensor, value: ShardedTensor, mask: ShardedTensor | None
    ) -> tuple[ShardedTensor, ShardedTensor]:
        """The result and its logarithms, when every device has all keys."""
        states = self._begun(query, mask)
        columns = ((0, self._lay.key_shape[2]),)
        for holder, state in zip(self._holders, states, strict=True):
            keys, values = self._own(holder, key, value)
            state.see(keys, values, self._seen(holder, columns))
        return self._results(states, value)

    def ring(
        self, query: ShardedTensor, key: ShardedTensor, value: ShardedTensor, mask: ShardedTensor | None
    ) -> tuple[ShardedTensor, ShardedTensor]:
        """The same, when keys go round."""
        states, count = self._begun(query, mask), self._lay.parts
        key, value = (made_even(x, self._lay) for x in (key, value))
        for turn in range(count):
            ahead = self._passed(key, value) if turn < count - 1 else (key, value)
            for holder, state in zip(self._holders, states, strict=True):
                columns, start = self._columns((holder.part - turn) % count)
                state.see(*self._own(holder, key, value), self._seen(holder, columns), start)
            key, value = ahead
        return self._results(states, value)

    def each(
        self, query: ShardedTensor, key: ShardedTensor, value: ShardedTensor, mask: ShardedTensor | None
    ) -> list[Pair]:
        """What each device sees of the keys that it has, with its logarithms."""
        states = self._begun(query, mask)
        for holder, state in zip(self._holders, states, strict=True):
            columns = self._lay.key_cuts[holder.part]
            state.see(*self._own(holder, key, value), self._seen_by_all(columns), columns[0])
        return [state.seen(piece) for state, piece in zip(states, self._pieces(value), strict=True)]

    def each_gradient(
        self, rows: Sequence[ShardedTensor], key: ShardedTensor, value: ShardedTensor, mask: ShardedTensor | None
    ) -> tuple[list[torch.Tensor], list[Pair]]:
        """What each device gives to the gradients of queries, and the gradients of the keys and values that it has."""
        states, pairs = self._differentiated(rows, mask), []
        for holder, state in zip(self._holders, states, strict=True):
            columns = self._lay.key_cuts[holder.part]
            pairs.append(self._pair(holder, state, key, value, self._seen_by_all(columns), columns[0]))
        return [state.query for state in states], pairs

    def _seen_by_all(self, columns: Interval) -> tuple[ScoreBlock, ...]:
        """What all queries see of some keys."""
        return blocks(((0, self._lay.query_shape[2]),), (columns,), self._lay.is_causal)

    def _begun(self, query: ShardedTensor, mask: ShardedTensor | None) -> list[Merged]:
        masks = self._masks(mask)
        return [Merged(self._call, self._kernel, q, m) for q, m in zip(self._pieces(query), masks, strict=True)]

    def _results(self, states: Sequence[Merged], value: ShardedTensor) -> tuple[ShardedTensor, ShardedTensor]:
        lay = self._lay
        made = [state.result(piece) for state, piece in zip(states, self._pieces(value), strict=True)]
        rows = sum_dtype(value.dtype)
        out = wrap(tuple(out for out, _ in made), lay.query, lay.query_shape, dtype=value.dtype)
        return out, wrap(tuple(each for _, each in made), lay.rows, lay.query_shape[:3], dtype=rows)

    def _own(self, holder: QueryHolder, key: ShardedTensor, value: ShardedTensor) -> Pair:
        """What a device has of the keys and values that its queries use."""
        at = holding(key._layout).piece_of[holder.slot]
        return holder.taken(key._value.pieces[at]), holder.taken(value._value.pieces[at])

    def _passed(self, *tensors: ShardedTensor) -> tuple[ShardedTensor, ...]:
        """Tensors on their way to the next device, while this one goes on."""
        with issuing(True):
            return tuple(next_part(x, self._lay, str(self._call)) for x in tensors)

    def gathered_gradients(
        self, rows: Sequence[ShardedTensor], key: ShardedTensor, value: ShardedTensor, mask: ShardedTensor | None
    ) -> Three:
        """The gradients of queries, and what each device contributes to those of keys and values."""
        states, lay = self._differentiated(rows, mask), self._lay
        columns = ((0, lay.key_shape[2]),)
        pairs = [
            self._pair(holder, state, key, value, self._seen(holder, columns))
            for holder, state in zip(self._holders, states, strict=True)
        ]
        layout = key_sums(lay, rings=False)
        of_key, of_value = (
            wrap(tuple(pair[k].to(key.dtype) for pair in pairs), layout, lay.key_shape, dtype=key.dtype)
            for k in range(2)
        )
        return self._of_queries(states, rows[1]), of_key, of_value

    def ring_gradients(
        self, rows: Sequence[ShardedTensor], key: ShardedTensor, value: ShardedTensor, mask: ShardedTensor | None
    ) -> Three:
        """The same, when keys and values go round, and their gradients with them, which are home after the last turn."""
        states, lay, dtype = self._differentiated(rows, mask), self._lay, key.dtype
        own: list[Pair] = []
        travelling: tuple[ShardedTensor, ...] = ()
        key, value = (made_even(x, lay) for x in (key, value))
        for turn in range(lay.parts):
            ahead = self._passed(key, value) if turn < lay.parts - 1 else (key, value)
            pairs = []
            for holder, state in zip(self._holders, states, strict=True):
                columns, start = self._columns((holder.part - turn) % lay.parts)
                pairs.append(self._pair(holder, state, key, value, self._seen(holder, columns), start))
            if turn:
                travelling = self._passed(*self._added(travelling, pairs, key))
            else:
                own = pairs
            key, value = ahead
        of_key, of_value = (self._at_home(x, dtype) for x in self._added(travelling, own, key))
        return self._of_queries(states, rows[1]), of_key, of_value

    def _differentiated(self, rows: Sequence[ShardedTensor], mask: ShardedTensor | None) -> list[Gradients]:
        each = zip(*map(self._pieces, rows), strict=True)
        return [
            Gradients(self._call, self._kernel, QueryRows(*pieces), m)
            for pieces, m in zip(each, self._masks(mask), strict=True)
        ]

    def _pair(
        self,
        holder: QueryHolder,
        state: Gradients,
        key: ShardedTensor,
        value: ShardedTensor,
        found: Sequence[ScoreBlock],
        start: int = 0,
    ) -> Pair:
        """What a device contributes to the gradients of the keys and values that it has."""
        of_key, of_value = state.see(*self._own(holder, key, value), found, start)
        shape = key._value.pieces[holding(key._layout).piece_of[holder.slot]].shape
        return holder.put_back(of_key, shape), holder.put_back(of_value, shape)

    def _added(
        self, travelling: Sequence[ShardedTensor], pairs: Sequence[Pair], key: ShardedTensor
    ) -> tuple[ShardedTensor, ...]:
        """Gradients of keys and values on their way round, with what is added to them here."""
        layout, added = key_sums(self._lay, rings=True), []
        for k in range(2):
            pieces = tuple(pair[k] for pair in pairs)
            if travelling:
                pieces = tuple(a + b for a, b in zip(travelling[k]._value.pieces, pieces, strict=True))
            added.append(wrap(pieces, layout, key.shape, dtype=sum_dtype(key.dtype)))
        return tuple(added)

    def _at_home(self, x: ShardedTensor, dtype: torch.dtype) -> ShardedTensor:
        """Gradients of keys that have come home, of as many as there are."""
        lay, here = self._lay, holding(x._layout)
        pieces = []
        for piece, coords in zip(x._value.pieces, here.coords, strict=True):
            start, stop = lay.key_cuts[lay.part_at(coords)]
            pieces.append(piece[:, :, : stop - start].to(dtype))
        return wrap(tuple(pieces), x._layout, lay.key_shape, dtype=dtype)

    def _of_queries(self, states: Sequence[Gradients], query: ShardedTensor) -> ShardedTensor:
        pieces = tuple(state.query.to(query.dtype) for state in states)
        return wrap(pieces, self._lay.query, self._lay.query_shape, dtype=query.dtype)
