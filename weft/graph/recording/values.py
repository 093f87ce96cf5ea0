"""`TensorValue` and `BufferValue`: what a graph's operations take and give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, NoReturn, Protocol, SupportsFloat, TypeAlias, TypeVar, cast, final, runtime_checkable

import torch
from torch import fx

from ...sharding.dims import Dim, Shape, ShapeLike
from .device_ref import DeviceLike, DeviceRef
from .types import BufferType, DTypeLike, TensorType

if TYPE_CHECKING:
    from .graph import Graph

__all__ = [
    "BufferValue",
    "DLPackArray",
    "GraphValue",
    "HasBufferValue",
    "HasTensorValue",
    "Index",
    "TensorLike",
    "TensorValue",
    "operation",
]

_F = TypeVar("_F", bound=Callable[..., "TensorValue | None"])

OPERATIONS: dict[str, Callable[..., TensorValue]] = {}
"""What the operators and methods of `TensorValue` call: filled by `weft.graph.ops`, which stands above this module.

Bound: the operators there are. Cleared: never.
"""


def operation(function: _F) -> _F:
    """Make a function what the operator or method of the same name calls."""
    OPERATIONS[function.__name__] = cast("Callable[..., TensorValue]", function)
    return function


class GraphValue:
    """Something that a graph computes or is given; it exists when the graph runs."""

    __slots__ = ("graph", "node")

    graph: Graph
    node: fx.Node

    def __init__(self, graph: Graph, node: fx.Node) -> None:
        self.graph = graph
        self.node = node

    @property
    def name(self) -> str:
        """The value's name in the printed graph."""
        return self.node.name

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self!r} has no truth before the graph runs: use ops.where(condition, a, b)")

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be looped over before the graph runs: use ops.split or an index")

    def __float__(self) -> NoReturn:
        raise TypeError(f"{self!r} is no number before the graph runs: compute with it by ops, or make it an output")

    __int__ = __index__ = __complex__ = __float__


@runtime_checkable
class HasTensorValue(Protocol):
    """Anything that can give a `TensorValue` of itself.

    >>> class Weight:
    ...     def __tensorvalue__(self): ...
    >>> isinstance(Weight(), HasTensorValue)
    True
    """

    def __tensorvalue__(self) -> TensorValue: ...


@runtime_checkable
class HasBufferValue(Protocol):
    """Anything that can give a `BufferValue` of itself.

    >>> isinstance(3, HasBufferValue)
    False
    """

    def __buffervalue__(self) -> BufferValue: ...


