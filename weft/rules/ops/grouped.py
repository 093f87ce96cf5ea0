"""Products by groups: rows that stand group by group, each times the matrix of its group. `offs` says where groups end.

s k, e k n, e -> s n      rows by matrices
e m k, k s, e -> m s      matrices by columns
m s, s n, e -> e m n      a product for each group: rows that are split leave a sum pending
e m k, e k n -> e m n     all groups of one size

Groups are whole here, and rows may be split. `weft.handlers.ragged.grouped_products` splits groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..call import BoundCall
from ..factors import Factors, parse
from ..registry import Region, Rule, Spec, rules

__all__ = ["grouped_product"]

aten = torch.ops.aten

_FORMS = {
    (2, 3): (parse("s k, e! k n, e -> s n"), 0, 0),
    (3, 2): (parse("e! m k, k s, e -> m s"), 1, 1),
    (2, 2): (parse("m s, s n, e! -> e m n"), 0, 1),
}
"""By the dims of both: the row, and of which factor which dim the rows stand along."""


def _form(call: BoundCall) -> tuple[int, int]:
    return call.tensor("self").dim(), call.tensor("mat2").dim()


def _factors(call: BoundCall) -> Factors | None:
    shapes = [x.shape for x in call.tensors]
    if _form(call) == (3, 3):
        return parse("e m k, e k n -> e m n").meet(shapes, linear="each") if len(shapes) == 2 else None
    if call.optional("offs") is None or call.optional("bias") is not None or 0 in (size for s in shapes for size in s):
        return None
    notation, _, _ = _FORMS[_form(call)]
    return notation.meet(shapes, linear=0)


def _local(call: BoundCall, given: Sequence[Region], _made: Sequence[Region]) -> object:
    """Groups end elsewhere among the rows of one device."""
    if _form(call) == (3, 3):
        return call()
    _, at, dim = _FORMS[_form(call)]
    start, stop = given[at].box[dim]
    call = call.replaced(offs=(call.tensor("offs") - start).clamp(0, stop - start))
    # A compiler does not know how many rows there are: it takes the op as it is.
    return grouped_product(call) if type(call.tensor("self")) is torch.Tensor else call()


def grouped_product(call: BoundCall) -> torch.Tensor:
    """The product on one device, which may have no rows, or no groups; rows of no group are zeros."""
    first, second, ends = call.tensor("self"), call.tensor("mat2"), call.tensor("offs")
    call = call.replaced(offs=ends.to(first.device))
    if first.dtype not in _TAKEN:
        return call.result()  # torch refuses it
    if not (ends.numel() and first.numel() and second.numel() and _is_aligned(first, second)):
        return _one_by_one(first, second, ends.tolist(), call.dtype("out_dtype") or first.dtype)
    result = call.result()
    if result.dim() == 2:
        dim, used = 0 if first.dim() == 2 else 1, int(ends[-1])
        result.narrow(dim, used, result.shape[dim] - used).zero_()
    return result


_TAKEN = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNMENT = 16
"""What the bytes between rows have to be a multiple of for torch's kernels."""


def _is_aligned(*tensors: torch.Tensor) -> bool:
    """Whether kernels take the strides of some tensors: of the last two dims one lies dense, and the other aligned."""
    for x in tensors:
        dense, step = sorted(x.stride()[-2:])
        if dense != 1 or step == 1 or step * x.itemsize % _ALIGNMENT or x.data_ptr() % _ALIGNMENT:
            return False
    return True


def _one_by_one(first: torch.Tensor, second: torch.Tensor, ends: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The product group by group, for pieces that torch's kernels do not take."""
    starts = [0, *ends[:-1]] if ends else []
    if first.dim() == second.dim() == 2:
        result = first.new_zeros((len(ends), first.shape[0], second.shape[1]), dtype=dtype)
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            result[group] = first[:, start:end] @ second[start:end]
    elif first.dim() == 2:
        result = first.new_zeros((first.shape[0], second.shape[2]), dtype=dtype)
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            result[start:end] = first[start:end] @ second[group]
    else:
        result = first.new_zeros((first.shape[1], second.shape[1]), dtype=dtype)
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            result[:, start:end] = first[group] @ second[:, start:end]
    return result


def _results(call: BoundCall) -> tuple[Spec, ...]:
    """Its rows are padded to what kernels take; torch's account of it knows one dtype only."""
    first, second = call.tensor("self"), call.tensor("mat2")
    shape: tuple[int, ...] = (first.shape[-2], second.shape[-1])
    if first.dim() == second.dim():
        groups = call.optional("offs")
        shape = (first.shape[0] if groups is None else groups.shape[0], *shape)
    dtype = call.dtype("out_dtype") or first.dtype
    step = _ALIGNMENT // dtype.itemsize
    row = -(-shape[-1] // step) * step
    return (Spec(shape, dtype, (shape[-2] * row, row, 1)[-len(shape) :]),)


rules[aten._grouped_mm.default] = Rule(_factors, local=_local, results=_results)
