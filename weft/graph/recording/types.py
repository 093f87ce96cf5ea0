"""`TensorType` and `BufferType`: what is known of a value before it exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch

from ...sharding.dims import Dim, DimLike, Shape, ShapeLike
from ...sharding.dtype import DType, DTypeLike
from .device_ref import DeviceLike, DeviceRef

__all__ = ["BufferType", "DTypeLike", "TensorType", "short_dtype", "torch_dtype"]


def torch_dtype(dtype: DTypeLike) -> torch.dtype:
    """The torch dtype that a dtype or its name stands for.

    >>> torch_dtype("float32"), torch_dtype("i8"), torch_dtype(torch.int8)
    (torch.float32, torch.int8, torch.int8)
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, DType.of(dtype).name)
    assert isinstance(found, torch.dtype)
    return found


def short_dtype(dtype: torch.dtype) -> str:
    """A dtype in a few letters.

    >>> short_dtype(torch.float32), short_dtype(torch.bfloat16), short_dtype(torch.bool)
    ('f32', 'bf16', 'bool')
    """
    return DType.of(dtype).short


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Type:
    """The dtype, the shape and the device that tensors and buffers both have."""

    dtype: torch.dtype
    shape: Shape
    device: DeviceRef

    def __init__(self, dtype: DTypeLike, shape: ShapeLike, device: DeviceLike = DeviceRef.CPU()) -> None:  # noqa: B008
        object.__setattr__(self, "dtype", torch_dtype(dtype))
        object.__setattr__(self, "shape", Shape(shape))
        object.__setattr__(self, "device", DeviceRef.of(device))
        for dim in self.shape:
            if dim.is_static and int(dim) < 0:
                raise ValueError(f"the size of a dim is 0 or more, but got {dim} in {self.shape}")

    @property
    def rank(self) -> int:
        """How many dims there are."""
        return len(self.shape)

    def num_elements(self) -> Dim:
        """How many elements there are."""
        return self.shape.numel()

    def num_bytes(self) -> Dim:
        """How many bytes the elements take."""
        return self.shape.numel() * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype}, {self.shape!r}, {self.device!r})"

    def __str__(self) -> str:
        return f"{short_dtype(self.dtype)}{self.shape} on {self.device}"


@final
class TensorType(_Type):
    """The type of a tensor: its dtype, its shape (numbers, names or arithmetic on names) and its device.

    >>> kind = TensorType("float32", ["batch", 128], DeviceRef.CPU())
    >>> kind.rank, str(kind), str(kind.num_bytes())
    (2, 'f32[batch, 128] on cpu:0', 'batch * 512')
    """

    __slots__ = ()

    def cast(self, dtype: DTypeLike) -> TensorType:
        """The same type with another dtype.

        >>> str(TensorType("float32", [2]).cast("int8"))
        'i8[2] on cpu:0'
        """
        return TensorType(dtype, self.shape, self.device)

    def on(self, device: DeviceLike) -> TensorType:
        """The same type on another device.

        >>> str(TensorType("float32", [2]).on(DeviceRef.GPU(1)))
        'f32[2] on gpu:1'
        """
        return TensorType(self.dtype, self.shape, device)

    def shaped(self, shape: ShapeLike) -> TensorType:
        """The same type with another shape.

        >>> str(TensorType("float32", [2]).shaped([3, "n"]))
        'f32[3, n] on cpu:0'
        """
        return TensorType(self.dtype, shape, self.device)

    def resized(self, dim: int, size: DimLike) -> TensorType:
        """The same type with another size of one dim, counted from the front.

        >>> str(TensorType("float32", [2, 3]).resized(1, "n"))
        'f32[2, n] on cpu:0'
        """
        return self.shaped([*self.shape[:dim], size, *self.shape[dim + 1 :]])

    def subs(self, values: Mapping[str, DimLike]) -> TensorType:
        """The same type with names replaced by sizes.

        >>> str(TensorType("float32", ["batch"]).subs({"batch": 8}))
        'f32[8] on cpu:0'
        """
        return TensorType(self.dtype, self.shape.subs(values), self.device)

    def as_buffer(self) -> BufferType:
        """The type of a buffer that holds such a tensor.

        >>> TensorType("float32", [2]).as_buffer()
        BufferType(torch.float32, Shape([2]), DeviceRef.CPU(0))
        """
        return BufferType(self.dtype, self.shape, self.device)


@final
class BufferType(_Type):
    """The type of a buffer: memory that a graph reads and writes in place.

    >>> BufferType("uint8", [64], DeviceRef.CPU(1)).as_tensor()
    TensorType(torch.uint8, Shape([64]), DeviceRef.CPU(1))
    """

    __slots__ = ()

    def as_tensor(self) -> TensorType:
        """The type of what the buffer holds.

        >>> str(BufferType("float32", [2]).as_tensor())
        'f32[2] on cpu:0'
        """
        return TensorType(self.dtype, self.shape, self.device)
