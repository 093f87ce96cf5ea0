# ruff: noqa: A001 - torch's own names
"""Many elements to one: sums, means, extremes, counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ...sharding.dims import Shape
from ..recording.graph import Graph
from ..recording.op import Kernel, Op
from ..recording.types import TensorType
from ..recording.values import TensorLike, TensorValue, operation
from .inference import checked_axis, result_dtype

_EXAMPLE = """{sentence} The `axis` is a tensor dim or several; all of them unless told.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("{dtype}", ["batch", 4])]) as graph:
    ...     str({name}(graph.inputs[0], axis=-1).type), str({name}(graph.inputs[0], axis=0, keepdims=True).type)
    ('{result}[batch] on cpu:0', '{result}[1, 4] on cpu:0')
    """


class ReductionFunction(Protocol):
    """How a reduction is called."""

    def __call__(
        self, x: TensorLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
    ) -> TensorValue: ...


def reduced_shape(shape: Shape, axes: Sequence[int], *, keepdims: bool) -> Shape:
    """The shape with these dims gone, or 1."""
    if keepdims:
        return Shape([1 if i in axes else dim for i, dim in enumerate(shape)])
    return Shape([dim for i, dim in enumerate(shape) if i not in axes])


def checked_axes(axis: int | Sequence[int] | None, rank: int, what: str) -> tuple[int, ...]:
    """The dims counted from the front, each once, in order."""
    if axis is None:
        return tuple(range(rank))
    axes = [checked_axis(a, rank, what) for a in ((axis,) if isinstance(axis, int) else axis)]
    if len(set(axes)) != len(axes):
        raise ValueError(f"{what}: an axis is named twice in {axis!r}: name each once")
    return tuple(sorted(axes))


def _reduction(
    name: str, kernel: Kernel, sentence: str, dtype: str = "float32", result: str = "f32", *, opaque: bool = False
) -> ReductionFunction:
    op = Op(name, kernel, opaque=opaque)

    def function(x: TensorLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> TensorValue:
        graph = Graph.current()
        value = graph.tensor(x)
        axes = checked_axes(axis, value.rank, name)
        shape = reduced_shape(value.shape, axes, keepdims=keepdims)
        kind = TensorType(result_dtype(op, (value,), settings=((), False)), shape, value.device)
        return graph.record(op, (value, axes, keepdims), [kind])[0]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _EXAMPLE.format(sentence=sentence, name=name, dtype=dtype, result=result)
    return operation(function)


def _over(kernel: Callable[..., torch.Tensor]) -> Kernel:
    """A kernel over a set of dims, from torch's own; an empty set changes nothing but the dtype."""

    def reduced(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
        # Torch takes no dims to mean all dims; a tensor of rank 0 is the one case where that is what we mean.
        return kernel(x, axes, keepdim=keepdims) if axes else kernel(x.unsqueeze(0), (0,))

    reduced.__name__ = reduced.__qualname__ = kernel.__name__
    return reduced


def _prod(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    if not axes:
        return torch.prod(x)
    for axis in reversed(axes):
        x = torch.prod(x, axis, keepdim=keepdims)
    return x


sum = _reduction("sum", _over(torch.sum), "The sum.")
mean = _reduction("mean", _over(torch.mean), "The mean.")
max = _reduction("max", _over(torch.amax), "The largest element.")
min = _reduction("min", _over(torch.amin), "The smallest element.")
# The trace of its second derivative grows with the sizes.
prod = _reduction("prod", _prod, "The product.", opaque=True)
any = _reduction("any", _over(torch.any), "Whether one element is true.", "bool", "bool")
all = _reduction("all", _over(torch.all), "Whether all elements are true.", "bool", "bool")
logsumexp = _reduction("logsumexp", _over(torch.logsumexp), "The logarithm of the sum of exponentials.")

ARGMAX = Op("argmax", torch.argmax)
ARGMIN = Op("argmin", torch.argmin)
CUMSUM = Op("cumsum", torch.cumsum)


def variance(
    x: TensorLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False, correction: int = 0
) -> TensorValue:
    """The mean square distance from the mean; `correction=1` divides by one less.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     str(variance(graph.inputs[0], axis=-1).type)
    'f32[batch] on cpu:0'
    """
    graph = Graph.current()
    value = graph.tensor(x)
    axes = checked_axes(axis, value.rank, "variance")
    count = Shape([value.shape[i] for i in axes]).numel()
    away = value - mean(value, axes, keepdims=True)
    total = sum(away * away, axes, keepdims=keepdims)
    return total / (int(count) - correction if count.is_static else graph.tensor(count - correction, value.device))


def _position(op: Op, x: TensorLike, axis: int, keepdims: bool) -> TensorValue:
    graph = Graph.current()
    value = graph.tensor(x)
    axis = checked_axis(axis, value.rank, op.name)
    kind = TensorType(torch.int64, reduced_shape(value.shape, (axis,), keepdims=keepdims), value.device)
    return graph.record(op, (value, axis, keepdims), [kind])[0]


def argmax(x: TensorLike, axis: int = -1, *, keepdims: bool = False) -> TensorValue:
    """Where along a dim the largest element stands.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     str(argmax(graph.inputs[0]).type)
    'i64[batch] on cpu:0'
    """
    return _position(ARGMAX, x, axis, keepdims)


def argmin(x: TensorLike, axis: int = -1, *, keepdims: bool = False) -> TensorValue:
    """Where along a dim the smallest element stands.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     str(argmin(graph.inputs[0], keepdims=True).type)
    'i64[batch, 1] on cpu:0'
    """
    return _position(ARGMIN, x, axis, keepdims)


def along(op: Op, x: TensorLike, axis: int) -> TensorValue:
    """What an op gives that goes along one dim and keeps the shape."""
    graph = Graph.current()
    value = graph.tensor(x)
    axis = checked_axis(axis, value.rank, op.name)
    kind = value.type.cast(result_dtype(op, (value,), settings=(0,)))
    return graph.record(op, (value, axis), [kind])[0]


def cumsum(x: TensorLike, axis: int = -1) -> TensorValue:
    """The running sum along a dim.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     str(cumsum(graph.inputs[0]).type)
    'f32[batch, 4] on cpu:0'
    """
    return along(CUMSUM, x, axis)
