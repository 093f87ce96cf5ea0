"""Merging on one GPU: what queries have seen of keys, and what they see of others, in one launch."""
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton writes compile-time arguments in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .program import program

__all__ = ["merge_seen_into"]

_ELEMENTS = 4096
"""How many elements one program merges."""


@program()
def _merge(
    out, known, more, logarithms,
    heads, length, features, count,
    out_batch, out_head, out_row, known_batch, known_head, known_row,
    more_batch, more_head, more_row, logarithms_batch, logarithms_head, logarithms_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some rows: queries of all heads and batches, counted together."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = rows < count
    row, head, batch = rows % length, rows // length % heads, rows // length // heads
    known += batch * known_batch + head * known_head + row * known_row
    before = tl.load(known, mask=is_row, other=0.0)
    now = tl.load(
        logarithms + batch * logarithms_batch + head * logarithms_head + row * logarithms_row, mask=is_row, other=0.0
    )
    most = tl.maximum(before, now)
    is_seen = most > float("-inf")  # what neither has seen stays as it is
    most = tl.where(is_seen, most, 0.0)
    weight = tl.exp(now - most)
    total = tl.where(is_seen, weight + tl.exp(before - most), 1.0)
    tl.store(known, tl.where(is_seen, most + tl.log(total), before), mask=is_row)
    share = (weight / total)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    here = is_row[:, None] & (columns < features)
    out += (batch * out_batch + head * out_head + row * out_row)[:, None] + columns
    had = tl.load(out, mask=here, other=0.0)
    sees = tl.load(
        more + (batch * more_batch + head * more_head + row * more_row)[:, None] + columns, mask=here, other=0.0
    ).to(had.dtype)
    tl.store(out, had + (sees - had) * share, mask=here)


def merge_seen_into(out: torch.Tensor, known: torch.Tensor, more: torch.Tensor, logarithms: torch.Tensor) -> None:
    """Adds to a result of attention and its logarithms, in place, those of other keys.

    Results are (batch, heads, queries, features), the features side by side; logarithms have no features. A query that has
    seen nothing has the logarithm of nothing, -inf.

    >>> out, known = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1)
    >>> merge_seen_into(out, known, torch.full_like(out, 4.0), torch.full_like(known, 2.0).log())
    >>> out, known.exp()
    (tensor([[[[3., 3.]]]]), tensor([[[3.]]]))
    """
    batches, heads, length, features = out.shape
    columns, count = triton.next_power_of_2(features), batches * heads * length
    rows = max(1, _ELEMENTS // columns)
    with torch.cuda.device_of(out):
        _merge[(triton.cdiv(count, rows),)](
            out, known, more, logarithms, heads, length, features, count,
            *out.stride()[:3], *known.stride(), *more.stride()[:3], *logarithms.stride(), ROWS=rows, COLUMNS=columns,
        )  # fmt: skip
    if not out.is_inference():
        torch.autograd.graph.increment_version([out, known])
