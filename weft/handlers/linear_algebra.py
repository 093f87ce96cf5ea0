"""Decompositions, determinants, and kernels that conjugate: where pieces by themselves would not do as the whole does."""

from __future__ import annotations

import math
import re

import torch

from ..engine.dispatch_keys import let_in
from ..engine.execute import brought, run_by_rule
from ..engine.handlers import handler
from ..engine.op_kind import for_each_result
from ..engine.op_plan import NOT_REPEATED, layouts_for
from ..engine.running.repeating import repeat_by_rule
from ..engine.sharded import ShardedTensor, as_sharded, wrap
from ..rules.call import BoundCall, Op
from ..runtime.holding import holding, slices
from ..runtime.processes import world
from ..runtime.processes.agreement.faults import faults_of_all
from ..runtime.processes.group import Processes
from ..runtime.processes.mesh_processes import owners_of, spans
from ..runtime.traced import is_traced

aten = torch.ops.aten

_REFUSED: type[RuntimeError] = vars(torch.linalg)["LinAlgError"]  # which torch does not tell type checkers of
_NUMBER = re.compile(r"\(Batch element (\d+)\)")
"""How torch says which of many matrices it means."""
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
    if not layout.split_axes or call.tensors[0].is_meta or is_traced():
        return _repeated_by_rule(call)
    call = call.with_tensors([brought(call.tensors[0], layout, str(call), False, is_read=True)])
    owners, result, said = owners_of(layout.mesh), None, ""
    try:
        result = run_by_rule(call)
    except RuntimeError as error:
        said = _first_refusal(call) or _said(error, 0)
    fault = _first_of_all(said, owners) if spans(layout.mesh) else said
    if fault:
        kind, _, text = fault.partition(" ")[2].partition(" ")
        raise (_REFUSED if kind == _REFUSED.__name__ else RuntimeError)(text)
    return result


def _first_of_all(said: str, owners: Processes) -> str:
    """What one of the processes refuses of the first matrix that any of them does; "" where none does, or here is nothing of a mesh."""
    return min(filter(None, faults_of_all(said, owners)), default="") if world.current().process in owners else ""


def _first_refusal(call: BoundCall) -> str:
    """What the kernel says of the first of all matrices that it refuses, counted as in the whole; "" where it is of none."""
    x = as_sharded(call.tensors[0])
    told = []
    for at, piece in enumerate(x._value.pieces):
        try:
            call.on([piece])
        except RuntimeError as error:
            found = _NUMBER.search(str(error))
            if found is None:
                continue
            ahead = x.shape[:-2]
            here = torch.arange(math.prod(ahead)).reshape(ahead)[slices(holding(x._layout).box(at, x.shape)[:-2])]
            number = int(here.flatten()[int(found[1])])
            told.append(_said(error, number, _NUMBER.sub(f"(Batch element {number})", str(error))))
    return min(told, default="")


def _said(error: RuntimeError, number: int, text: str | None = None) -> str:
    """A refusal in words that processes tell each other, in the order of the matrices."""
    return f"{number:020} {type(error).__name__} {error if text is None else text}"


_CHECKED: dict[Op, str] = {
    aten.linalg_cholesky_ex.default: "linalg.cholesky_ex",
    aten.linalg_inv_ex.default: "linalg.inv_ex",
    aten._linalg_solve_ex.default: "torch.linalg.solve_ex",
    aten.linalg_lu_factor_ex.default: "torch.linalg.lu_factor_ex",
    aten.linalg_ldl_factor_ex.default: "torch.linalg.ldl_factor_ex",
}
"""Ops that look at what they say of each matrix if they are asked to, and what they call themselves then."""


@handler(*_CHECKED, may_be_direct=True)
def _checked(call: BoundCall) -> object:
    """What is looked at is what all of them say, so that matrices are counted as in the whole."""
    if not call.kwargs.get("check_errors"):
        return _solved(call) if call.func is aten._linalg_solve_ex.default else _repeated_by_rule(call)
    result = call.func(*call.args, **{**call.kwargs, "check_errors": False})
    torch._linalg_check_errors(result[-1], _CHECKED[call.func], is_matrix=call.tensors[0].dim() == 2)
    return result


@handler(aten.linalg_lu_solve.default)
def _solved(call: BoundCall) -> object:
    """Of complex numbers, these kernels give conjugates by torch's lazy marks: nobody looks at those of pieces."""
    if call.flag("left") or not call.tensors[0].is_complex():
        return _repeated_by_rule(call)
    result = run_by_rule(call)
    call.repeat = lambda *_: NOT_REPEATED  # which would have the marks
    return for_each_result(result, lambda _, x: _without_marks(as_sharded(x)))


def _without_marks(x: ShardedTensor) -> ShardedTensor:
    pieces = tuple(piece.resolve_conj() for piece in x._value.pieces)
    return wrap(pieces, x._layout, x.shape, dtype=x.dtype, strides=x.stride())


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
