"""Overlaps: writes that torch refuses because what is read is partly what is written to, wherever devices hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import torch

from ...rules.call import Op
from ...runtime.strides import Strides, is_dense
from ..op_kind import is_elementwise
from ..sharded import ShardedTensor

__all__ = [
    "Lying",
    "copies_first",
    "is_named",
    "is_shaped_first",
    "lie_apart",
    "named_alike",
    "parted",
    "read_beside",
    "refuse_overlaps",
    "refusing_overlaps",
    "share_memory",
    "shown_memory",
]

aten = torch.ops.aten
_APART = {
    aten.cat.out,
    aten.cross.out,
    aten.gather.out,
    aten.index.Tensor_out,
    aten.index_add_.default,
    aten.index_copy_.default,
    aten.index_put_.default,
    aten.index_reduce_.default,
    aten.index_select.out,
    aten.kthvalue.values,
    aten.linalg_cross.out,
    aten.masked_select.out,
    aten.put_.default,
    aten.scatter.reduce_out,
    aten.scatter.src_out,
    aten.scatter.value_out,
    aten.scatter.value_reduce_out,
    aten.scatter_add.out,
    aten.scatter_reduce.two_out,
    aten.scatter_.src,
    aten.scatter_.reduce,
    aten.scatter_.value,
    aten.scatter_.value_reduce,
    aten.scatter_add_.default,
    aten.scatter_reduce_.two,
    aten.stack.out,
    aten.take.out,
}
"""Ops that read nothing of what they write to."""
_IN_STEP = {
    aten.addr.out, aten.addr_.default, aten.aminmax.out, aten.copy_.default, aten.cumprod.out, aten.cumsum.out, aten.gelu.out,
    aten.hardtanh.out, aten.logcumsumexp.out, aten.max.dim_max, aten.min.dim_min, aten.mode.values, aten.mse_loss.out,
    aten.renorm.out, aten.softplus.out, aten.sort.values, aten.sort.values_stable, aten.topk.values, aten.where.self_out,
}  # fmt: skip
"""Ops that read all of what they write to, place by place, or nothing of it, as elementwise ones do."""
_SHAPED_FIRST = {
    aten.aminmax.out, aten.cat.out, aten.cumprod.out, aten.cumsum.out, aten.gather.out, aten.logcumsumexp.out, aten.max.dim_max,
    aten.min.dim_min, aten.mode.values, aten.renorm.out, aten.sort.values, aten.sort.values_stable, aten.stack.out, aten.topk.values,
}  # fmt: skip
"""Ops whose `out` gets its shape before torch looks."""
_COPYING_FIRST = {
    aten.scatter.reduce_out, aten.scatter.src_out, aten.scatter.value_out, aten.scatter.value_reduce_out, aten.scatter_add.out,
    aten.scatter_reduce.two_out,
}  # fmt: skip
"""Ops that copy their first argument to `out`, if it is not that, and go on from there."""


_LEFT_OUT: dict[Op, Callable[[torch.Tensor], bool]] = {
    aten.cat.out: lambda x: x.shape == (0,),
    aten.stack.out: lambda x: not x.numel(),
}
"""Which of the tensors that they join torch does not look at, where one of them is `out`."""


Lying = tuple[tuple[int, ...], Strides]
"""A shape and strides."""


def refuse_overlaps(func: Op, written: torch.Tensor, read: Iterable[torch.Tensor], lying: Lying | None = None) -> bool:
    """Raises where torch would for whole tensors: what an op reads beside it is in part what it writes to, or at all.

    Gives whether some of it is all of what is written to, by another name, or shares its memory in an op that reads nothing of that:
    torch lets both through, and may not where pieces lie otherwise. `lying`: the shape and the strides that what is written to
    is given first, where it has another shape.
    """
    refuse = refusing_overlaps(func)
    return refuse is not None and refuse(written, read, lying)


def is_shaped_first(func: Op) -> bool:
    """Whether `out` gets the shape of the result before torch looks what it shares."""
    return func in _SHAPED_FIRST


def copies_first(func: Op) -> bool:
    """Whether an op copies its first argument to `out`, and reads nothing else of what it writes to."""
    return func in _COPYING_FIRST


class Refuse(Protocol):
    """What raises for what is written to and what is read; see `refuse_overlaps`."""

    def __call__(self, written: torch.Tensor, read: Iterable[torch.Tensor], lying: Lying | None = None) -> bool: ...


def refusing_overlaps(func: Op) -> Refuse | None:
    """What raises there in calls of one op; None for an op that torch lets write to what it reads."""
    is_apart = func in _APART
    is_in_step = func in _IN_STEP or is_elementwise(func) or func.name().startswith("aten::_foreach_")
    if not is_apart and not is_in_step:
        return None
    return partial(_refuse, is_apart, _LEFT_OUT.get(func, _nothing))


def _nothing(_: torch.Tensor) -> bool:
    return False


def _refuse(
    is_apart: bool,
    leaves_out: Callable[[torch.Tensor], bool],
    written: torch.Tensor,
    read: Iterable[torch.Tensor],
    lying: Lying | None = None,
) -> bool:
    found = False
    for x in read:
        is_shared = x is not written and share_memory(written, x)
        if (is_shared and _overlap(written, x, is_apart, lying)) or (is_apart and x is written and not leaves_out(x)):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )
        found |= is_shared and (is_apart or _is_renamed(written, x))
    return found


def _is_renamed(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether what is read is all of what is written to, by another name: its pieces may lie otherwise in dims of size 1."""
    return (
        read is not written
        and written.dtype is read.dtype
        and _long_dims(written.shape, written.stride()) == _long_dims(read.shape, read.stride())
        and share_memory(written, read)
        and int(written.storage_offset()) == int(read.storage_offset())
        and (written.is_conj(), written.is_neg()) == (read.is_conj(), read.is_neg())
    )


