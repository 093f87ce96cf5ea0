"""Conjugates and negatives are computed at once: torch's lazy marks are not seen by the ops that run on the pieces."""

from __future__ import annotations

import torch

from .handling import handler

aten = torch.ops.aten


@handler(aten._conj.default)
def _conj(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return aten._conj_physical(*args)


@handler(aten._neg_view.default)
def _neg_view(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return aten.neg(*args)
