"""A tensor of one element as a Python number, also where torch asks for it with dispatch turned off.

`torch.tensor([loss, accuracy])` reads each element by `float(x)`, `int(x)` and so on, after it has shut out tensor
subclasses; this lets them in again for that one question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["as_number"]

Number = TypeVar("Number", bool, int, float, complex)

_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)


def as_number(read: Callable[[], Number]) -> Number:
    """The element of a tensor, read by torch's own method of it."""
    if not torch._C._dispatch_tls_is_dispatch_key_excluded(_KEYS[0]):
        return read()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _KEYS:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        return read()
