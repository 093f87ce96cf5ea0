# ruff: noqa: PLW0108 - each case is written as one would write it
"""What the passes take out, what they keep, and that order is never lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
import torch

import weft
from weft import graph as wg
from weft.devices import CPU
from weft.graph import BufferType, DeviceRef, Graph, Signals, TensorType, ops
from weft.graph.lowering.program import Program, lower
from weft.graph.passes import (
    drop_dead_code,
    hoist_constant_movements,
    merge_common_subexpressions,
    optimize,
    start_movements_early,
)
from weft.graph.passes.scheduling import chains
from weft.graph.recording.op import Kind
from weft.graph.running.peers import check_peer_access
from weft.kernels import SIGNAL_BYTES
from weft.runtime.machine import use_separate_memory

DEVICES = [CPU(i) for i in range(8)]


@pytest.fixture
def separate() -> Iterator[None]:
    use_separate_memory(True)
    yield
    use_separate_memory(False)


def calls(program: Program, name: str) -> int:
    return sum(getattr(node.target, "__name__", "") == name for node in program.fx.nodes)


def count(program: Program) -> int:
    return sum(node.op == "call_function" for node in program.fx.nodes)


def test_common_subexpressions_are_computed_once() -> None:
    with Graph("twice", input_types=[TensorType("float32", ["n"])]) as graph:
        x = graph.inputs[0]
        graph.output(ops.exp(x) + ops.exp(x), ops.exp(x) + 1, ops.exp(x) + 1.0, ops.exp(x) + True)
    program = lower(graph)
    assert merge_common_subexpressions(program) == 4
    assert calls(program, "exp") == 1
    # 1, 1.0 and True are the same to Python, and not to torch.
    assert calls(program, "add") == 4


def test_dead_code_goes() -> None:
    with Graph("dead", input_types=[TensorType("float32", ["n"])]) as graph:
        x = graph.inputs[0]
        ops.exp(ops.sin(x) + ops.constant([1.0]))
        graph.output(x + 1)
    program = lower(graph)
    assert drop_dead_code(program) == 3
    assert count(program) == 1
    assert program.constants == []


def test_replicas_in_one_memory_cost_one() -> None:
    signals = Signals(DEVICES)
    with Graph("replicas", input_types=[TensorType("float32", ["n"]), *signals.input_types()]) as graph:
        x, *buffers = graph.inputs
        graph.output(*[ops.tanh(ops.exp(v)) for v in ops.distributed_broadcast(x, buffers)])
    program = lower(graph)
    optimize(program)
    assert count(program) == 2


def test_replicas_in_memories_of_their_own_are_computed_each(separate: None) -> None:
    signals = Signals(DEVICES)
    with Graph("replicas", input_types=[TensorType("float32", ["n"]), *signals.input_types()]) as graph:
        x, *buffers = graph.inputs
        graph.output(*[ops.exp(v) for v in ops.distributed_broadcast(x, buffers)])
    program = lower(graph)
    optimize(program)
    assert calls(program, "exp") == 8
    assert calls(program, "_copied") == 7


def test_movements_of_constants_happen_when_the_model_is_loaded(separate: None) -> None:
    weight = torch.randn(8, 4)
    with Graph("weights", input_types=[TensorType("float32", [8, 4])]) as graph:
        x = graph.inputs[0]
        parts = ops.shard_and_stack([ops.constant(weight), ops.constant(weight * 2)], DEVICES[:4])
        graph.output(*[part.to(CPU(0))[0] for part in parts], x)
    program = lower(graph)
    assert hoist_constant_movements(program) > 0
    optimize(program)
    assert count(program) == 0
    got = wg.compile(graph)(weight)
    assert torch.equal(torch.cat(got[:4]), weight)


def test_a_stretched_constant_stays_small() -> None:
    with Graph("stretched", input_types=[TensorType("float32", [1000, 1000])]) as graph:
        graph.output(graph.inputs[0] + ops.constant(1.0).broadcast_to([1000, 1000]))
    program = lower(graph)
    optimize(program)
    (constant,) = program.constants
    assert constant.untyped_storage().nbytes() == 4


FUSED = {
    "transfer of a transfer": lambda x, s: [x.to(CPU(1)).to(CPU(2)).to(CPU(3))],
    "broadcast of a transfer": lambda x, s: ops.distributed_broadcast(x.to(CPU(1)), s)[3:],
    "gather of pieces": lambda x, s: ops.allgather([p.to(CPU(i)) for i, p in enumerate(ops.chunk(x, 4))], s)[3:],
}


@pytest.mark.parametrize("function", FUSED.values(), ids=FUSED)
def test_neighbouring_movements_are_one(function, separate: None) -> None:
    signals = Signals(DEVICES[:4])
    with Graph("fused", input_types=[TensorType("float32", [8]), *signals.input_types()]) as graph:
        x, *buffers = graph.inputs
        graph.output(*function(x, buffers))
    program = lower(graph)
    optimize(program)
    assert count(program) == calls(program, "_copied") == 1
    data = torch.randn(8)
    assert torch.equal(wg.compile(graph)(data, *signals.buffers()), data)


def test_pieces_joined_again_are_the_whole() -> None:
    with Graph("joined", input_types=[TensorType("float32", ["n", 6])]) as graph:
        x = graph.inputs[0]
        pieces = ops.chunk(x, 3, 1)
        graph.output(ops.concat(pieces, 1) + 1, ops.concat(pieces[::-1], 1), ops.concat(pieces, 0))
    program = lower(graph)
    optimize(program)
    assert calls(program, "cat") == 2
    data = torch.randn(4, 6)
    want = (data + 1, torch.cat(data.chunk(3, 1)[::-1], 1), torch.cat(data.chunk(3, 1), 0))
    for got, expected in zip(wg.compile(graph)(data), want, strict=True):
        assert torch.equal(got, expected)


def test_reduce_scatter_then_gather_is_one_reduction() -> None:
    signals = Signals(DEVICES[:4])
    kinds = [TensorType("float32", [6, 3], device) for device in DEVICES[:4]]
    with Graph("fused", input_types=[*kinds, *signals.input_types()]) as graph:
        xs, buffers = graph.inputs[:4], graph.inputs[4:]
        graph.output(*ops.allgather(ops.reducescatter.sum(xs, buffers), buffers))
    program = lower(graph)
    optimize(program)
    assert count(program) == 1
    data = [torch.randn(6, 3) for _ in range(4)]
    for got in wg.compile(graph)(*data, *signals.buffers()):
        assert torch.equal(got, data[0] + data[1] + data[2] + data[3])


def _pipeline() -> Graph:
    """Two stages on two devices: what the second waits for could start while the first computes on."""
    with Graph("pipeline", input_types=[TensorType("float32", ["n"]), TensorType("float32", ["n"])]) as graph:
        x, y = graph.inputs
        first = ops.exp(ops.sin(x) + 1)
        moved = y.to(CPU(1))
        graph.output(first, ops.cos(moved))
    return graph


def test_movements_start_before_the_computation_that_does_not_need_them(separate: None) -> None:
    program = lower(_pipeline())
    names = [node.target.__name__ for node in program.fx.nodes if node.op == "call_function"]
    assert names == ["sin", "add", "exp", "_copied", "cos"]
    assert start_movements_early(program) > 0
    names = [node.target.__name__ for node in program.fx.nodes if node.op == "call_function"]
    assert names == ["_copied", "sin", "add", "exp", "cos"]


def _tangled() -> tuple[Graph, Signals]:
    """Collectives over overlapping groups, transfers and stores, in an order that depends on nothing but the writing."""
    signals = Signals(DEVICES[:4])
    kinds = [TensorType("float32", [4, 4], device) for device in DEVICES[:4]]
    state = BufferType("float32", [4, 4], DEVICES[0])
    with Graph("tangled", input_types=[*kinds, *signals.input_types(), state]) as graph:
        a, b, c, d, s0, s1, s2, s3, memory = graph.inputs
        memory[...] = a
        e, f = ops.allreduce.sum([a, b], [s0, s1])
        g, h = ops.allreduce.sum([c, d], [s2, s3])
        i, j = ops.allgather([f, g], [s1, s2])
        memory[...] = memory[...] + e
        k, m = ops.alltoall([h, e * 2], [s3, s0])
        graph.output(i, j.to(DEVICES[3]), k, m, memory[...], *ops.distributed_broadcast(c, [s0, s1, s2, s3]))
    return graph, signals


def test_every_device_keeps_its_order_so_that_none_waits_for_ever(separate: None) -> None:
    graph, _ = _tangled()
    before = lower(graph)
    written = {device: [str(n.meta["call"].op.name) for n in chain] for device, chain in chains(before).items()}
    after = lower(graph)
    start_movements_early(after)
    place = {node: at for at, node in enumerate(after.fx.nodes)}
    for device, chain in chains(after).items():
        assert [str(n.meta["call"].op.name) for n in chain] == written[device]
        # One order of the whole program contains every device's order: no two devices can wait for each other.
        assert [place[node] for node in chain] == sorted(place[node] for node in chain)
    for one, other in permutations(chains(after).values(), 2):
        shared = [node for node in one if node in other]
        assert shared == [node for node in other if node in one]


def test_the_tangled_graph_gives_the_same_in_any_memory(separate: None) -> None:
    graph, signals = _tangled()
    data = [torch.randn(4, 4) for _ in range(4)]
    state = torch.zeros(4, 4)
    apart = wg.compile(graph)(*data, *signals.buffers(), state)
    use_separate_memory(False)
    again = torch.zeros(4, 4)
    together = wg.compile(graph)(*data, *signals.buffers(), again)
    assert torch.equal(state, again)
    for one, other in zip(apart, together, strict=True):
        assert torch.equal(one, other)


def test_values_are_freed_after_their_last_use() -> None:
    with Graph("freed", input_types=[TensorType("float32", ["n"])]) as graph:
        graph.output(ops.exp(ops.sin(ops.cos(graph.inputs[0]))))
    lines = [line.strip() for line in wg.compile(graph).source.splitlines()]
    assert lines == [
        "def run(input0):",
        "cos = _cos(input0)",
        "del input0",
        "sin = _sin(cos)",
        "del cos",
        "exp = _exp(sin)",
        "del sin",
        "return (exp,)",
    ]


def test_peer_access_is_checked() -> None:
    signals = Signals([DeviceRef.GPU(0), DeviceRef.GPU(1)])
    kinds = [TensorType("float32", [4], DeviceRef.GPU(i)) for i in range(2)]
    with Graph("peers", input_types=[*kinds, *signals.input_types()]) as graph:
        graph.output(*ops.allgather(graph.inputs[:2], graph.inputs[2:]))
    here = {0: torch.device("cuda", 0), 1: torch.device("cuda", 1)}
    where = lambda device: here[device.id]  # noqa: E731
    check_peer_access(graph, reaches=lambda one, other: True, where=where)
    with pytest.raises(
        ValueError,
        match=r"allgather at .*test_passes.py:\d+ needs peer access .* gpu:0 cannot read the memory of gpu:1",
    ):
        check_peer_access(graph, reaches=lambda one, other: False, where=where)


def test_cost_counts_what_each_device_does() -> None:
    signals = Signals(DEVICES[:4])
    kinds = [TensorType("float32", ["n", 8], device) for device in DEVICES[:4]]
    with Graph("cost", input_types=[*kinds, *signals.input_types()]) as graph:
        xs, buffers = graph.inputs[:4], graph.inputs[4:]
        gathered = ops.allgather([ops.exp(x) for x in xs], buffers)
        graph.output(*gathered)
    cost = graph.cost(n=16)
    shard = 16 * 8 * 4
    for device in DEVICES[:4]:
        mine = cost.devices[DeviceRef.of(device)]
        assert mine.flops == 16 * 8
        assert mine.bytes_received == 3 * shard
        assert mine.peak_bytes == Signals.NUM_BYTES + shard + shard + 4 * shard
    assert cost.bytes_received == 4 * 3 * shard
    with pytest.raises(ValueError, match=r"the cost of graph 'cost' depends on n: say cost\(n=...\)"):
        graph.cost()


ARRIVALS = [
    ("broadcast", lambda xs, s: ops.distributed_broadcast(xs[0], s), [0, 96, 96, 96]),
    ("allgather", lambda xs, s: ops.allgather(xs, s), [288] * 4),
    ("allreduce", lambda xs, s: ops.allreduce.sum(xs, s), [144] * 4),
    ("reducescatter", lambda xs, s: ops.reducescatter.sum(xs, s), [72] * 4),
    ("alltoall", lambda xs, s: ops.alltoall(xs, s), [72] * 4),
    ("ppermute", lambda xs, s: ops.ppermute(xs, s, [(0, 1), (2, 2)]), [0, 96, 0, 0]),
    ("scatter", lambda xs, s: ops.distributed_scatter([xs[0]], s), [0, 96, 96, 96]),
    ("transfer", lambda xs, s: [xs[0].to(CPU(3))], [0, 0, 0, 96]),
    ("shard_and_stack", lambda xs, s: ops.shard_and_stack([xs[1]], DEVICES[:4]), [24, 0, 24, 24]),
]


@pytest.mark.parametrize(("name", "function", "want"), ARRIVALS, ids=[name for name, *_ in ARRIVALS])
def test_bytes_received_are_the_least_there_can_be(name: str, function, want: list[int]) -> None:
    signals = Signals(DEVICES[:4])
    kinds = [TensorType("float32", [8, 3], device) for device in DEVICES[:4]]
    with Graph(name, input_types=[*kinds, *signals.input_types()]) as graph:
        graph.output(*function(graph.inputs[:4], graph.inputs[4:]))
    cost = graph.cost()
    assert [cost.devices[DeviceRef.of(device)].bytes_received for device in DEVICES[:4]] == want


def test_receiving_takes_what_the_links_in_use_say() -> None:
    signals = Signals(DEVICES[:4])
    kinds = [TensorType("float32", [256], device) for device in DEVICES[:4]]
    with Graph("links", input_types=[*kinds, *signals.input_types()]) as graph:
        summed = ops.allreduce.sum(graph.inputs[:4], graph.inputs[4:])
        graph.output(*summed, summed[0].to(CPU(1)), summed[0].to(CPU(2)))
    hosts = weft.Topology(host=weft.Link(1.0, 1024.0), rack=weft.Link(4.0, 256.0), devices_per_host=2)
    with weft.use_topology(hosts):
        cost = graph.cost()
    hop = 4.0 + 512 / 256  # a quarter of 1 KiB from inside the host, beside two from the other one
    devices = [cost.devices[DeviceRef.of(device)].seconds for device in DEVICES[:4]]
    assert devices == [2 * hop, 2 * hop + 1.0 + 1.0, 2 * hop + 4.0 + 4.0, 2 * hop]
    assert cost.seconds == 2 * hop + 2.0 + 8.0
    assert graph.cost().seconds < 1e-3


def test_matrix_products_are_counted() -> None:
    with Graph("flops", input_types=[TensorType("float32", ["n", 8]), TensorType("float32", [8, 4])]) as graph:
        graph.output(graph.inputs[0] @ graph.inputs[1])
    assert graph.cost(n=10).flops == 2 * 10 * 8 * 4


def test_a_drawing_names_every_operation() -> None:
    graph, _ = _tangled()
    drawing = wg.to_dot(graph)
    assert drawing.startswith('digraph "tangled" {')
    for node in graph.nodes:
        if node.meta["call"].op.name != "part":
            assert f'"{node.name}" [label="{node.meta["call"].op.name}' in drawing
    assert drawing.count("subgraph") == 4
    assert '"allgather" -> "out0";' in drawing


def test_a_picture_has_a_box_for_every_operation(tmp_path: Path) -> None:
    graph, _ = _tangled()
    picture = wg.visualize(graph)
    boxes = [node for node in graph.fx.nodes if node.op == "placeholder" or node.meta["call"].op.name != "part"]
    assert str(picture).count("<rect") == len(boxes)
    assert str(picture).count('font-weight="bold"') == 4
    places = re.findall(r'<rect x="(\d+)" y="(\d+)"', str(picture))
    assert len(set(places)) == len(places)
    picture.save(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text() == picture._repr_svg_() == str(picture)


def test_signal_buffers_serve_the_gpu_kernels() -> None:
    assert Signals.NUM_BYTES >= SIGNAL_BYTES


def test_kinds_are_kept_apart() -> None:
    graph, _ = _tangled()
    kinds = {node.meta["call"].op.kind for node in graph.nodes}
    assert kinds == {Kind.COMPUTE, Kind.VIEW, Kind.MOVEMENT, Kind.COLLECTIVE, Kind.BUFFER}
