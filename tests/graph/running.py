"""Run a function of graph values on plain tensors, and compare it with plain torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from weft import graph as wg
from weft.graph import DeviceRef, Graph, Signals, TensorType, TensorValue, ops

GraphFunction = Callable[..., "TensorValue | Sequence[TensorValue]"]


def as_list(result: object) -> list:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def type_of(x: torch.Tensor, device: int = 0, names: Sequence[str | int] | None = None) -> TensorType:
    return TensorType(x.dtype, tuple(x.shape) if names is None else names, DeviceRef.CPU(device))


def graph_of(function: GraphFunction, *tensors: torch.Tensor, symbolic: bool = False) -> Graph:
    """The graph of a function; with `symbolic`, each distinct size above 1 becomes a name."""
    with Graph("tried", input_types=[type_of(x, names=named(x) if symbolic else None) for x in tensors]) as graph:
        graph.output(*as_list(function(*graph.inputs)))
    return graph


def named(x: torch.Tensor) -> list[str | int]:
    return [f"size{n}" if n > 1 else n for n in x.shape]


def run(function: GraphFunction, *tensors: torch.Tensor, symbolic: bool = False) -> list[torch.Tensor]:
    return wg.compile(graph_of(function, *tensors, symbolic=symbolic)).execute(*tensors)


def run_on_devices(
    function: Callable[..., Sequence[TensorValue]], per_device: Sequence[torch.Tensor], *args: object
) -> list[torch.Tensor]:
    """Run `function(values, signal buffers, *args)` with one value on each of as many CPU devices."""
    graph, signals = graph_on_devices(function, per_device, *args)
    return wg.compile(graph).execute(*per_device, *signals.buffers())


def graph_on_devices(
    function: Callable[..., Sequence[TensorValue]], per_device: Sequence[torch.Tensor], *args: object
) -> tuple[Graph, Signals]:
    signals = Signals([DeviceRef.CPU(i) for i in range(len(per_device))])
    kinds = [type_of(x, i) for i, x in enumerate(per_device)]
    with Graph("tried", input_types=[*kinds, *signals.input_types()]) as graph:
        values, buffers = graph.inputs[: len(kinds)], graph.inputs[len(kinds) :]
        graph.output(*function(values, buffers, *args))
    return graph, signals


def weighted(results: Sequence[torch.Tensor]) -> torch.Tensor:
    """One number that depends on every element of every float result, each in its own way."""
    total = torch.zeros((), dtype=torch.float64)
    for result in results:
        if result.is_floating_point():
            total = total + (result.double() * weights(result.shape)).sum()
    return total


def weights(shape: Sequence[int]) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    return torch.cos(torch.arange(count, dtype=torch.float64)).reshape(tuple(shape))


def weighted_value(results: Sequence[TensorValue]) -> TensorValue:
    """What `weighted` is of plain tensors, of values: the weights are made in the graph, for whichever sizes."""
    return functools.reduce(ops.add, [_times_weights(r) for r in results if r.dtype.is_floating_point])


def _times_weights(value: TensorValue) -> TensorValue:
    count = ops.arange(0, value.type.num_elements(), dtype="float64", device=value.device)
    return ops.sum(value.cast("float64") * ops.cos(count).reshape(value.shape))
