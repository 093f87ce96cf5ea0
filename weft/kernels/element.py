"""Elements: how a dtype is read, added up and written by a reduction, and which reductions it has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

__all__ = ["REDUCTIONS", "Element", "element", "word"]

REDUCTIONS: tuple[str, ...] = ("sum", "mean", "max", "min", "prod")
"""The kinds of reduction.

>>> REDUCTIONS
('sum', 'mean', 'max', 'min', 'prod')
"""


@dataclass(frozen=True, slots=True)
class Element:
    """The Triton type of an element, the type it is added up in, and its size in bytes.

    >>> element("x", torch.bfloat16, "sum").size
    2
    """

    type: tl.dtype
    total: tl.dtype
    size: int


_FLOATS = {
    torch.float64: Element(tl.float64, tl.float64, 8),
    torch.float32: Element(tl.float32, tl.float32, 4),
    torch.float16: Element(tl.float16, tl.float32, 2),
    torch.bfloat16: Element(tl.bfloat16, tl.float32, 2),
}
_WHOLES = {
    torch.int64: Element(tl.int64, tl.int64, 8),
    torch.int32: Element(tl.int32, tl.int32, 4),
    torch.int16: Element(tl.int16, tl.int16, 2),
    torch.int8: Element(tl.int8, tl.int8, 1),
    torch.uint64: Element(tl.uint64, tl.uint64, 8),
    torch.uint32: Element(tl.uint32, tl.uint32, 4),
    torch.uint16: Element(tl.uint16, tl.uint16, 2),
    torch.uint8: Element(tl.uint8, tl.uint8, 1),
}
# Complex tensors are reduced as pairs of reals.
_COMPLEX = {
    torch.complex128: _FLOATS[torch.float64],
    torch.complex64: _FLOATS[torch.float32],
    torch.complex32: _FLOATS[torch.float16],
}
_TRUTHS = {torch.bool: Element(tl.int8, tl.int8, 1)}

_TABLE = (
    (_FLOATS, REDUCTIONS),
    (_WHOLES, ("sum", "max", "min", "prod")),
    (_COMPLEX, ("sum", "mean")),
    (_TRUTHS, ("max", "min", "prod")),
)
_WORDS = {size: Element(kind, kind, size) for size, kind in ((1, tl.int8), (2, tl.int16), (4, tl.int32), (8, tl.int64))}


def element(name: str, dtype: torch.dtype, reduce_op: str) -> Element:
    """The element that reduces tensors of `dtype` by `reduce_op`.

    >>> element("all_reduce", torch.int32, "mean")
    Traceback (most recent call last):
    ValueError: all_reduce: torch.int32 has no 'mean'. It has 'sum', 'max', 'min', 'prod': convert to a dtype that has it.
    """
    if reduce_op not in REDUCTIONS:
        raise ValueError(f"{name}: reduce_op is one of {_listed(REDUCTIONS)}, but got {reduce_op!r}.")
    for kinds, reductions in _TABLE:
        if dtype in kinds:
            if reduce_op not in reductions:
                raise ValueError(
                    f"{name}: {dtype} has no {reduce_op!r}. It has {_listed(reductions)}: convert to a dtype that has it."
                )
            return kinds[dtype]
    known = ", ".join(str(dtype) for kinds, _ in _TABLE for dtype in kinds)
    raise ValueError(f"{name}: {dtype} tensors are moved but not reduced. Convert to one of {known}.")


def word(unit: int) -> Element:
    """The widest word for moving bytes that lie at multiples of `unit` bytes.

    >>> word(16).size, word(2).size
    (8, 2)
    """
    return _WORDS[min(unit, 8)]


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)
