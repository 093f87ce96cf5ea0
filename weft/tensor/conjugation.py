"""Conjugates and negatives are computed at once: torch's lazy marks are not seen by the ops that run on the pieces.

They are views for torch all the same, so they are copies that remember what they show.
"""

from __future__ import annotations

from typing import cast

import torch

from .aliasing import remember
from .handling import handler
from .tensor import Tensor
from .writing import store

aten = torch.ops.aten
Op = torch._ops.OpOverload

_COMPUTED = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}
"""Each is its own inverse: what is read of a tensor by it is written back by it."""


@handler(*_COMPUTED)
def _at_once(func: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    x = cast(Tensor, args[0])

    def read(base: Tensor) -> Tensor:
        return cast(Tensor, _COMPUTED[func](base))

    def write(base: Tensor, view: Tensor) -> None:
        store(base, read(view), str(func))

    return remember(read(x), x, read, write)
