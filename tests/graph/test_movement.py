"""Movements and collectives on CPU devices: what they give, bit for bit, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.running import graph_on_devices, run_on_devices, type_of, weighted, weights
from weft import graph as wg
from weft.devices import CPU
from weft.graph import AxisError, BufferType, DeviceRef, Graph, Signals, TensorType, ops
from weft.runtime.machine import use_separate_memory


@pytest.fixture(params=["shared", "separate"], autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every law holds where devices share memory and where each has its own."""
    use_separate_memory(request.param == "separate")
    yield request.param
    use_separate_memory(False)


def on_devices(count: int, *shape: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [(torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(dtype) for _ in range(count)]


def test_broadcast_gives_each_device_the_value() -> None:
    data = on_devices(4, 3, 2)
    got = run_on_devices(lambda xs, signals: ops.distributed_broadcast(xs[1], signals), data)
    assert len(got) == 4
    assert all(torch.equal(x, data[1]) for x in got)


def test_the_root_of_a_broadcast_is_where_the_input_is() -> None:
    graph, _ = graph_on_devices(lambda xs, signals: ops.distributed_broadcast(xs[2], signals), on_devices(4, 3))
    assert [kind.device for kind in graph.output_types] == [DeviceRef.CPU(i) for i in range(4)]


def test_transfer() -> None:
    data = on_devices(2, 3)
    got = run_on_devices(lambda xs, _: [ops.transfer_to(xs[0], CPU(5)), xs[1].to(DeviceRef.CPU(1))], data)
    assert torch.equal(got[0], data[0])
    assert torch.equal(got[1], data[1])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_allgather_concatenates(axis: int) -> None:
    data = on_devices(4, 3, 2)
    got = run_on_devices(ops.allgather, data, axis)
    assert all(torch.equal(x, torch.cat(data, axis)) for x in got)


def test_allgather_of_nothing_is_nothing() -> None:
    with Graph("empty"):
        assert ops.allgather([], []) == []


def test_a_scatter_to_one_device_gives_the_chunk() -> None:
    data = on_devices(1, 3, 2)
    got = run_on_devices(ops.distributed_scatter, data)
    assert len(got) == 1
    assert torch.equal(got[0], data[0])


def test_allgather_takes_uneven_sizes_along_the_axis() -> None:
    data = [torch.randn(n, 2) for n in (3, 0, 5)]
    for got in run_on_devices(ops.allgather, data):
        assert torch.equal(got, torch.cat(data))


def test_allgather_of_one_input_is_that_input() -> None:
    with Graph("one", input_types=[TensorType("float32", [2]), *Signals([CPU(0)]).input_types()]) as graph:
        x, signal = graph.inputs
        assert ops.allgather([x], [signal])[0] is x


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_shard_and_stack(axis: int) -> None:
    a, b = torch.randn(6, 6), torch.randn(6, 6)
    devices = [DeviceRef.CPU(i) for i in (2, 0, 1)]
    with Graph("weights", input_types=[type_of(a), type_of(b)]) as graph:
        graph.output(*ops.shard_and_stack(graph.inputs, devices, axis))
    assert [kind.device for kind in graph.output_types] == devices
    got = wg.compile(graph)(a, b)
    for i, (x, kind) in enumerate(zip(got, graph.output_types, strict=True)):
        want = torch.stack([a.chunk(3, axis)[i], b.chunk(3, axis)[i]])
        assert torch.equal(x, want)
        assert kind.shape == tuple(want.shape)


REDUCTIONS = {
    "sum": lambda parts: sum(parts[1:], parts[0]),
    "mean": lambda parts: sum(parts[1:], parts[0]) / len(parts),
    "max": lambda parts: torch.stack(parts).amax(0),
    "min": lambda parts: torch.stack(parts).amin(0),
    "prod": lambda parts: torch.stack(parts).prod(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", REDUCTIONS)
def test_allreduce(how: str, dtype: torch.dtype) -> None:
    data = on_devices(4, 3, 2, dtype=dtype)
    if how == "mean" and not dtype.is_floating_point:
        with pytest.raises(ValueError, match=r"allreduce.mean needs floats, but got i64\[3, 2\] on cpu:0"):
            run_on_devices(ops.allreduce.mean, data)
        return
    wide = [x.double() for x in data]
    got = run_on_devices(getattr(ops.allreduce, how), data)
    assert all(torch.equal(x, got[0]) for x in got)
    torch.testing.assert_close(
        got[0], REDUCTIONS[how](wide).to(dtype), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
    )


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("how", REDUCTIONS)
def test_reducescatter(how: str, axis: int) -> None:
    data = on_devices(4, 5, 6)
    got = run_on_devices(getattr(ops.reducescatter, how), data, axis)
    whole = REDUCTIONS[how](data)
    want = torch.tensor_split(whole, 4, axis)
    for x, piece in zip(got, want, strict=True):
        torch.testing.assert_close(x, piece)


@pytest.mark.parametrize(("split", "concat"), [(0, 0), (0, 1), (1, 0), (-1, -2)])
def test_alltoall(split: int, concat: int) -> None:
    data = on_devices(3, 4, 5)
    got = run_on_devices(ops.alltoall, data, split, concat)
    for j, x in enumerate(got):
        assert torch.equal(x, torch.cat([torch.tensor_split(part, 3, split)[j] for part in data], concat))


def test_alltoall_back_is_where_we_started() -> None:
    data = on_devices(4, 4, 6)

    def there_and_back(xs: list, signals: list) -> list:
        return ops.alltoall(ops.alltoall(xs, signals, 0, 1), signals, 1, 0)

    for x, want in zip(run_on_devices(there_and_back, data), data, strict=True):
        assert torch.equal(x, want)


def test_ppermute_sends_along_pairs_and_fills_with_zeros() -> None:
    data = on_devices(3, 2)
    got = run_on_devices(ops.ppermute, data, [(0, 1), (1, 0)])
    assert torch.equal(got[0], data[1])
    assert torch.equal(got[1], data[0])
    assert torch.equal(got[2], torch.zeros_like(data[2]))


def test_scatter_gives_each_group_its_chunk() -> None:
    a, b = torch.randn(2), torch.randn(3)
    signals = Signals([CPU(i) for i in range(4)])
    with Graph("scatter", input_types=[type_of(a), type_of(b), *signals.input_types()]) as graph:
        graph.output(*ops.distributed_scatter(graph.inputs[:2], graph.inputs[2:]))
    for x, want in zip(wg.compile(graph)(a, b, *signals.buffers()), (a, a, b, b), strict=True):
        assert torch.equal(x, want)


@given(data=st.data())
def test_shard_then_gather_is_identity(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    shape = data.draw(st.lists(st.integers(0, 7), min_size=rank, max_size=rank))
    axis, count = data.draw(st.integers(0, rank - 1)), data.draw(st.integers(2, 5))
    x = torch.randn(shape)
    signals = Signals([CPU(i) for i in range(count)])
    names = [f"n{i}" for i in range(rank)] if data.draw(st.booleans()) else shape
    with Graph("law", input_types=[TensorType(x.dtype, names), *signals.input_types()]) as graph:
        value, *buffers = graph.inputs
        pieces = [piece.to(CPU(i)) for i, piece in enumerate(ops.chunk(value, count, axis))]
        gathered = ops.allgather(pieces, buffers, axis)
        assert all(g.shape == value.shape for g in gathered)
        graph.output(*gathered)
    for got in wg.compile(graph)(x, *signals.buffers()):
        assert torch.equal(got, x)


GRADIENTS = [
    ("broadcast", lambda xs, s: ops.distributed_broadcast(xs[0], s), lambda xs: [xs[0]] * 3),
    ("allgather", lambda xs, s: ops.allgather(xs, s, 1), lambda xs: [torch.cat(xs, 1)] * 3),
    ("one of allgather", lambda xs, s: ops.allgather(xs, s, 1)[1:2], lambda xs: [torch.cat(xs, 1)]),
    ("alltoall", lambda xs, s: ops.alltoall(xs, s, 0, 1), lambda xs: _exchanged(xs, 0, 1)),
    ("alltoall same", lambda xs, s: ops.alltoall(xs, s, 1, 1), lambda xs: _exchanged(xs, 1, 1)),
    ("ppermute", lambda xs, s: ops.ppermute(xs, s, [(0, 2), (1, 0)]), lambda xs: [xs[1], xs[1] * 0, xs[0]]),
    ("transfer", lambda xs, s: [xs[0].to(CPU(2)) * xs[2]], lambda xs: [xs[0] * xs[2]]),
    (
        "scatter",
        lambda xs, s: ops.distributed_scatter([xs[0]], s),
        lambda xs: [xs[0]] * 3,
    ),
    (
        "shard_and_stack",
        lambda xs, s: ops.shard_and_stack([xs[0], xs[0] * 2], [CPU(1), CPU(2)], 0),
        lambda xs: [torch.stack([xs[0].chunk(2)[i], xs[0].chunk(2)[i] * 2]) for i in range(2)],
    ),
    *(
        (f"{family} {how}", _call, _plain)
        for how in REDUCTIONS
        for family, _call, _plain in [
            (
                "allreduce",
                lambda xs, s, how=how: getattr(ops.allreduce, how)(xs, s),
                lambda xs, how=how: [REDUCTIONS[how](xs)] * 3,
            ),
            (
                "reducescatter",
                lambda xs, s, how=how: getattr(ops.reducescatter, how)(xs, s, 1),
                lambda xs, how=how: torch.tensor_split(REDUCTIONS[how](xs), 3, 1),
            ),
        ]
    ),
]


def _exchanged(xs: list[torch.Tensor], split: int, concat: int) -> list[torch.Tensor]:
    return [torch.cat([torch.tensor_split(x, 3, split)[j] for x in xs], concat) for j in range(3)]


@pytest.mark.parametrize(("name", "function", "plain"), GRADIENTS, ids=[name for name, *_ in GRADIENTS])
def test_gradients_go_back_where_the_values_came_from(name: str, function, plain) -> None:
    data = on_devices(3, 4, 5)

    def loss(values: list, signals: list) -> list:
        home = DeviceRef.CPU(0)
        total = ops.constant(0.0, "float64")
        for result in function(values, signals):
            weight = ops.constant(weights(result.shape.sizes), device=result.device)
            total = total + ops.sum(result * weight).to(home)
        return [total]

    graph, signals = graph_on_devices(loss, data)
    grads = wg.grad(graph, wrt=[0, 1, 2])
    assert [g.type for g in grads] == [graph.inputs[i].type for i in range(3)]
    got = wg.compile(graph).execute(*data, *signals.buffers())[1:]
    leaves = [x.clone().requires_grad_() for x in data]
    want = torch.autograd.grad(weighted(plain(leaves)), leaves, allow_unused=True)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs)


def test_what_counts_as_input() -> None:
    signals = Signals([CPU(0), CPU(1)])
    with Graph("inputs", input_types=[TensorType("float32", ["n"]), *signals.input_types()]) as graph:
        x, *buffers = graph.inputs
        given = [x, x.shape, x.shape[0], 3, 2.5, np.float32(1.5), np.arange(3), torch.ones(2), np.int64(4), True]
        graph.output(*[ops.distributed_broadcast(value, buffers)[1] for value in given])
    got = wg.compile(graph)(torch.tensor([1.0, 2.0]), *signals.buffers())
    assert [value.tolist() for value in got] == [[1, 2], [2], 2, 3, 2.5, 1.5, [0, 1, 2], [1, 1], 4, True]
    assert [value.dtype for value in got[3:]] == [
        *(torch.int64, torch.float32, torch.float32, torch.int64, torch.float32, torch.int64, torch.bool)
    ]


class Refused:
    """One graph with what a wrong call needs: values of many kinds, and signal buffers for CPU 0 to 3."""

    def __init__(self) -> None:
        kinds = [TensorType("float32", [4, 6], CPU(i)) for i in range(4)]
        more = {
            "other_dtype": TensorType("float64", [4, 6], CPU(1)),
            "other_shape": TensorType("float32", [4, 7], CPU(1)),
            "other_rank": TensorType("float32", [4], CPU(1)),
            "far": TensorType("float32", [4, 6], CPU(7)),
            "repeated": TensorType("float32", [4, 6], CPU(0)),
            "odd": TensorType("float32", [5, 6], CPU(0)),
            "small_signal": BufferType("uint8", [16], CPU(1)),
            "float_signal": BufferType("float32", [4096], CPU(1)),
        }
        signals = Signals([CPU(i) for i in range(4)]).input_types()
        types = {f"x{i}": kind for i, kind in enumerate(kinds)} | {f"s{i}": kind for i, kind in enumerate(signals)}
        self.graph = Graph("refused", input_types=types | more)
        for value in self.graph.inputs:
            setattr(self, value.name, value)


REFUSALS = [
    (ValueError, r"needs at least 2 signal buffers", lambda v: ops.distributed_broadcast(v.x0, [v.s0])),
    (ValueError, r"needs at least 2 signal buffers", lambda v: ops.distributed_broadcast(v.x0, [])),
    (ValueError, r"needs each device once, but cpu:0", lambda v: ops.distributed_broadcast(v.x0, [v.s0, v.s0])),
    (
        ValueError,
        r"far is on cpu:7, which has no signal buffer",
        lambda v: ops.distributed_broadcast(v.far, [v.s0, v.s1]),
    ),
    (TypeError, r"signal buffer 0 is .*, not a BufferValue", lambda v: ops.distributed_broadcast(v.x0, [v.x0, v.s1])),
    (
        ValueError,
        r"signal buffer 1 is u8\[16\] on cpu:1, but needs uint8",
        lambda v: ops.distributed_broadcast(v.x0, [v.s0, v.small_signal]),
    ),
    (
        ValueError,
        r"signal buffer 1 is f32\[4096\] on cpu:1",
        lambda v: ops.allgather([v.x0, v.x1], [v.s0, v.float_signal]),
    ),
    (ValueError, r"allgather needs at least one input", lambda v: ops.allgather([], [v.s0])),
    (TypeError, r"takes one tensor per device, but got one value", lambda v: ops.allgather(v.x0, [v.s0])),
    (ValueError, r"got 2 inputs and 3 signal buffers", lambda v: ops.allgather([v.x0, v.x1], [v.s0, v.s1, v.s2])),
    (ValueError, r"needs each device once", lambda v: ops.allgather([v.x0, v.repeated], [v.s0, v.s1])),
    (ValueError, r"far is on cpu:7, which has no signal buffer", lambda v: ops.allgather([v.x0, v.far], [v.s0, v.s1])),
    (ValueError, r"needs inputs of one dtype", lambda v: ops.allgather([v.x0, v.other_dtype], [v.s0, v.s1])),
    (ValueError, r"needs inputs of one rank", lambda v: ops.allgather([v.x0, v.other_rank], [v.s0, v.s1])),
    (ValueError, r"needs all other dims equal", lambda v: ops.allgather([v.x0, v.other_shape], [v.s0, v.s1], 0)),
    (
        IndexError,
        r"axis 2 is out of range for a tensor of rank 2",
        lambda v: ops.allgather([v.x0, v.x1], [v.s0, v.s1], 2),
    ),
    (IndexError, r"axis -3 is out of range", lambda v: ops.allgather([v.x0, v.x1], [v.s0, v.s1], -3)),
    (ValueError, r"needs inputs of one shape", lambda v: ops.allreduce.sum([v.x0, v.other_shape], [v.s0, v.s1])),
    (ValueError, r"allreduce.max needs at least one input", lambda v: ops.allreduce.max([], [])),
    (ValueError, r"needs inputs of one shape", lambda v: ops.reducescatter.sum([v.x0, v.other_shape], [v.s0, v.s1])),
    (AxisError, r"reducescatter.sum: axis 5", lambda v: ops.reducescatter.sum([v.x0, v.x1], [v.s0, v.s1], 5)),
    (AxisError, r"alltoall: axis 9", lambda v: ops.alltoall([v.x0, v.x1], [v.s0, v.s1], 9)),
    (ValueError, r"alltoall along axis 0 needs", lambda v: ops.alltoall([v.x0, v.other_shape], [v.s0, v.s1], 1, 0)),
    (
        ValueError,
        r"ppermute needs inputs of one shape",
        lambda v: ops.ppermute([v.x0, v.other_shape], [v.s0, v.s1], []),
    ),
    (
        ValueError,
        r"source 4 .* is not one of the 2 devices",
        lambda v: ops.ppermute([v.x0, v.x1], [v.s0, v.s1], [(4, 0)]),
    ),
    (ValueError, r"destination -1", lambda v: ops.ppermute([v.x0, v.x1], [v.s0, v.s1], [(0, -1)])),
    (ValueError, r"a source is there twice", lambda v: ops.ppermute([v.x0, v.x1], [v.s0, v.s1], [(0, 0), (0, 1)])),
    (ValueError, r"a destination is there twice", lambda v: ops.ppermute([v.x0, v.x1], [v.s0, v.s1], [(0, 1), (1, 1)])),
    (ValueError, r"needs at least one chunk", lambda v: ops.distributed_scatter([], [v.s0, v.s1])),
    (ValueError, r"a signal buffer per device, but got none", lambda v: ops.distributed_scatter([v.x0], [])),
    (
        ValueError,
        r"3 signal buffers do not divide into 2 chunks",
        lambda v: ops.distributed_scatter([v.x0, v.odd], [v.s0, v.s1, v.s2]),
    ),
    (
        ValueError,
        r"chunks of one dtype, rank and device",
        lambda v: ops.distributed_scatter([v.x0, v.x1], [v.s0, v.s1]),
    ),
    (ValueError, r"far is on cpu:7", lambda v: ops.distributed_scatter([v.far], [v.s0, v.s1])),
    (ValueError, r"shard_and_stack needs at least one input", lambda v: ops.shard_and_stack([], [CPU(0)])),
    (ValueError, r"shard_and_stack needs at least one device", lambda v: ops.shard_and_stack([v.x0], [])),
    (ValueError, r"one shape, dtype and device", lambda v: ops.shard_and_stack([v.x0, v.odd], [CPU(0)])),
    (ValueError, r"one shape, dtype and device", lambda v: ops.shard_and_stack([v.x1, v.other_dtype], [CPU(0)])),
    (ValueError, r"one shape, dtype and device", lambda v: ops.shard_and_stack([v.x0, v.x1], [CPU(0)])),
    (ValueError, r"cuts dim 0 \(size 5\) into 2 equal parts", lambda v: ops.shard_and_stack([v.odd], [CPU(0), CPU(1)])),
    (ValueError, r"shard_and_stack: axis 2 is out of range", lambda v: ops.shard_and_stack([v.x0], [CPU(0)], 2)),
    (IndexError, r"shard_and_stack: axis -3 is out of range", lambda v: ops.shard_and_stack([v.x0], [CPU(0)], -3)),
    (
        TypeError,
        r"a device is a DeviceRef, CPU\(id\) or Accelerator\(id\), but got 'cpu'",
        lambda v: ops.transfer_to(v.x0, "cpu"),
    ),
]


@pytest.mark.parametrize(("error", "text", "call"), REFUSALS)
def test_wrong_calls_are_refused(error: type[Exception], text: str, call) -> None:
    values = Refused()
    with values.graph, pytest.raises(error, match=text):
        call(values)


def test_at_most_eight_accelerators() -> None:
    with pytest.raises(ValueError, match="serves at most 8 accelerators, but got 9"):
        Signals([DeviceRef.GPU(i) for i in range(9)])
    kinds = [BufferType("uint8", [Signals.NUM_BYTES], DeviceRef.GPU(i)) for i in range(9)]
    with (
        Graph("nine", input_types=[TensorType("float32", [2], DeviceRef.GPU(0)), *kinds]) as graph,
        pytest.raises(ValueError, match="distributed_broadcast serves at most 8 accelerators, but got 9"),
    ):
        ops.distributed_broadcast(graph.inputs[0], graph.inputs[1:])
    assert len(Signals([DeviceRef.GPU(i) for i in range(8)]).input_types()) == 8
    assert len(Signals([CPU(i) for i in range(12)]).buffers()) == 12


def test_signals_need_devices() -> None:
    with pytest.raises(ValueError, match="Signals needs at least one device"):
        Signals([])
    with pytest.raises(ValueError, match="needs each device once, but cpu:0"):
        Signals([CPU(0), CPU(0)])


def test_a_named_size_must_divide_when_it_is_known() -> None:
    with Graph("named", input_types=[TensorType("float32", ["n"])]) as graph:
        graph.output(*ops.shard_and_stack(graph.inputs, [CPU(0), CPU(1)]))
    model = wg.compile(graph)
    assert [tuple(x.shape) for x in model(torch.ones(6))] == [(1, 3), (1, 3)]
    with pytest.raises(ValueError, match=r"shard_and_stack cuts dim 0 \(size n\) into 2 equal parts.* \(n = 5\)"):
        model(torch.ones(5))
