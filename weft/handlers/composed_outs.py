"""What torch refuses of an `out=` only after it has computed, by other ops, what belongs there: refused before anything moves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._pytree import tree_map_only

from ..engine.dispatch_keys import look_first
from ..rules.call import BoundCall, Op
from ..rules.registry import ops_named
from ..runtime.traced import is_traced


def _without_memory(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _refusing(op: Op) -> Callable[..., None]:
    """What asks torch of a call whose `out` has another dtype than what it reads, with tensors that have no memory."""

    def look(*args: object, **kwargs: object) -> None:
        read, out = BoundCall(op, args, {}).tensors, kwargs.get("out")
        if not isinstance(out, torch.Tensor) or is_traced():
            return
        if out.dtype is read[0].dtype and kwargs.get("dtype") is None:
            return
        try:
            op(
                *tree_map_only(torch.Tensor, _without_memory, args),
                **tree_map_only(torch.Tensor, _without_memory, kwargs),
            )
        except NotImplementedError:  # without memory, torch cannot say
            return

    return look


for _op in ops_named(
    "linalg_norm.out linalg_norm.ord_str_out linalg_matrix_norm.out linalg_matrix_norm.str_ord_out linalg_multi_dot.out"
):
    look_first(_op, _refusing(_op))
