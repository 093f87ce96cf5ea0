"""Attention on one device, block by block: what blocks give is merged by the logarithms of what they were divided by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch

from ...rules.call import BoundCall
from ...runtime.accelerator_kernels import merge_seen
from .blocks import ScoreBlock
from .kernels import Kernel, QueryRows

__all__ = ["Gradients", "Merged", "merge_into", "sum_dtype"]


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums of a dtype are added up in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _masked(mask: torch.Tensor | None, block: ScoreBlock, columns_from: int) -> torch.Tensor | None:
    """What a mask says of a block; its columns are counted from `columns_from`."""
    if mask is None:
        return None
    if mask.shape[-1] != 1:
        mask = mask[..., block.columns[0] + columns_from : block.columns[1] + columns_from]
    return mask if mask.ndim < 2 or mask.shape[-2] == 1 else mask[..., block.rows[0] : block.rows[1], :]


def merge_into(
    out: torch.Tensor, known: torch.Tensor, more: torch.Tensor, logarithms: torch.Tensor, *, may_be_hidden: bool = False
) -> None:
    """Adds to what queries have seen, a result and its logarithms, what they see now.

    `may_be_hidden`: whether some may still have seen nothing, and see nothing now.
    """
    if merge_seen(out, known, more, logarithms):
        return
    share = torch.sigmoid(logarithms - known)
    if may_be_hidden:
        share.nan_to_num_(0.0)
    out.lerp_(more.to(out.dtype), share.unsqueeze(-1).to(out.dtype))
    torch.logaddexp(known, logarithms, out=known)


@final
class Merged:
    """What the queries of one device have seen so far."""

    def __init__(self, call: BoundCall, kernel: Kernel, query: torch.Tensor, mask: torch.Tensor | None) -> None:
        self._call, self._kernel, self._query, self._mask = call, kernel, query, mask
        self._out: torch.Tensor | None = None
        self._rows: torch.Tensor | None = None

    def see(self, key: torch.Tensor, value: torch.Tensor, found: Sequence[ScoreBlock], columns_from: int = 0) -> None:
        """Lets the queries see blocks of keys; for the mask, keys are counted from `columns_from`."""
        for block in found:
            (first, last), (start, stop) = block.rows, block.columns
            query, mask = self._query[:, :, first:last], _masked(self._mask, block, columns_from)
            keys, values = key[:, :, start:stop], value[:, :, start:stop]
            if not query.numel() or not keys.numel():
                continue  # a device without heads sees nothing, and kernels cannot be asked for that
            out, rows = self._kernel.forward(self._call, query, keys, values, mask, block.is_causal)
            rows = rows.to(sum_dtype(out.dtype))  # torch 2.11 says another dtype of kernels that it does not run
            if mask is not None:
                rows = _unseen(rows, mask)
            self._merge(block, out, rows)

    def _merge(self, block: ScoreBlock, out: torch.Tensor, rows: torch.Tensor) -> None:
        first, last = block.rows
        if self._out is None and last - first == self._query.shape[2]:
            self._out, self._rows = out, rows
            return
        have, known = self._widened(out, rows)
        merge_into(have[:, :, first:last], known[:, :, first:last], out, rows, may_be_hidden=self._mask is not None)

    def _widened(self, out: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The result so far, in a dtype for sums and in memory of its own."""
        dtype = sum_dtype(out.dtype)
        if self._out is None or self._rows is None:
            shape = (*self._query.shape[:3], out.shape[3])
            self._out = out.new_zeros(shape, dtype=dtype)
            self._rows = rows.new_full(shape[:3], -math.inf)
        elif self._out.dtype is not dtype:
            self._out = self._out.to(dtype)
        return self._out, self._rows

    def seen(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The result and its logarithms, those of nothing for queries that saw nothing. `like`: some of the values."""
        if self._out is None or self._rows is None:
            shape = (*self._query.shape[:3], like.shape[3])
            rows = torch.full(shape[:3], -math.inf, dtype=sum_dtype(like.dtype), device=like.device)
            return like.new_zeros(shape), rows
        return self._out, self._rows

    def result(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as kernels give them: with zeros for queries that saw nothing."""
        out, rows = self.seen(like)
        return out.to(like.dtype), rows.masked_fill(rows == -math.inf, 0)


def _unseen(rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logarithms, of rows that a mask hides altogether those of nothing: kernels do not agree on them."""
    hidden = (~mask if mask.dtype is torch.bool else mask == -math.inf).all(-1)
    return rows.masked_fill(hidden.expand(rows.shape), -math.inf)


@final
class Gradients:
    """The gradients that the queries of one device give: of themselves, and of the keys and values that they see."""

    def __init__(self, call: BoundCall, kernel: Kernel, rows: QueryRows, mask: torch.Tensor | None) -> None:
        self._call, self._kernel, self._rows, self._mask = call, kernel, rows, mask
        self.query = torch.zeros_like(rows.query, dtype=sum_dtype(rows.query.dtype))

    def see(
        self, key: torch.Tensor, value: torch.Tensor, found: Sequence[ScoreBlock], columns_from: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of keys and values from blocks of scores; those of the queries are added up."""
        if not self._rows.query.numel() or not key.numel():
            found = ()
        whole = len(found) == 1 and found[0].columns == (0, key.shape[2])
        sums = [] if whole else [torch.zeros_like(x, dtype=sum_dtype(x.dtype)) for x in (key, value)]
        for block in found:
            (first, last), (start, stop) = block.rows, block.columns
            mask, rows = _masked(self._mask, block, columns_from), self._rows.part(first, last)
            keys, values = key[:, :, start:stop], value[:, :, start:stop]
            of_query, *given = self._kernel.backward(self._call, rows, keys, values, mask, block.is_causal)
            self.query[:, :, first:last] += of_query
            if whole:
                sums = [x.to(sum_dtype(x.dtype)) for x in given]
            else:
                for total, part in zip(sums, given, strict=True):
                    total[:, :, start:stop] += part
        return sums[0], sums[1]
