"""Several devices together: broadcast, gather, scatter, exchange, permute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import fx

from ...sharding.dims import Dim, piece_size
from ..recording.emitter import Emitter
from ..recording.graph import Graph
from ..recording.op import Kind, Op
from ..recording.values import BufferValue, HasBufferValue, TensorLike, TensorValue
from .inference import checked_axis, listed
from .participants import check_has_signal, checked_inputs, checked_signals, same_shapes
from .shaping import concat_shape

Values = tuple[TensorValue, ...]
Buffers = tuple[BufferValue, ...]


def _broadcast(emit: Emitter, x: TensorValue, signals: Buffers) -> tuple[fx.Node, ...]:
    return tuple(emit.moved(emit.node(x), x.device, buffer.device) for buffer in signals)


def _allgather(emit: Emitter, inputs: Values, _signals: Buffers, axis: int) -> tuple[fx.Node, ...]:
    def gathered(to: TensorValue) -> fx.Node:
        parts = tuple(emit.moved(emit.node(value), value.device, to.device) for value in inputs)
        return emit.call(torch.cat, parts, axis)

    return once_per_memory(emit, inputs, gathered)


def once_per_memory(emit: Emitter, inputs: Values, make: Callable[[TensorValue], fx.Node]) -> tuple[fx.Node, ...]:
    """One result for all devices that share memory."""
    made: list[tuple[TensorValue, fx.Node]] = []
    results = []
    for value in inputs:
        node = next((node for other, node in made if emit.share(other.device, value.device)), None)
        if node is None:
            node = make(value)
            made.append((value, node))
        results.append(node)
    return tuple(results)


def _alltoall(
    emit: Emitter, inputs: Values, _signals: Buffers, split_axis: int, concat_axis: int
) -> tuple[fx.Node, ...]:
    count = len(inputs)
    outputs = []
    for j, to in enumerate(inputs):
        parts = []
        for value in inputs:
            start, length = piece_of(value.shape[split_axis], count, j)
            cut = emit.view(torch.narrow, emit.node(value), split_axis, start, length)
            parts.append(emit.moved(cut, value.device, to.device))
        outputs.append(emit.call(torch.cat, tuple(parts), concat_axis))
    return tuple(outputs)


def piece_of(size: Dim, count: int, index: int) -> tuple[Dim, Dim]:
    """Where piece `index` of `count` balanced pieces starts, and how long it is.

    >>> [tuple(map(int, piece_of(Dim(10), 4, i))) for i in range(4)]
    [(0, 3), (3, 3), (6, 2), (8, 2)]
    """
    start = Dim(0)
    for i in range(index):
        start = start + piece_size(size, count, i)
    return start, piece_size(size, count, index)


def _ppermute(
    emit: Emitter, inputs: Values, _signals: Buffers, permutation: tuple[tuple[int, int], ...]
) -> tuple[fx.Node, ...]:
    source_of = {target: source for source, target in permutation}
    outputs = []
    for i, value in enumerate(inputs):
        if i in source_of:
            source = inputs[source_of[i]]
            outputs.append(emit.moved(emit.node(source), source.device, value.device))
        else:
            outputs.append(emit.call(torch.zeros_like, emit.node(value)))
    return tuple(outputs)


def _scatter(emit: Emitter, chunks: Values, signals: Buffers) -> tuple[fx.Node, ...]:
    each = len(signals) // len(chunks)
    return tuple(
        emit.moved(emit.node(chunks[i // each]), chunks[i // each].device, buffer.device)
        for i, buffer in enumerate(signals)
    )


BROADCAST = Op("distributed_broadcast", _broadcast, Kind.COLLECTIVE)
ALLGATHER = Op("allgather", _allgather, Kind.COLLECTIVE)
ALLTOALL = Op("alltoall", _alltoall, Kind.COLLECTIVE)
PPERMUTE = Op("ppermute", _ppermute, Kind.COLLECTIVE)
SCATTER = Op("distributed_scatter", _scatter, Kind.COLLECTIVE)


def distributed_broadcast(
    input: TensorLike,  # noqa: A002 - the document's name
    signal_buffers: Iterable[BufferValue | HasBufferValue],
) -> list[TensorValue]:
    """Broadcast a tensor from the device it is on to all devices that have a signal buffer.

    >>> from weft.graph import DeviceRef, Graph, Signals, TensorType
    >>> signals = Signals([DeviceRef.CPU(0), DeviceRef.CPU(1)])
    >>> with Graph("g", input_types=[TensorType("float32", ["batch"]), *signals.input_types()]) as graph:
    ...     x, *buffers = graph.inputs
    ...     [str(value.type) for value in distributed_broadcast(x, buffers)]
    ['f32[batch] on cpu:0', 'f32[batch] on cpu:1']
    """
    what = "distributed_broadcast"
    signals = checked_signals(signal_buffers, what)
    if len(signals) < 2:
        raise ValueError(f"{what} needs at least 2 signal buffers, one per device, but got {len(signals)}")
    graph = Graph.current()
    value = graph.tensor(input)
    check_has_signal(value, [buffer.device for buffer in signals], what)
    kinds = [value.type.on(buffer.device) for buffer in signals]
    return graph.record(BROADCAST, (value, tuple(signals)), kinds, many=True)


def allgather(
    inputs: Iterable[TensorLike], signal_buffers: Iterable[BufferValue | HasBufferValue], axis: int = 0
) -> list[TensorValue]:
    """Concatenate the inputs of all devices along `axis`, and give the result to each of these devices.

    >>> from weft.graph import DeviceRef, Graph, Signals, TensorType
    >>> signals = Signals([DeviceRef.CPU(0), DeviceRef.CPU(1)])
    >>> kinds = [TensorType("float32", ["a"], DeviceRef.CPU(0)), TensorType("float32", ["b"], DeviceRef.CPU(1))]
    >>> with Graph("g", input_types=[*kinds, *signals.input_types()]) as graph:
    ...     [str(value.type) for value in allgather(graph.inputs[:2], graph.inputs[2:])]
    ['f32[a + b] on cpu:0', 'f32[a + b] on cpu:1']
    """
    signals = checked_signals(signal_buffers, "allgather")
    inputs = inputs if isinstance(inputs, TensorValue) else list(inputs)
    if not signals and not isinstance(inputs, TensorValue) and not inputs:
        return []  # no devices, no results
    graph, values = checked_inputs(inputs, signals, "allgather")
    axis = checked_axis(axis, values[0].rank, "allgather")
    shape = concat_shape([value.shape for value in values], axis, "allgather")
    if len(values) == 1:
        return values
    kinds = [value.type.shaped(shape) for value in values]
    return graph.record(ALLGATHER, (tuple(values), tuple(signals), axis), kinds, many=True)


def alltoall(
    inputs: Iterable[TensorLike],
    signal_buffers: Iterable[BufferValue | HasBufferValue],
    split_axis: int = 0,
    concat_axis: int = 0,
) -> list[TensorValue]:
    """Cut each input along `split_axis` into one piece per device; device `j` concatenates the pieces `j` along `concat_axis`.

    >>> from weft.graph import DeviceRef, Graph, Signals, TensorType
    >>> signals = Signals([DeviceRef.CPU(0), DeviceRef.CPU(1)])
    >>> kinds = [TensorType("float32", [4, "n"], device) for device in signals.devices]
    >>> with Graph("g", input_types=[*kinds, *signals.input_types()]) as graph:
    ...     [str(value.type) for value in alltoall(graph.inputs[:2], graph.inputs[2:], 0, 1)]
    ['f32[2, n * 2] on cpu:0', 'f32[2, n * 2] on cpu:1']
    """
    signals = checked_signals(signal_buffers, "alltoall")
    graph, values = checked_inputs(inputs, signals, "alltoall")
    rank, count = values[0].rank, len(values)
    split, concat = checked_axis(split_axis, rank, "alltoall"), checked_axis(concat_axis, rank, "alltoall")
    kinds = []
    for j, to in enumerate(values):
        pieces = [v.type.resized(split, piece_size(v.shape[split], count, j)).shape for v in values]
        kinds.append(to.type.shaped(concat_shape(pieces, concat, "alltoall")))
    if count == 1:
        return values
    return graph.record(ALLTOALL, (tuple(values), tuple(signals), split, concat), kinds, many=True)


def ppermute(
    inputs: Iterable[TensorLike],
    signal_buffers: Iterable[BufferValue | HasBufferValue],
    permutation: Iterable[tuple[int, int]],
) -> list[TensorValue]:
    """Give the input `src` to the device of input `dst` for each (src, dst); devices that are no destination get zeros.

    >>> from weft.graph import DeviceRef, Graph, Signals, TensorType
    >>> signals = Signals([DeviceRef.CPU(0), DeviceRef.CPU(1)])
    >>> kinds = [TensorType("float32", ["n"], device) for device in signals.devices]
    >>> with Graph("g", input_types=[*kinds, *signals.input_types()]) as graph:
    ...     [str(value.type) for value in ppermute(graph.inputs[:2], graph.inputs[2:], [(0, 1)])]
    ['f32[n] on cpu:0', 'f32[n] on cpu:1']
    """
    signals = checked_signals(signal_buffers, "ppermute")
    graph, values = checked_inputs(inputs, signals, "ppermute")
    same_shapes(values, "ppermute")
    pairs = tuple((int(source), int(target)) for source, target in permutation)
    for role, ends in (("source", [s for s, _ in pairs]), ("destination", [t for _, t in pairs])):
        for end in ends:
            if not 0 <= end < len(values):
                raise ValueError(
                    f"ppermute: {role} {end} in {list(pairs)} is not one of the {len(values)} devices, 0 to {len(values) - 1}"
                )
        if len(set(ends)) != len(ends):
            raise ValueError(
                f"ppermute: a {role} is there twice in {list(pairs)}: each device sends once and receives once"
            )
    return graph.record(PPERMUTE, (tuple(values), tuple(signals), pairs), [value.type for value in values], many=True)


def distributed_scatter(
    input_chunks: Sequence[TensorLike], signal_buffers: Iterable[BufferValue | HasBufferValue]
) -> list[TensorValue]:
    """Give each group of devices its own chunk: with `n` devices and `k` chunks, device `i` gets chunk `i // (n / k)`.

    >>> from weft.graph import DeviceRef, Graph, Signals, TensorType
    >>> signals = Signals([DeviceRef.CPU(i) for i in range(4)])
    >>> kinds = [TensorType("float32", ["a"]), TensorType("float32", ["b"])]
    >>> with Graph("g", input_types=[*kinds, *signals.input_types()]) as graph:
    ...     [str(value.type) for value in distributed_scatter(graph.inputs[:2], graph.inputs[2:])]
    ['f32[a] on cpu:0', 'f32[a] on cpu:1', 'f32[b] on cpu:2', 'f32[b] on cpu:3']
    """
    what = "distributed_scatter"
    signals = checked_signals(signal_buffers, what)
    graph = Graph.current()
    chunks = tuple(graph.tensor(chunk) for chunk in input_chunks)
    if not chunks:
        raise ValueError(f"{what} needs at least one chunk, but got none")
    if not signals:
        raise ValueError(f"{what} needs a signal buffer per device, but got none")
    if len(signals) % len(chunks):
        raise ValueError(
            f"{what} needs as many devices in each group, but {len(signals)} signal buffers do not divide into {len(chunks)} chunks"
        )
    if len({(chunk.dtype, chunk.rank, chunk.device) for chunk in chunks}) > 1:
        raise ValueError(f"{what} needs chunks of one dtype, rank and device, but got {listed(c.type for c in chunks)}")
    check_has_signal(chunks[0], [buffer.device for buffer in signals], what)
    if len(signals) == 1:
        return list(chunks)
    each = len(signals) // len(chunks)
    kinds = [chunks[i // each].type.on(buffer.device) for i, buffer in enumerate(signals)]
    return graph.record(SCATTER, (chunks, tuple(signals)), kinds, many=True)