def _long_dims(shape: Sequence[int], strides: Strides) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]


def named_alike(written: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """What is read, where that is all of what is written to: by the same name, or in memory of its own where it has other dims."""
    if not _is_renamed(written, read):
        return read
    return written if written.shape == read.shape else read.clone()


def read_beside(func: Op, written: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """What an op reads beside what it writes to: in memory of its own, or all of that by the same name."""
    return parted(written, read) if func in _APART else named_alike(written, read)


def is_named(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether both are one tensor or the same view of one: by names, as processes tell too that have none of its memory."""
    roots = [x._base if x._is_view() else x for x in (written, read)]
    return written is read or (
        roots[0] is roots[1]
        and not (isinstance(roots[0], ShardedTensor) and roots[0]._value.has_other_views)
        and (written.dtype, written.shape, written.stride()) == (read.dtype, read.shape, read.stride())
        and int(written.storage_offset()) == int(read.storage_offset())
        and (written.is_conj(), written.is_neg()) == (read.is_conj(), read.is_neg())
    )


def parted(written: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """What is read, in memory of its own where it has that of what is written to: torch may refuse for parts of both."""
    if read is written or not share_memory(written, read):
        return read
    if isinstance(read, ShardedTensor) and read._value.is_put_off:
        _ = read._value.pieces  # what is written to has it sent too, and a copy would be sent beside it
    return read.clone()


def lie_apart(x: ShardedTensor, y: torch.Tensor) -> bool:
    """Whether two tensors have memory of their own, where that is told at once: nothing is shown, on its way, or known as a whole."""
    if type(y) is not ShardedTensor.final:
        return False
    one, other = x._value, y._value
    if one.shown or other.shown or one.source or other.source or one.total or other.total:
        return False
    first, second = one.pieces, other.pieces
    return bool(first and second) and first[0].untyped_storage()._cdata != second[0].untyped_storage()._cdata


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors would have some of one memory if they were whole."""
    if not isinstance(x, ShardedTensor) or not isinstance(y, ShardedTensor) or shown_memory(x) != shown_memory(y):
        return False
    return bool(x.numel() and y.numel())


def _overlap(x: torch.Tensor, y: torch.Tensor, is_apart: bool, lying: Lying | None) -> bool:
    """As torch tells for tensors that lie in one memory without gaps; for others it is too hard, and they are let through.

    `lying`: how the first lies by then, where it has another shape.
    """
    size, strides = (tuple(x.shape), x.stride()) if lying is None or lying[0] == x.shape else lying
    if not is_dense(size, strides) or not is_dense(tuple(y.shape), y.stride()):
        return False
    start, other = int(x.storage_offset()) * x.itemsize, int(y.storage_offset()) * y.itemsize
    stop, other_stop = start + math.prod(size) * x.itemsize, other + y.numel() * y.itemsize
    if (start, stop) == (other, other_stop):
        if lying is None or lying[0] == x.shape:
            return is_apart or strides != y.stride()
        return is_apart or _long_dims(size, strides) != _long_dims(y.shape, y.stride())  # new ones of size 1 may be any
    return start < other_stop and other < stop


def shown_memory(x: ShardedTensor) -> int:
    """What tells which memory a tensor would have if it were whole: that of what it shows in the end."""
    value = x._value
    while (shown := value.shown) is not None:
        x = shown.base.tensor
        value = x._value
    if value.is_put_off:
        return _memory_of_base(x) if value.is_read_late else id(x)  # what it will have is new
    total = value.total
    if total is not None and not total.written[0]:
        first: torch.Tensor | None = total.value
    else:
        if not value.pieces:  # a process that has none of it tells by names what others tell by their memory
            return _memory_of_base(x)
        first = value.pieces[0]
    return id(x) if first is None or first.is_meta else first.untyped_storage()._cdata


def _memory_of_base(x: ShardedTensor) -> int:
    """The same of what torch says that a tensor is a view of."""
    base = x._base if x._is_view() else None
    return shown_memory(base) if isinstance(base, ShardedTensor) else id(x)
