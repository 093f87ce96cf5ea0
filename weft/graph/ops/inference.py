"""What ops have in common: on which device, in which dtype and in which shape a result is."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias

import torch

from ...caches import cached
from ...sharding.dims import Dim, Shape
from ..recording.device_ref import DeviceRef
from ..recording.errors import AxisError
from ..recording.op import Argument, Kernel, Op
from ..recording.values import TensorValue

__all__ = ["broadcast_shape", "checked_axis", "common_device", "listed", "result_dtype"]

Signature: TypeAlias = tuple[tuple[torch.dtype, bool] | type, ...]
"""For each operand its dtype and whether it has dims, or the type of a plain number."""


def listed(values: Iterable[object]) -> str:
    """Values in a row, with commas."""
    return ", ".join(map(str, values))


def checked_axis(axis: int, rank: int, what: str) -> int:
    """A tensor dim counted from the front, or `AxisError` where there is none.

    >>> checked_axis(-1, 3, "softmax")
    2
    """
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"{what} takes a whole number as axis, but got {axis!r}")
    if not -rank <= axis < rank:
        rule = f"-{rank} <= axis < {rank}" if rank else "a tensor of rank 0 has none"
        raise AxisError(f"{what}: axis {axis} is out of range for a tensor of rank {rank}: {rule}")
    return axis % rank


def common_device(values: Sequence[TensorValue], what: str) -> DeviceRef:
    """The one device that all values are on."""
    device = values[0].device
    for value in values[1:]:
        if value.device != device:
            raise ValueError(
                f"{what} computes on one device, but {values[0].name} is on {device} and {value.name} is on {value.device}: "
                f"move one, for instance {value.name}.to({device!r})"
            )
    return device


def broadcast_shape(shapes: Sequence[Shape], what: str) -> Shape:
    """The shape that all shapes stretch to, as in torch: dims are equal or 1, counted from the back.

    >>> from weft.graph import Shape
    >>> broadcast_shape([Shape(["batch", 1, 4]), Shape([3, 1])], "add")
    Shape(['batch', 3, 4])
    """
    rank = max(map(len, shapes))
    return Shape([_stretched([s[i - rank] for s in shapes if len(s) >= rank - i], shapes, what) for i in range(rank)])


def _stretched(dims: list[Dim], shapes: Sequence[Shape], what: str) -> Dim:
    wide = dict.fromkeys(dim for dim in dims if dim != 1)
    if len(wide) > 1:
        both = " and ".join(map(str, wide))
        fix = (
            "make them equal, or 1"
            if all(dim.is_static for dim in wide)
            else "if they are the same, say so with x.rebind(shape)"
        )
        raise ValueError(f"{what} cannot match the shapes {listed(shapes)}: the sizes {both} differ; {fix}")
    return next(iter(wide), dims[0])


def result_dtype(op: Op, operands: Sequence[Argument], *, settings: tuple[Hashable, ...] = ()) -> torch.dtype:
    """The dtype that torch would give the result; `settings` are further arguments that fit a tensor of rank 1."""
    signature = tuple(
        (operand.dtype, operand.rank > 0) if isinstance(operand, TensorValue) else type(operand) for operand in operands
    )
    try:
        return _tried_dtype(op.kernel, signature, settings)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        kinds = listed(f"{o.dtype}" if isinstance(o, TensorValue) else repr(o) for o in operands)
        raise TypeError(f"{op.name} does not take {kinds}: {str(error).splitlines()[0]}") from error


@cached(4096)
def _tried_dtype(kernel: Kernel, signature: Signature, settings: tuple[Hashable, ...]) -> torch.dtype:
    # Torch's own rules are asked, on tensors that have no memory.
    operands = [
        operand(1)
        if isinstance(operand, type)
        else torch.empty((1,) if operand[1] else (), dtype=operand[0], device="meta")
        for operand in signature
    ]
    result = kernel(*operands, *settings)
    assert isinstance(result, torch.Tensor)
    return result.dtype
