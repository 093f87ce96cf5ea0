"""Decompositions of many matrices: what a kernel refuses of one of them, all processes refuse, also those that have others.

Torch looks at what most of its kernels say of each matrix after they have run, so that all processes see it; these raise by themselves.
"""

from __future__ import annotations

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.op_plan import layouts_for
from ..engine.running.repeating import repeat_by_rule
from ..rules.call import BoundCall
from ..runtime.processes import world
from ..runtime.processes.agreement.faults import fault_of_any
from ..runtime.processes.mesh_processes import owners_of, spans
from ..runtime.traced import is_traced

aten = torch.ops.aten

_REFUSED: type[RuntimeError] = vars(torch.linalg)["LinAlgError"]  # which torch does not tell type checkers of


@handler(aten.cholesky_inverse.default, aten._linalg_eigh.default, aten._linalg_svd.default, aten.linalg_eig.default)
def _decomposed(call: BoundCall) -> object:
    layout = layouts_for(call)[0]
    owners = owners_of(layout.mesh)
    if not layout.split_axes or not spans(layout.mesh) or call.tensors[0].is_meta or is_traced():
        result = run_by_rule(call)
        call.repeat = repeat_by_rule(call, result)
        return result
    result, own = None, None
    try:
        result = run_by_rule(call)
    except RuntimeError as error:
        own = error
    fault = fault_of_any("" if own is None else str(own), owners) if world.current().process in owners else ""
    if own is not None:
        raise own
    if fault:
        raise _REFUSED(fault)
    return result
