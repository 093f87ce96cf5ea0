"""Picking elements: slices, gathers, embeddings, the largest few."""

from __future__ import annotations

from types import EllipsisType

import torch
from torch.nn import functional

from ...sharding.dims import Dim, DimLike, Shape
from ..recording.constraint import Constraint
from ..recording.graph import Graph
from ..recording.op import Kind, Op
from ..recording.types import TensorType
from ..recording.values import BufferValue, Index, TensorLike, TensorValue, operation
from .inference import checked_axis, common_device
from .shaping import unsqueeze


def cut(x: torch.Tensor, axis: int, start: int, stop: int, step: int) -> torch.Tensor:
    """A slice of one dim of a plain tensor."""
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _take(x: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    taken = x.index_select(axis, indices.reshape(-1))
    return taken.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _put(x: torch.Tensor, indices: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """The transpose of `_take`: what was taken twice is added."""
    rank = indices.ndim
    front, back = x.shape[:axis], x.shape[axis + rank :]
    empty = x.new_zeros((*front, size, *back))
    return empty.index_add_(axis, indices.reshape(-1), x.reshape((*front, indices.numel(), *back)))


def _put_along(x: torch.Tensor, indices: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """The transpose of `torch.gather`."""
    empty = x.new_zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]))
    return empty.scatter_add_(axis, indices, x)


def _pad(x: torch.Tensor, axis: int, start: int, step: int, size: int) -> torch.Tensor:
    """The transpose of `cut`: zeros where nothing was cut out."""
    sizes = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    padded: torch.Tensor = torch.ops.aten.slice_backward(x, sizes, axis, start, start + x.shape[axis] * step, step)
    return padded


