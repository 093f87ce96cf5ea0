"""Products: the factor that both sides share and the result lacks becomes a pending sum when it is split."""

from __future__ import annotations

import torch

from .registry import row, rules

aten = torch.ops.aten

rules |= {
    aten.mm.default: row("m k, k n -> m n", linear="each"),
    aten.bmm.default: row("b m k, b k n -> b m n", linear="each"),
    aten.mv.default: row("m k, k -> m", linear="each"),
    aten.dot.default: row("k, k -> ", linear="each"),
    aten.addmm.default: row("m n, m k, k n -> m n", linear="each", added=frozenset({0})),
    aten.baddbmm.default: row("b m n, b m k, b k n -> b m n", linear="each", added=frozenset({0})),
}
