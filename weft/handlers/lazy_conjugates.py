"""Kernels that conjugate by torch's lazy marks, which nobody looks at below sharded tensors: for these kernels, torch does again."""

from __future__ import annotations

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.running.repeating import repeat_by_rule
from ..rules.call import BoundCall

aten = torch.ops.aten

_MARKS = (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative)


@handler(aten.linalg_pinv.atol_rtol_tensor, aten.linalg_lstsq.default)
def _conjugating(call: BoundCall) -> object:
    if not any(x.is_complex() for x in call.tensors):
        result = run_by_rule(call)
        call.repeat = repeat_by_rule(call, result)
        return result
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _MARKS:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        return run_by_rule(call)
