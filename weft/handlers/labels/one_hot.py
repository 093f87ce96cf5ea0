"""`one_hot` of classes that there are not: refused, as by plain torch.

Torch says it by other ops (classes compared with a range) for every tensor that is more than a plain one, and looks at
no value then. What comes here is the op itself: its kernel for such tensors, which looks, and says the same by other ops.
"""

from __future__ import annotations

import sys

import torch

from ...engine.index_bounds import check_index
from ...engine.moves.resolving import resolve
from ...engine.sharded import ShardedTensor
from ...rules.bounds import Bound
from ...runtime.traced import is_traced

_SNAPSHOT = torch._C.DispatchKey.PythonTLSSnapshot
"""The first stop of ops on such tensors, before autograd, where `one_hot` becomes other ops."""

_NEGATIVE = Bound(0, -1, sys.maxsize, error=RuntimeError, words="Class values must be non-negative.")


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if x.dtype is not torch.int64:
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, but got {x.dtype}")
    if not x.numel() and num_classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if num_classes == -1:
        count = _counted(x)
    else:
        count = num_classes
        if isinstance(x, ShardedTensor):
            _check_classes(x, count)
    return (x.unsqueeze(-1) == torch.arange(count, dtype=x.dtype, device=x.device)).to(torch.int64).contiguous()


def _counted(x: torch.Tensor) -> int:
    """How many classes there are. Processes ask each other for the largest, so they ask for the smallest as well, and all refuse it."""
    if not isinstance(x, ShardedTensor) or is_traced():
        return int(x.max().item()) + 1
    most, negative = torch.stack((x.max(), (-x).max())).tolist()
    if negative > 0:
        raise RuntimeError(_NEGATIVE.words)
    return int(most) + 1


def _check_classes(x: ShardedTensor, count: int) -> None:
    if not x.numel():
        return
    known = resolve(x, "aten.one_hot.default") if x._layout.pending else x
    check_index(known, _NEGATIVE)
    words = "Class values must be smaller than num_classes."
    check_index(known, Bound(0, -1, count, least=-sys.maxsize, error=RuntimeError, words=words))


_library = torch.library.Library("aten", "IMPL")
_library.impl("one_hot", _one_hot, _SNAPSHOT.name)
