"""The same elements in another form: shapes, orders, joints and cuts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ...sharding.dims import Dim, DimLike, Shape, ShapeLike, piece_size
from ..recording.constraint import Constraint
from ..recording.graph import Graph
from ..recording.op import REBIND, RESHAPE, Kind, Op
from ..recording.values import TensorLike, TensorValue, operation
from .inference import broadcast_shape, checked_axis, common_device, listed

BROADCAST_TO = Op("broadcast_to", torch.broadcast_to, Kind.VIEW)
PERMUTE = Op("permute", torch.permute, Kind.VIEW)
CONCAT = Op("concat", torch.cat)
STACK = Op("stack", torch.stack)
SPLIT = Op("split", torch.split, Kind.VIEW)
FLIP = Op("flip", torch.flip)
TILE = Op("tile", torch.tile)
TRIL = Op("tril", torch.tril)
TRIU = Op("triu", torch.triu)


@operation
def reshape(x: TensorLike, shape: ShapeLike) -> TensorValue:
    """The same elements in another shape; one size may be -1.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 12])]) as graph:
    ...     reshape(graph.inputs[0], [-1, 3, 4]), reshape(graph.inputs[0], [-1])
    (TensorValue(reshape: f32[batch, 3, 4] on cpu:0), TensorValue(reshape_1: f32[batch * 12] on cpu:0))
    """
    graph = Graph.current()
    value = graph.tensor(x)
    sizes = list(shape)
    total = value.type.num_elements()
    free = [i for i, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(free) > 1:
        raise ValueError(f"reshape takes one -1 at most, but got {sizes!r}")
    why = f"reshape of {value.type} to {sizes!r} must keep the number of elements"
    if free:
        known = Shape([size for i, size in enumerate(sizes) if i != free[0]]).numel()
        if known == 0:
            raise ValueError(f"reshape of {value.type} to {sizes!r} cannot tell the size -1: say it")
        sizes[free[0]] = total // known
    target = Shape(sizes)
    graph.require(Constraint(target.numel(), "==", total, why))
    if target == value.shape:
        return value
    return graph.record(RESHAPE, (value, target), [value.type.shaped(target)])[0]


@operation
def flatten(x: TensorLike, start_dim: int = 0, end_dim: int = -1) -> TensorValue:
    """Neighbouring dims made one.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 3, 4])]) as graph:
    ...     flatten(graph.inputs[0], 1)
    TensorValue(reshape: f32[batch, 12] on cpu:0)
    """
    value = Graph.current().tensor(x)
    if value.rank == 0:
        return reshape(value, [1])
    start, end = checked_axis(start_dim, value.rank, "flatten"), checked_axis(end_dim, value.rank, "flatten")
    if start > end:
        raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    middle = value.shape[start : end + 1].numel()
    return reshape(value, [*value.shape[:start], middle, *value.shape[end + 1 :]])


@operation
def broadcast_to(x: TensorLike, shape: ShapeLike) -> TensorValue:
    """The value repeated to a shape, without copying it.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 1])]) as graph:
    ...     broadcast_to(graph.inputs[0], ["batch", 4])
    TensorValue(broadcast_to: f32[batch, 4] on cpu:0)
    """
    graph = Graph.current()
    value, target = graph.tensor(x), Shape(shape)
    if broadcast_shape([value.shape, target], "broadcast_to") != target:
        raise ValueError(f"broadcast_to: {value.type} does not stretch to {target}")
    if target == value.shape:
        return value
    return graph.record(BROADCAST_TO, (value, target), [value.type.shaped(target)])[0]


@operation
def rebind(x: TensorLike, shape: ShapeLike) -> TensorValue:
    """The same value, its dims called otherwise; that the sizes agree is checked when the graph runs.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["a"]), TensorType("float32", ["b"])]) as graph:
    ...     x, y = graph.inputs
    ...     x + rebind(y, x.shape)
    TensorValue(add: f32[a] on cpu:0)
    """
    graph = Graph.current()
    value, target = graph.tensor(x), Shape(shape)
    if len(target) != value.rank:
        raise ValueError(
            f"rebind keeps the rank, but {value.type} has rank {value.rank} and {target} has {len(target)}"
        )
    for i, (old, new) in enumerate(zip(value.shape, target, strict=True)):
        graph.require(Constraint(old, "==", new, f"rebind of {value.name} says that dim {i} is {new}"))
    if target == value.shape:
        return value
    return graph.record(REBIND, (value,), [value.type.shaped(target)])[0]


@operation
def permute(x: TensorLike, dims: Sequence[int]) -> TensorValue:
    """The value with its dims in another order.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 3, 4])]) as graph:
    ...     permute(graph.inputs[0], [2, 0, 1])
    TensorValue(permute: f32[4, batch, 3] on cpu:0)
    """
    graph = Graph.current()
    value = graph.tensor(x)
    order = tuple(checked_axis(dim, value.rank, "permute") for dim in dims)
    if sorted(order) != list(range(value.rank)):
        raise ValueError(f"permute of {value.type} needs each of its {value.rank} dims once, but got {list(dims)!r}")
    if order == tuple(range(value.rank)):
        return value
    return graph.record(PERMUTE, (value, order), [value.type.shaped([value.shape[i] for i in order])])[0]


@operation
def transpose(x: TensorLike, axis_1: int, axis_2: int) -> TensorValue:
    """The value with two dims swapped.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 3, 4])]) as graph:
    ...     transpose(graph.inputs[0], -1, -2)
    TensorValue(permute: f32[batch, 4, 3] on cpu:0)
    """
    value = Graph.current().tensor(x)
    one, other = (checked_axis(axis, value.rank, "transpose") for axis in (axis_1, axis_2))
    order = list(range(value.rank))
    order[one], order[other] = order[other], order[one]
    return permute(value, order)


def squeeze(x: TensorLike, axis: int) -> TensorValue:
    """The value without one dim of size 1.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 1])]) as graph:
    ...     squeeze(graph.inputs[0], -1)
    TensorValue(reshape: f32[batch] on cpu:0)
    """
    value = Graph.current().tensor(x)
    axis = checked_axis(axis, value.rank, "squeeze")
    if value.shape[axis] != 1:
        raise ValueError(
            f"squeeze takes out a dim of size 1, but dim {axis} of {value.type} has size {value.shape[axis]}"
        )
    return reshape(value, value.shape[:axis] + value.shape[axis + 1 :])


def unsqueeze(x: TensorLike, axis: int) -> TensorValue:
    """The value with one more dim, of size 1.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch"])]) as graph:
    ...     unsqueeze(graph.inputs[0], -1)
    TensorValue(reshape: f32[batch, 1] on cpu:0)
    """
    value = Graph.current().tensor(x)
    axis = checked_axis(axis, value.rank + 1, "unsqueeze")
    return reshape(value, [*value.shape[:axis], 1, *value.shape[axis:]])


def _joined(values: Iterable[TensorLike], what: str) -> tuple[Graph, list[TensorValue]]:
    graph = Graph.current()
    values = list(values)
    on = next((value.device for value in values if isinstance(value, TensorValue)), None)
    tensors = [graph.tensor(value, on) for value in values]
    if not tensors:
        raise ValueError(f"{what} needs at least one tensor, but got none")
    common_device(tensors, what)
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"{what} needs one dtype, but got {listed(t.type for t in tensors)}: cast them first")
    return graph, tensors


def concat(values: Iterable[TensorLike], axis: int = 0) -> TensorValue:
    """Tensors joined along a dim.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["a", 4]), TensorType("float32", ["b", 4])]) as graph:
    ...     concat(graph.inputs)
    TensorValue(concat: f32[a + b, 4] on cpu:0)
    """
    graph, tensors = _joined(values, "concat")
    axis = checked_axis(axis, tensors[0].rank, "concat")
    shape = concat_shape([tensor.shape for tensor in tensors], axis, "concat")
    if len(tensors) == 1:
        return tensors[0]
    return graph.record(CONCAT, (tuple(tensors), axis), [tensors[0].type.shaped(shape)])[0]


def concat_shape(shapes: Sequence[Shape], axis: int, what: str) -> Shape:
    """The shape of tensors joined along a dim; all other dims are equal.

    >>> from weft.graph import Shape
    >>> concat_shape([Shape([2, "n"]), Shape([3, "n"])], 0, "concat")
    Shape([5, 'n'])
    """
    first = shapes[0]
    for shape in shapes:
        if len(shape) != len(first):
            raise ValueError(f"{what} needs tensors of one rank, but got the shapes {listed(shapes)}")
        if any(a != b for i, (a, b) in enumerate(zip(shape, first, strict=True)) if i != axis):
            raise ValueError(
                f"{what} along axis {axis} needs all other dims equal, but got the shapes {listed(shapes)}"
            )
    total: Dim = Dim(0)
    for shape in shapes:
        total = total + shape[axis]
    return Shape([*first[:axis], total, *first[axis + 1 :]])


def stack(values: Iterable[TensorLike], axis: int = 0) -> TensorValue:
    """Tensors of one shape joined along a new dim.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])] * 3) as graph:
    ...     stack(graph.inputs)
    TensorValue(stack: f32[3, batch, 4] on cpu:0)
    """
    graph, tensors = _joined(values, "stack")
    shape = tensors[0].shape
    if any(tensor.shape != shape for tensor in tensors):
        raise ValueError(f"stack needs tensors of one shape, but got {listed(t.type for t in tensors)}")
    axis = checked_axis(axis, len(shape) + 1, "stack")
    kind = tensors[0].type.shaped([*shape[:axis], len(tensors), *shape[axis:]])
    return graph.record(STACK, (tuple(tensors), axis), [kind])[0]


def split(x: TensorLike, sizes: Sequence[DimLike], axis: int = 0) -> list[TensorValue]:
    """The tensor cut along a dim into pieces of these sizes.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 10])]) as graph:
    ...     [str(piece.shape) for piece in split(graph.inputs[0], [3, 7], axis=1)]
    ['[batch, 3]', '[batch, 7]']
    """
    graph = Graph.current()
    value = graph.tensor(x)
    axis = checked_axis(axis, value.rank, "split")
    pieces = [Dim.of(size) for size in sizes]
    total: Dim = Dim(0)
    for piece in pieces:
        total = total + piece
    why = f"split of {value.type} along axis {axis} needs sizes that add up to {value.shape[axis]}, but got {listed(pieces)}"
    graph.require(Constraint(total, "==", value.shape[axis], why))
    kinds = [value.type.resized(axis, piece) for piece in pieces]
    return graph.record(SPLIT, (value, tuple(pieces), axis), kinds, many=True)


def chunk(x: TensorLike, chunks: int, axis: int = 0) -> list[TensorValue]:
    """The tensor cut along a dim into pieces as equal as can be, larger ones first.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", [10]), TensorType("float32", ["n"])]) as graph:
    ...     fixed, named = graph.inputs
    ...     [str(p.shape) for p in chunk(fixed, 4)], [str(p.shape) for p in chunk(named, 2)]
    (['[3]', '[3]', '[2]', '[2]'], ['[(n + 1) // 2]', '[n // 2]'])
    """
    value = Graph.current().tensor(x)
    axis = checked_axis(axis, value.rank, "chunk")
    if chunks < 1:
        raise ValueError(f"chunk needs 1 piece or more, but got {chunks}")
    return split(value, [piece_size(value.shape[axis], chunks, i) for i in range(chunks)], axis)


def flip(x: TensorLike, axis: int) -> TensorValue:
    """The elements of a dim from back to front.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     flip(graph.inputs[0], 0)
    TensorValue(flip: f32[batch, 4] on cpu:0)
    """
    graph = Graph.current()
    value = graph.tensor(x)
    return graph.record(FLIP, (value, (checked_axis(axis, value.rank, "flip"),)), [value.type])[0]


def tile(x: TensorLike, repeats: Sequence[int]) -> TensorValue:
    """The tensor repeated along each dim.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     tile(graph.inputs[0], [2, 1])
    TensorValue(tile: f32[batch * 2, 4] on cpu:0)
    """
    graph = Graph.current()
    value = graph.tensor(x)
    if len(repeats) != value.rank or any(count < 0 for count in repeats):
        raise ValueError(f"tile of {value.type} needs one count, 0 or more, per dim, but got {list(repeats)!r}")
    kind = value.type.shaped([dim * count for dim, count in zip(value.shape, repeats, strict=True)])
    return graph.record(TILE, (value, tuple(repeats)), [kind])[0]


def _triangle(op: Op, x: TensorLike, diagonal: int) -> TensorValue:
    graph = Graph.current()
    value = graph.tensor(x)
    if value.rank < 2:
        raise ValueError(f"{op.name} needs a tensor of rank 2 or more, but got {value.type}")
    return graph.record(op, (value, diagonal), [value.type])[0]


def tril(x: TensorLike, diagonal: int = 0) -> TensorValue:
    """The part of each matrix on and below a diagonal, 0 elsewhere.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["seq", "seq"])]) as graph:
    ...     tril(graph.inputs[0])
    TensorValue(tril: f32[seq, seq] on cpu:0)
    """
    return _triangle(TRIL, x, diagonal)


def triu(x: TensorLike, diagonal: int = 0) -> TensorValue:
    """The part of each matrix on and above a diagonal, 0 elsewhere.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["seq", "seq"])]) as graph:
    ...     triu(graph.inputs[0], 1)
    TensorValue(triu: f32[seq, seq] on cpu:0)
    """
    return _triangle(TRIU, x, diagonal)
