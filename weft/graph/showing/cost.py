"""What a graph will cost, per device, before it runs: arithmetic, bytes and seconds of what is received, memory at the worst moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import fx

from ...planning import current_topology
from ...planning.text import time_text
from ..recording.arguments import tensor_at, tensors_at
from ..recording.device_ref import DeviceRef
from ..recording.op import PART, Kind, RecordedCall
from ..recording.sizes import value_of
from ..recording.types import BufferType, TensorType
from ..recording.values import TensorValue
from .arrivals import Sizes, arrivals, bytes_of, receiving_times

if TYPE_CHECKING:
    from ..recording.graph import Graph

__all__ = ["Cost", "DeviceCost", "cost_of"]


@final
@dataclass(frozen=True, slots=True)
class DeviceCost:
    """What one device does: operations, bytes received, bytes held at the worst moment, seconds until all is received.

    >>> DeviceCost(flops=8).bytes_received
    0
    """

    flops: int = 0
    bytes_received: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    """What receiving takes by the links in use (`weft.current_topology()`)."""


@final
@dataclass(frozen=True, slots=True)
class Cost:
    """What a graph costs, device by device, each counted as if it had its own memory.

    `seconds` are those of its movements one after another, each as long as the device that receives longest takes.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["n", 8]), TensorType("float32", [8, 4])]) as graph:
    ...     x, w = graph.inputs
    ...     graph.output((x @ w).to(DeviceRef.CPU(1)))
    >>> print(graph.cost(n=10))
    device  operations  bytes received  peak bytes  to receive
    cpu:0          640               0         608         0 s
    cpu:1            0             160         160       10 µs
    total          640             160         768       10 µs
    """

    devices: Mapping[DeviceRef, DeviceCost]
    seconds: float = 0.0

    @property
    def flops(self) -> int:
        """All operations."""
        return sum(cost.flops for cost in self.devices.values())

    @property
    def bytes_received(self) -> int:
        """All bytes that go from one device to another."""
        return sum(cost.bytes_received for cost in self.devices.values())

    @property
    def peak_bytes(self) -> int:
        """The most that one device holds."""
        return max((cost.peak_bytes for cost in self.devices.values()), default=0)

    def __str__(self) -> str:
        together = sum(cost.peak_bytes for cost in self.devices.values())
        total = DeviceCost(self.flops, self.bytes_received, together, self.seconds)
        rows: list[tuple[str, ...]] = [("device", "operations", "bytes received", "peak bytes", "to receive")]
        for name, cost in (*self.devices.items(), ("total", total)):
            counts = (f"{count:,}" for count in (cost.flops, cost.bytes_received, cost.peak_bytes))
            rows.append((str(name), *counts, time_text(cost.seconds)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


def cost_of(graph: Graph, sizes: Sizes) -> Cost:
    """The cost of a graph when its names have these sizes."""
    missing = sorted(graph.symbols.keys() - sizes.keys())
    if missing:
        given = ", ".join(f"{name}=..." for name in missing)
        raise ValueError(f"the cost of graph {graph.name!r} depends on {', '.join(missing)}: say cost({given})")
    flops: dict[DeviceRef, int] = {}
    received: dict[DeviceRef, int] = {}
    waited: dict[DeviceRef, float] = {}
    links, seconds = current_topology(), 0.0
    for node in graph.nodes:
        call: RecordedCall = node.meta["call"]
        for device, count in _operations(call, sizes):
            flops[device] = flops.get(device, 0) + count
        arrived = list(arrivals(call, sizes))
        for each in arrived:
            received[each.to] = received.get(each.to, 0) + each.nbytes
        taking = receiving_times(arrived, links)
        for device, time in taking.items():
            waited[device] = waited.get(device, 0.0) + time
        seconds += max(taking.values(), default=0.0)
    peaks = _peaks(graph, sizes)
    devices = sorted({*flops, *received, *peaks}, key=lambda d: (d.is_gpu(), d.id))
    each_device = {
        d: DeviceCost(flops.get(d, 0), received.get(d, 0), peaks.get(d, 0), waited.get(d, 0.0)) for d in devices
    }
    return Cost(each_device, seconds)


def _count(kind: TensorType | BufferType, sizes: Sizes) -> int:
    return value_of(kind.num_elements(), sizes)


def _matmul(call: RecordedCall, sizes: Sizes) -> int:
    return _product(tensor_at(call, 0), call, sizes)


def _product(lhs: TensorValue, call: RecordedCall, sizes: Sizes) -> int:
    return 2 * _count(call.types[0], sizes) * value_of(lhs.shape[-1], sizes)


def _attention(call: RecordedCall, sizes: Sizes) -> int:
    query, key, value = (tensor_at(call, position) for position in range(3))
    scores = _count(query.type, sizes) // max(1, value_of(query.shape[-1], sizes)) * value_of(key.shape[-2], sizes)
    return scores * (2 * value_of(query.shape[-1], sizes) + 2 * value_of(value.shape[-1], sizes) + 5)


def _read(call: RecordedCall, sizes: Sizes) -> int:
    return _count(tensor_at(call, 0).type, sizes)


# How many operations a call takes, where that is not one for each element of the result.
_OPERATIONS: dict[str, Callable[[RecordedCall, Sizes], int]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv"), _matmul),
    "addmm": lambda call, sizes: _product(tensor_at(call, 1), call, sizes),
    "attention": _attention,
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "any", "all", "logsumexp", "argmax", "argmin"), _read),
    **dict.fromkeys(("softmax", "log_softmax"), lambda call, sizes: 5 * _read(call, sizes)),
    **dict.fromkeys(("layer_norm", "rms_norm"), lambda call, sizes: 8 * _read(call, sizes)),
    **dict.fromkeys(
        ("concat", "cat", "stack", "gather", "embedding", "cast", "_to_copy", "clone", "full", "tile", "flip"),
        lambda *_: 0,
    ),
}


def _operations(call: RecordedCall, sizes: Sizes) -> Iterator[tuple[DeviceRef, int]]:
    if call.op.name.startswith(("allreduce_", "reducescatter_")):
        inputs = tensors_at(call, 0)
        share = _count(inputs[0].type, sizes) // len(inputs)
        yield from ((value.device, share * (len(inputs) - 1)) for value in inputs)
    elif call.op.kind is Kind.COMPUTE and call.types:
        rule = _OPERATIONS.get(call.op.name.removeprefix("aten."))
        yield call.types[0].device, rule(call, sizes) if rule else _count(call.types[0], sizes)


def _peaks(graph: Graph, sizes: Sizes) -> dict[DeviceRef, int]:
    """The most bytes each device holds: inputs and constants all the time, the rest from its call to its last use."""
    nodes = list(graph.fx.nodes)
    last: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        for used in node.all_input_nodes:
            last[_memory_of(used)] = at
        last.setdefault(_memory_of(node), at)
    for value in graph.results:
        last[_memory_of(value.node)] = len(nodes)
    held: dict[DeviceRef, int] = {}
    peaks: dict[DeviceRef, int] = {}
    ending: dict[int, list[fx.Node]] = {}
    for node, at in last.items():
        if not _stays(node):
            ending.setdefault(at, []).append(node)
    for node in filter(_stays, nodes):
        _hold(node, sizes, held, peaks, 1)
    for at, node in enumerate(nodes):
        if not _stays(node):
            for kind in _made(node):
                _hold_type(kind, sizes, held, peaks, 1)
        for spent in ending.get(at, ()):
            _hold(spent, sizes, held, peaks, -1)
    return peaks


def _stays(node: fx.Node) -> bool:
    return node.op == "placeholder" or node.meta["call"].op.kind is Kind.CONSTANT


def _memory_of(node: fx.Node) -> fx.Node:
    """Whose memory a value is in: its own, or that of what it is a view of."""
    while node.op != "placeholder":
        call: RecordedCall = node.meta["call"]
        if call.op is PART:
            whole = node.args[0]
            assert isinstance(whole, fx.Node)
            if whole.meta["call"].op.kind is not Kind.VIEW:
                return node
            node = whole
        elif call.op.kind is Kind.VIEW:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            node = source
        else:
            return node
    return node


def _made(node: fx.Node) -> tuple[TensorType, ...]:
    """What a call takes new memory for; several results all at once."""
    call: RecordedCall = node.meta["call"]
    return () if call.op is PART or call.op.kind is Kind.VIEW else call.types


def _hold(node: fx.Node, sizes: Sizes, held: dict[DeviceRef, int], peaks: dict[DeviceRef, int], sign: int) -> None:
    for kind in node.meta.get("types", ()):
        _hold_type(kind, sizes, held, peaks, sign)


def _hold_type(
    kind: TensorType | BufferType,
    sizes: Sizes,
    held: dict[DeviceRef, int],
    peaks: dict[DeviceRef, int],
    sign: int,
) -> None:
    held[kind.device] = held.get(kind.device, 0) + sign * bytes_of(kind, sizes)
    peaks[kind.device] = max(peaks.get(kind.device, 0), held[kind.device])
