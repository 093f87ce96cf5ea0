"""`one_hot` of classes that there are not: refused, as by plain torch.

Torch says it by other ops (classes compared with a range) for every tensor that is more than a plain one, and looks at
no value then. What comes here is the op itself: its kernel for such tensors, which looks, and goes on as torch would.
"""

from __future__ import annotations

import sys

import torch

from ..rules.bounds import Bound
from .bounds import check_index
from .resolving import resolve
from .tensor import Tensor

_SNAPSHOT = torch._C.DispatchKey.PythonTLSSnapshot
"""The first stop of ops on such tensors, before autograd, where `one_hot` becomes other ops."""

_NEGATIVE = Bound(0, -1, sys.maxsize, error=RuntimeError, words="Class values must be non-negative.")


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if type(x) is Tensor and x.dtype is torch.int64:
        _check_classes(x, num_classes)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_SNAPSHOT)):
        result: torch.Tensor = torch.ops.aten.one_hot.default(x, num_classes)
        return result


def _check_classes(x: Tensor, count: int) -> None:
    if not x.numel():
        if count <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return
    known = resolve(x, "aten.one_hot.default") if x._layout.pending else x
    check_index(known, _NEGATIVE)
    if count != -1:
        words = "Class values must be smaller than num_classes."
        check_index(known, Bound(0, -1, count, least=-sys.maxsize, error=RuntimeError, words=words))


_library = torch.library.Library("aten", "IMPL")
_library.impl("one_hot", _one_hot, _SNAPSHOT.name)
