"""Products: the factor that both sides share and the result lacks becomes a pending sum when it is split."""

from __future__ import annotations

import torch

from .factors import Factors, parse
from .registry import Call, Rule, row, rules

aten = torch.ops.aten

_ADDMM = {rank: parse(f"{dims}, m k, k n -> m n") for rank, dims in enumerate(("", "n", "m n"))}


def _addmm(call: Call) -> Factors:
    """What is added may lack leading dims: usually it is a bias."""
    shapes = [spec.shape for spec in call.tensors]
    return _ADDMM[len(shapes[0])].meet(shapes, linear="each", added=frozenset({0}))


rules |= {
    aten.mm.default: row("m k, k n -> m n", linear="each"),
    aten.bmm.default: row("b m k, b k n -> b m n", linear="each"),
    aten.mv.default: row("m k, k -> m", linear="each"),
    aten.dot.default: row("k, k -> ", linear="each"),
    aten.addmm.default: Rule(_addmm),
    aten.baddbmm.default: row("b m n, b m k, b k n -> b m n", linear="each", added=frozenset({0})),
}
