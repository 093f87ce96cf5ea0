"""Decompositions, determinants, and kernels that conjugate: where pieces by themselves would not do as the whole does."""

from __future__ import annotations

import torch

from ..engine.dispatch_keys import let_in
from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.op_plan import layouts_for
from ..engine.running.repeating import repeat_by_rule
from ..engine.sharded import ShardedTensor
from ..rules.call import BoundCall
from ..runtime.processes import world
from ..runtime.processes.agreement.faults import fault_of_any
from ..runtime.processes.mesh_processes import owners_of, spans
from ..runtime.traced import is_traced

aten = torch.ops.aten

_REFUSED: type[RuntimeError] = vars(torch.linalg)["LinAlgError"]  # which torch does not tell type checkers of
_MATRIX = "of a matrix: "
"""What is said before an error of the kind that torch has for matrices, so that others raise one of that kind."""
_OTHERS = {aten.dot.default: (True, "tensor"), aten.vdot.default: (False, "other")}
"""Whether the first is a conjugate where the product is one, and what the second is called, which always is."""


def _repeated_by_rule(call: BoundCall) -> object:
    result = run_by_rule(call)
    call.repeat = repeat_by_rule(call, result)
    return result


@handler(aten.cholesky_inverse.default, aten._linalg_eigh.default, aten._linalg_svd.default, aten.linalg_eig.default)
def _decomposed(call: BoundCall) -> object:
    """What a kernel refuses of one of many matrices, all processes refuse, also those that have others.

    Torch looks at what most of its kernels say of each matrix after they have run, so that all processes see it; these raise by themselves.
    """
    layout = layouts_for(call)[0]
    owners = owners_of(layout.mesh)
    if not layout.split_axes or not spans(layout.mesh) or call.tensors[0].is_meta or is_traced():
        return _repeated_by_rule(call)
    result, own = None, None
    try:
        result = run_by_rule(call)
    except RuntimeError as error:
        own = error
    said = "" if own is None else _MATRIX * isinstance(own, _REFUSED) + str(own)
    fault = fault_of_any(said, owners) if world.current().process in owners else ""
    if own is not None:
        raise own
    if fault:
        raise (_REFUSED if fault.startswith(_MATRIX) else RuntimeError)(fault.removeprefix(_MATRIX))
    return result


@handler(aten._linalg_det.default, aten._linalg_slogdet.default)
def _determinant(call: BoundCall) -> object:
    """Kernels factor a matrix or its transpose, whichever lies row by row, and the way back asks the whole which."""
    x = call.tensor("A")
    if not x.is_contiguous():
        # What is brought elsewhere has no gaps any more, and must not lie row by row for that.
        columns = aten.clone.default(x.mT, memory_format=torch.contiguous_format)
        call = call.replaced(A=columns.mT)
    return run_by_rule(call)


@handler(aten.linalg_pinv.atol_rtol_tensor, aten.linalg_lstsq.default)
def _conjugating(call: BoundCall) -> object:
    """These kernels conjugate by torch's lazy marks, which nobody looks at below sharded tensors: for them, torch does again."""
    if not any(x.is_complex() for x in call.tensors):
        return _repeated_by_rule(call)
    with let_in(torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
        return run_by_rule(call)


@handler(*_OTHERS, may_be_direct=True)
def _dot_product(call: BoundCall) -> object:
    """Of conjugates, torch computes some of what these are conjugates of, and gives the conjugate of that."""
    first, name = _OTHERS[call.func]
    is_conjugate = call.tensor(name).is_conj() and call.tensor("self").is_conj() is first
    result = run_by_rule(call)
    if not is_conjugate or not isinstance(result, ShardedTensor):
        return result
    return aten._conj.default(aten._conj_physical.default(result))


def _kron_out(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Torch writes to another shape of `out`, which it does not call a view: where elements lie elsewhere in it, it is a copy."""
    result = torch.kron(x, y)
    if not torch.can_cast(result.dtype, out.dtype):
        raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {out.dtype}")
    aten.clone.out(result.to(out.dtype), out=out)
    return out


_library = torch.library.Library("aten", "IMPL")
_library.impl("kron.out", _kron_out, torch._C.DispatchKey.PythonTLSSnapshot.name)