def _embedding(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return functional.embedding(indices, weight)


SELECT = Op("select", torch.select, Kind.VIEW)
CUT = Op("slice", cut, Kind.VIEW)
PAD = Op("pad", _pad)
TAKE = Op("gather", _take)
PUT = Op("scatter_add", _put)
TAKE_ALONG = Op("take_along", torch.gather)
PUT_ALONG = Op("put_along", _put_along)
EMBEDDING = Op("embedding", _embedding)
ONE_HOT = Op("one_hot", functional.one_hot)
TOP_K = Op("top_k", torch.topk)
ARGSORT = Op("argsort", torch.argsort)
NONZERO = Op("nonzero", torch.nonzero)


@operation
def slice_tensor(x: TensorLike, index: Index | tuple[Index, ...]) -> TensorValue:
    """What `x[index]` gives: whole numbers, slices (numbers, names or sizes), `...`, `None`, and tensors of positions.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 12])]) as graph:
    ...     x = graph.inputs[0]
    ...     [str(y.shape) for y in (x[0], x[:, 2:8:2], x[..., None], x[: x.shape[0] // 2])]
    ['[12]', '[batch, 3]', '[batch, 12, 1]', '[batch // 2, 12]']
    """
    value = Graph.current().tensor(x)
    entries = spelled_out(index if isinstance(index, tuple) else (index,), value)
    axis = 0
    for entry in entries:
        if entry is None:
            value, axis = unsqueeze(value, axis), axis + 1
        elif isinstance(entry, TensorValue):
            value, axis = gather(value, entry, axis), axis + entry.rank
        elif isinstance(entry, slice):
            value, axis = _sliced(value, axis, entry), axis + 1
        else:
            assert not isinstance(entry, EllipsisType)
            value = _selected(value, axis, entry)
    return value


def spelled_out(indices: tuple[Index, ...], value: TensorValue | BufferValue) -> list[Index]:
    """The indices with `...` replaced by as many whole slices as it stands for."""
    dots = [i for i, index in enumerate(indices) if index is ...]
    taken = [index for index in indices if index is not None and index is not ...]
    if len(dots) > 1 or len(taken) > value.rank:
        raise IndexError(f"the index {indices!r} names {len(taken)} dims, but {value!r} has {value.rank}")
    for index in taken:
        if isinstance(index, bool) or not isinstance(index, (int, Dim, slice, TensorValue)):
            raise TypeError(f"a value is indexed by numbers, slices, sizes, None, ... and tensors, but got {index!r}")
    whole: list[Index] = [slice(None)] * (value.rank - len(taken))
    at = dots[0] if dots else len(indices)
    return [*indices[:at], *whole, *indices[at + 1 :]]


def _selected(value: TensorValue, axis: int, at: int | Dim) -> TensorValue:
    position, shape = select_step(value.shape, axis, at, value.name)
    return Graph.current().record(SELECT, (value, axis, position), [value.type.shaped(shape)])[0]


def _sliced(value: TensorValue, axis: int, entry: slice) -> TensorValue:
    bounds, shape = cut_step(value.shape, axis, entry, value.name)
    if bounds is None:
        return value
    return Graph.current().record(CUT, (value, axis, *bounds), [value.type.shaped(shape)])[0]


def select_step(shape: Shape, axis: int, at: int | Dim, name: str) -> tuple[Dim, Shape]:
    """One position of a dim, from the front, and the shape that is left."""
    size = shape[axis]
    why = f"index {at} of dim {axis} of {name}, which has size {size}"
    graph = Graph.current()
    if isinstance(at, int) and at < 0:
        graph.require(Constraint(Dim(-at), "<=", size, why), IndexError)
        return size - (-at), shape[:axis] + shape[axis + 1 :]
    position = Dim.of(at)
    graph.require(Constraint(position + 1, "<=", size, why), IndexError)
    return position, shape[:axis] + shape[axis + 1 :]


def cut_step(shape: Shape, axis: int, entry: slice, name: str) -> tuple[tuple[Dim, Dim, int] | None, Shape]:
    """A slice's start, stop and step, or `None` where it is the whole dim, and the shape that is left."""
    graph = Graph.current()
    size, step = shape[axis], 1 if entry.step is None else int(entry.step)
    if step < 1:
        raise ValueError(f"a slice counts up by 1 or more, but got the step {step}: use ops.flip first")
    start, stop = _bound(entry.start, size, Dim(0)), _bound(entry.stop, size, size)
    if start == 0 and stop == size and step == 1:
        return None, shape
    if start.is_static and stop.is_static:
        stop = Dim(max(int(start), int(stop)))
    why = f"the slice {_written(entry)} of dim {axis} of {name}, which has size {size}"
    for low, high in ((Dim(0), start), (start, stop), (stop, size)):
        graph.require(Constraint(low, "<=", high, why))
    length = (stop - start + (step - 1)) // step
    return (start, stop, step), Shape([*shape[:axis], length, *shape[axis + 1 :]])


def _bound(bound: DimLike | None, size: Dim, default: Dim) -> Dim:
    """A slice's bound as a position from the front; of a known size, clipped as Python clips it."""
    if bound is None:
        return default
    if isinstance(bound, int) and bound < 0:
        return Dim(max(0, int(size) + bound)) if size.is_static else size - (-bound)
    at = Dim.of(bound)
    return Dim(min(int(at), int(size))) if at.is_static and size.is_static else at


def _written(entry: slice) -> str:
    parts = ["" if part is None else str(part) for part in (entry.start, entry.stop)]
    return f"[{':'.join(parts)}]" if entry.step is None else f"[{':'.join(parts)}:{entry.step}]"


def gather(x: TensorLike, indices: TensorLike, axis: int = 0) -> TensorValue:
    """The entries of a dim at these positions; the positions' dims stand where the dim was.

    >>> from weft.graph import Graph, TensorType
    >>> kinds = [TensorType("float32", ["vocab", 8]), TensorType("int64", ["batch", "seq"])]
    >>> with Graph("g", input_types=kinds) as graph:
    ...     gather(*graph.inputs)
    TensorValue(gather: f32[batch, seq, 8] on cpu:0)
    """
    graph, value, at, axis = _positions(x, indices, axis, "gather")
    shape = value.shape[:axis] + at.shape + value.shape[axis + 1 :]
    return graph.record(TAKE, (value, at, axis), [value.type.shaped(shape)])[0]


def scatter_add(updates: TensorLike, indices: TensorLike, size: DimLike, axis: int = 0) -> TensorValue:
    """The transpose of `gather`: zeros of this size with the updates added at the positions.

    >>> from weft.graph import Graph, TensorType
    >>> kinds = [TensorType("float32", ["batch", 8]), TensorType("int64", ["batch"])]
    >>> with Graph("g", input_types=kinds) as graph:
    ...     scatter_add(*graph.inputs, size=100)
    TensorValue(scatter_add: f32[100, 8] on cpu:0)
    """
    graph, value, at, axis = _positions(updates, indices, axis, "scatter_add")
    if value.shape[axis : axis + at.rank] != at.shape:
        raise ValueError(
            f"scatter_add along axis {axis}: the updates {value.type} do not have the positions' dims {at.type}"
        )
    graph.known(Shape([size]))
    kind = value.type.shaped([*value.shape[:axis], size, *value.shape[axis + at.rank :]])
    return graph.record(PUT, (value, at, axis, Dim.of(size)), [kind])[0]


def _positions(x: TensorLike, indices: TensorLike, axis: int, what: str) -> tuple[Graph, TensorValue, TensorValue, int]:
    graph = Graph.current()
    value = graph.tensor(x)
    at = graph.tensor(indices, value.device)
    if at.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{what} needs whole numbers as positions, but got {at.type}: cast them to int64")
    common_device((value, at), what)
    return graph, value, at, checked_axis(axis, value.rank, what)


def take_along(x: TensorLike, indices: TensorLike, axis: int = -1) -> TensorValue:
    """For each position the element of `x` there, along one dim; the other dims go together.

    >>> from weft.graph import Graph, TensorType
    >>> kinds = [TensorType("float32", ["batch", 8]), TensorType("int64", ["batch", 2])]
    >>> with Graph("g", input_types=kinds) as graph:
    ...     take_along(*graph.inputs)
    TensorValue(take_along: f32[batch, 2] on cpu:0)
    """
    graph, value, at, axis = _positions(x, indices, axis, "take_along")
    matches = at.rank == value.rank and all(
        a == b for i, (a, b) in enumerate(zip(at.shape, value.shape, strict=True)) if i != axis
    )
    if not matches or at.dtype != torch.int64:
        raise ValueError(
            f"take_along needs int64 positions with the dims of {value.type} but for axis {axis}, but got {at.type}"
        )
    return graph.record(TAKE_ALONG, (value, axis, at), [value.type.shaped(at.shape)])[0]


def put_along(updates: TensorLike, indices: TensorLike, size: DimLike, axis: int = -1) -> TensorValue:
    """The transpose of `take_along`: zeros of this size along a dim, with the updates added.

    >>> from weft.graph import Graph, TensorType
    >>> kinds = [TensorType("float32", ["batch", 2]), TensorType("int64", ["batch", 2])]
    >>> with Graph("g", input_types=kinds) as graph:
    ...     put_along(*graph.inputs, size=8)
    TensorValue(put_along: f32[batch, 8] on cpu:0)
    """
    graph, value, at, axis = _positions(updates, indices, axis, "put_along")
    if at.shape != value.shape:
        raise ValueError(f"put_along needs one position per update, but got {value.type} and {at.type}")
    kind = value.type.resized(axis, size)
    return graph.record(PUT_ALONG, (value, at, axis, Dim.of(size)), [kind])[0]


def pad(x: TensorLike, axis: int, start: DimLike, size: DimLike, step: int = 1) -> TensorValue:
    """The transpose of a slice: zeros of this size along a dim, with `x` at `start`, `start + step`, ...

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 2])]) as graph:
    ...     pad(graph.inputs[0], 1, start=3, size=8)
    TensorValue(pad: f32[batch, 8] on cpu:0)
    """
    graph = Graph.current()
    value = graph.tensor(x)
    axis = checked_axis(axis, value.rank, "pad")
    first, whole, length = Dim.of(start), Dim.of(size), value.shape[axis]
    graph.known(Shape([first, whole]))
    why = f"pad of dim {axis} of {value.name} (size {length}) to size {whole} from {first} by {step}"
    if length != 0:
        graph.require(Constraint(first + (length - 1) * step + 1, "<=", whole, why))
    kind = value.type.resized(axis, whole)
    return graph.record(PAD, (value, axis, first, step, whole), [kind])[0]


def embedding(weight: TensorLike, indices: TensorLike) -> TensorValue:
    """The rows of a table at these positions.

    >>> from weft.graph import Graph, TensorType
    >>> kinds = [TensorType("float32", [100, 8]), TensorType("int64", ["batch", "seq"])]
    >>> with Graph("g", input_types=kinds) as graph:
    ...     embedding(*graph.inputs)
    TensorValue(embedding: f32[batch, seq, 8] on cpu:0)
    """
    graph, table, at, _ = _positions(weight, indices, 0, "embedding")
    if table.rank != 2:
        raise ValueError(f"embedding needs a table of rank 2, but got {table.type}")
    return graph.record(EMBEDDING, (table, at), [table.type.shaped(at.shape + table.shape[1:])])[0]


def one_hot(indices: TensorLike, size: int) -> TensorValue:
    """A 1 at each position, among zeros, along a new last dim.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("int64", ["batch"])]) as graph:
    ...     one_hot(graph.inputs[0], 10)
    TensorValue(one_hot: i64[batch, 10] on cpu:0)
    """
    graph = Graph.current()
    at = graph.tensor(indices)
    if at.dtype != torch.int64:
        raise TypeError(f"one_hot needs int64 positions, but got {at.type}: cast them")
    return graph.record(ONE_HOT, (at, size), [at.type.shaped([*at.shape, size])])[0]


def top_k(x: TensorLike, k: int, axis: int = -1) -> list[TensorValue]:
    """The `k` largest elements along a dim, largest first, and where they stand.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 8])]) as graph:
    ...     [str(y.type) for y in top_k(graph.inputs[0], 2)]
    ['f32[batch, 2] on cpu:0', 'i64[batch, 2] on cpu:0']
    """
    graph = Graph.current()
    value = graph.tensor(x)
    axis = checked_axis(axis, value.rank, "top_k")
    why = f"top_k takes {k} of {value.shape[axis]} elements"
    graph.require(Constraint(Dim(k), "<=", value.shape[axis], why))
    kind = value.type.resized(axis, k)
    return graph.record(TOP_K, (value, k, axis), [kind, kind.cast(torch.int64)], many=True)


def argsort(x: TensorLike, axis: int = -1, *, descending: bool = False) -> TensorValue:
    """Where the elements of a dim stand, from the smallest to the largest.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 8])]) as graph:
    ...     argsort(graph.inputs[0])
    TensorValue(argsort: i64[batch, 8] on cpu:0)
    """
    graph = Graph.current()
    value = graph.tensor(x)
    axis = checked_axis(axis, value.rank, "argsort")
    return graph.record(ARGSORT, (value, axis, descending), [value.type.cast(torch.int64)])[0]


def nonzero(x: TensorLike, out_dim: str) -> TensorValue:
    """Where the elements are not 0, one row of positions each; `out_dim` names how many there are.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch", 8])]) as graph:
    ...     nonzero(graph.inputs[0], "hits")
    TensorValue(nonzero: i64[hits, 2] on cpu:0)
    """
    graph = Graph.current()
    value = graph.tensor(x)
    if out_dim in graph.symbols:
        raise ValueError(
            f"nonzero finds a new size, but graph {graph.name!r} already has one called {out_dim!r}: use another name"
        )
    kind = TensorType(torch.int64, [out_dim, value.rank], value.device)
    (found,) = graph.record(NONZERO, (value,), [kind])
    graph.define(found)
    return found