@runtime_checkable
class DLPackArray(Protocol):
    """Any array that speaks DLPack, for instance of torch or NumPy.

    >>> isinstance(torch.zeros(2), DLPackArray)
    True
    """

    def __dlpack__(self) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class TypedValue(GraphValue):
    """A value whose type is known: where it lies, its element type and its sizes."""

    __slots__ = ("type",)

    type: TensorType | BufferType

    def __init__(self, graph: Graph, node: fx.Node, type: TensorType | BufferType) -> None:  # noqa: A002 - as the attribute
        super().__init__(graph, node)
        self.type = type

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The sizes, as numbers, names or arithmetic on names."""
        return self.type.shape

    @property
    def device(self) -> DeviceRef:
        """Where the value lies, or will lie."""
        return self.type.device

    @property
    def rank(self) -> int:
        """How many dims there are."""
        return self.type.rank


@final
class TensorValue(TypedValue):
    """A tensor of the graph: immutable, with a type, with torch's operators.

    >>> from weft.graph import Graph
    >>> with Graph("double", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     x = graph.inputs[0]
    ...     (x * 2)[:, 0]
    TensorValue(select: f32[batch] on cpu:0)
    """

    __slots__ = ()

    type: TensorType

    @property
    def T(self) -> TensorValue:  # noqa: N802 - torch's name
        """The value with its last two dims swapped."""
        return OPERATIONS["transpose"](self, -1, -2)

    def to(self, device: DeviceLike) -> TensorValue:
        """The same value on another device."""
        return OPERATIONS["transfer_to"](self, device)

    def cast(self, dtype: DTypeLike) -> TensorValue:
        """The same values in another dtype."""
        return OPERATIONS["cast"](self, dtype)

    def reshape(self, shape: ShapeLike) -> TensorValue:
        """The same elements in another shape; one size may be -1."""
        return OPERATIONS["reshape"](self, shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> TensorValue:
        """Neighbouring dims made one."""
        return OPERATIONS["flatten"](self, start_dim, end_dim)

    def transpose(self, dim_1: int, dim_2: int) -> TensorValue:
        """The value with two dims swapped."""
        return OPERATIONS["transpose"](self, dim_1, dim_2)

    def permute(self, dims: Sequence[int]) -> TensorValue:
        """The value with its dims in another order."""
        return OPERATIONS["permute"](self, dims)

    def broadcast_to(self, shape: ShapeLike) -> TensorValue:
        """The value repeated to a shape."""
        return OPERATIONS["broadcast_to"](self, shape)

    def rebind(self, shape: ShapeLike) -> TensorValue:
        """The same value, its dims called otherwise; that the sizes agree is checked when the graph runs."""
        return OPERATIONS["rebind"](self, shape)

    def sum(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> TensorValue:
        """The sum over dims, all of them unless told."""
        return OPERATIONS["sum"](self, axis, keepdims=keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> TensorValue:
        """The mean over dims, all of them unless told."""
        return OPERATIONS["mean"](self, axis, keepdims=keepdims)

    def max(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> TensorValue:
        """The largest over dims, all of them unless told."""
        return OPERATIONS["max"](self, axis, keepdims=keepdims)

    def min(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> TensorValue:
        """The smallest over dims, all of them unless told."""
        return OPERATIONS["min"](self, axis, keepdims=keepdims)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> TensorValue:
        return OPERATIONS["slice_tensor"](self, index)

    def __setitem__(self, index: Index | tuple[Index, ...], value: TensorLike) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be written to: use ops.where or ops.put_along, or make it a buffer (BufferType)"
        )

    def __add__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["add"](self, other)

    def __radd__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["add"](other, self)

    def __sub__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["sub"](self, other)

    def __rsub__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["sub"](other, self)

    def __mul__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["mul"](self, other)

    def __rmul__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["mul"](other, self)

    def __truediv__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["div"](self, other)

    def __rtruediv__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["div"](other, self)

    def __floordiv__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["floordiv"](self, other)

    def __rfloordiv__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["floordiv"](other, self)

    def __mod__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["mod"](self, other)

    def __rmod__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["mod"](other, self)

    def __pow__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["pow"](self, other)

    def __rpow__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["pow"](other, self)

    def __matmul__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["matmul"](self, other)

    def __rmatmul__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["matmul"](other, self)

    def __and__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["bitwise_and"](self, other)

    def __or__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["bitwise_or"](self, other)

    def __xor__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["bitwise_xor"](self, other)

    def __invert__(self) -> TensorValue:
        return OPERATIONS["bitwise_not"](self)

    def __neg__(self) -> TensorValue:
        return OPERATIONS["neg"](self)

    def __abs__(self) -> TensorValue:
        return OPERATIONS["abs"](self)

    def __eq__(self, other: TensorLike) -> TensorValue:  # type: ignore[override]  # elementwise, as torch's is
        return OPERATIONS["equal"](self, other)

    def __ne__(self, other: TensorLike) -> TensorValue:  # type: ignore[override]  # elementwise, as torch's is
        return OPERATIONS["not_equal"](self, other)

    def __lt__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["less"](self, other)

    def __le__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["less_equal"](self, other)

    def __gt__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["greater"](self, other)

    def __ge__(self, other: TensorLike) -> TensorValue:
        return OPERATIONS["greater_equal"](self, other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"TensorValue({self.name}: {self.type})"


# NumPy would otherwise take `array + value` apart, element by element.
TensorValue.__array_priority__ = 1000  # type: ignore[attr-defined]
TensorValue.__array_ufunc__ = None  # type: ignore[attr-defined]


@final
class BufferValue(TypedValue):
    """Memory that the graph reads and writes in place; `buffer[...]` reads all, `buffer[...] = x` writes all.

    >>> from weft.graph import Graph
    >>> with Graph("read", input_types=[BufferType("float32", [4])]) as graph:
    ...     graph.inputs[0][...]
    TensorValue(buffer_load: f32[4] on cpu:0)
    """

    __slots__ = ()

    type: BufferType

    def __getitem__(self, index: Index | tuple[Index, ...]) -> TensorValue:
        whole = OPERATIONS["buffer_load"](self)
        return whole if index is ... else whole[index]

    def __setitem__(self, index: Index | tuple[Index, ...], value: TensorLike) -> None:
        OPERATIONS["buffer_store"](self, value, index)

    def __repr__(self) -> str:
        return f"BufferValue({self.name}: {self.type})"


TensorLike: TypeAlias = (
    TensorValue | HasTensorValue | Shape | Dim | int | float | bool | complex | SupportsFloat | DLPackArray
)
"""What stands for a tensor: a value, a shape or dim (as whole numbers), a number, or an array, which become constants."""

Index: TypeAlias = "int | Dim | slice | EllipsisType | TensorValue | None"
"""What stands in the brackets of a value."""
