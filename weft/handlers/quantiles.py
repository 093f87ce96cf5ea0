"""Quantiles that there are not: refused, as by plain torch.

Torch says them by other ops, and looks at no value of `q` where a tensor is more than a plain one. What comes here is the op itself,
at the first stop of such tensors: `q` is looked at where it lies, so that nothing has moved for a call that is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..engine.moves.resolving import resolve
from ..engine.sharded import ShardedTensor
from ..engine.views.copy_views import current
from ..rules.call import Op
from ..runtime.processes import world
from ..runtime.processes.agreement.faults import fault_of_any
from ..runtime.processes.mesh_processes import owners_of, spans
from ..runtime.traced import is_traced

aten = torch.ops.aten
Keys = torch._C.DispatchKeySet

_FIRST = torch._C.DispatchKey.PythonTLSSnapshot
_NEXT = torch._C._dispatch_keyset_full_after(_FIRST)


def _looked_at(op: Op, refused: Op) -> Callable[..., object]:
    """A kernel of an op, or of its form with `out=`, which looks at `q` first; `refused` says what is wrong with a call."""

    def kernel(keys: Keys, x: torch.Tensor, q: torch.Tensor, *args: object, **kwargs: object) -> object:
        if _is_outside(x, q):
            # Torch says which of several faults it names: of tensors as small as they can be.
            least, beyond = (
                torch.zeros([min(n, 1) for n in x.shape], dtype=x.dtype),
                torch.full(q.shape, 2.0, dtype=q.dtype),
            )
            refused(least, beyond, *args, **{name: value for name, value in kwargs.items() if name != "out"})
        return op.redispatch(keys & _NEXT, x, q, *args, **kwargs)

    return kernel


def _is_outside(x: torch.Tensor, q: torch.Tensor) -> bool:
    """Whether `q` is not between 0 and 1: the same answer in all processes. On accelerators torch does not look."""
    if not isinstance(x, ShardedTensor) and not isinstance(q, ShardedTensor):
        return False  # other tensors that are more than plain ones
    if x.device.type != "cpu" or q.device.type != "cpu" or not q.is_floating_point() or is_traced():
        return False
    if not isinstance(q, ShardedTensor):
        return _has_outside(q.detach())
    q = resolve(q, "aten.quantile.default") if q._layout.pending else q
    is_found = any(map(_has_outside, current(q)))
    if q._layout.split_axes and spans(q.mesh) and world.current().process in owners_of(q.mesh):
        return bool(fault_of_any("outside" if is_found else "", owners_of(q.mesh)))
    return is_found


def _has_outside(q: torch.Tensor) -> bool:
    return not (q.is_meta or bool(((q >= 0) & (q <= 1)).all()))


_library = torch.library.Library("aten", "IMPL")
for _packet in (aten.quantile, aten.nanquantile):
    for _op in (_packet.default, _packet.out):
        _library.impl(_op, _looked_at(_op, _packet.default), _FIRST.name, with_keyset=True)
