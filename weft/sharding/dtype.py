"""`DType`: the element types, by name and size, for layers that do not know torch."""

from __future__ import annotations

import builtins
from enum import Enum
from typing import Protocol

__all__ = ["DType", "DTypeLike"]


class DType(Enum):
    """An element type. Each has torch's name, a short name and a size.

    >>> DType.of("f32"), DType.float32.itemsize, DType.bfloat16.short
    (DType.float32, 4, 'bf16')
    """

    bool = "bool", 1
    uint8 = "u8", 1
    uint16 = "u16", 2
    uint32 = "u32", 4
    uint64 = "u64", 8
    int8 = "i8", 1
    int16 = "i16", 2
    int32 = "i32", 4
    int64 = "i64", 8
    float8_e4m3fn = "f8_e4m3fn", 1
    float8_e4m3fnuz = "f8_e4m3fnuz", 1
    float8_e5m2 = "f8_e5m2", 1
    float8_e5m2fnuz = "f8_e5m2fnuz", 1
    float8_e8m0fnu = "f8_e8m0fnu", 1
    float16 = "f16", 2
    bfloat16 = "bf16", 2
    float32 = "f32", 4
    float64 = "f64", 8
    complex32 = "c32", 4
    complex64 = "c64", 8
    complex128 = "c128", 16

    @classmethod
    def of(cls, dtype: DTypeLike) -> DType:
        """The element type of that name, long or short; a torch or NumPy dtype says its own name.

        >>> DType.of("bfloat16"), DType.of("i64"), DType.of("torch.bool")
        (DType.bfloat16, DType.int64, DType.bool)
        """
        if isinstance(dtype, DType):
            return dtype
        found = _BY_NAME.get(_name(dtype))
        if found is None:
            known = ", ".join(member.name for member in cls)
            raise TypeError(f"unknown dtype {dtype!r}: use one of {known}, or a short name such as 'f32'")
        return found

    @property
    def short(self) -> str:
        """The name in a few letters.

        >>> DType.float32.short, DType.bool.short
        ('f32', 'bool')
        """
        return self.value[0]

    @property
    def itemsize(self) -> int:
        """How many bytes one element takes.

        >>> DType.float16.itemsize
        2
        """
        return self.value[1]

    @property
    def is_floating_point(self) -> builtins.bool:
        """Whether elements are real numbers with a floating point.

        >>> DType.bfloat16.is_floating_point, DType.complex64.is_floating_point
        (True, False)
        """
        return self.short.startswith(("f", "bf"))

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __str__(self) -> str:
        return self.name


class ForeignDType(Protocol):
    """A dtype of torch or NumPy, told apart from other objects by where it comes from.

    >>> DType.of(8)
    Traceback (most recent call last):
    TypeError: unknown dtype 8: ...
    """

    @property
    def itemsize(self) -> int:
        """How many bytes one element takes."""


DTypeLike = DType | str | ForeignDType
"""What stands for an element type: a `DType`, its name, or a dtype of torch or NumPy."""

_BY_NAME = {name: member for member in DType for name in (member.name, member.short)}


def _name(dtype: object) -> str:
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    # Asked by where it comes from, since importing torch or NumPy only to compare types would cost every user seconds.
    home = (dtype.__module__ if isinstance(dtype, type) else type(dtype).__module__).split(".")[0]
    if home not in ("torch", "numpy"):
        return ""
    return dtype.__name__.rstrip("_") if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
