"""Which ops take lists of tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import cast

import torch

from ...rules.call import Op

__all__ = ["FOREACH", "FUSED", "overloads"]

FUSED = frozenset({"_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"})
"""Optimizer steps; their names in place end with an underscore, as those of other ops do."""

_NAMES = [
    name.removeprefix("aten::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith(("aten::_foreach_", "aten::_fused_"))
]
FOREACH = frozenset(name.partition(".")[0].removesuffix("_") for name in _NAMES if name.startswith("_foreach_"))
"""Ops on each tensor of a list."""


def overloads(names: Collection[str]) -> Iterator[Op]:
    """All overloads of some ops but those with `out=`, and their in-place forms.

    >>> [str(op) for op in overloads(["_foreach_sqrt"])]
    ['aten._foreach_sqrt.default', 'aten._foreach_sqrt_.default']
    """
    for name in sorted(_NAMES):
        packet, _, overload = name.partition(".")
        if packet.removesuffix("_") in names and not overload.endswith("out"):
            yield cast(Op, getattr(getattr(torch.ops.aten, packet), overload or "default"))
